"""Row kernels: waves of blocks, laws of size, and times that were measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import load_device
from rlplan.profiles.kernels.kernel_time import ROW_SHAPES, row_bytes

A100, H100 = (Roofline(load_device(name)) for name in ("a100-80gb-sxm", "h100-80gb-sxm"))


def microseconds(line, kind, rows, width, second_width=0):
    return 1e6 * line.rowwise(kind, rows, width, "fp16", second_width).seconds


@pytest.mark.parametrize(
    ("line", "kind", "rows", "widths", "measured"),
    [
        # Measured (microsoft/vidur, MIT) at TP 4, which no fit had: Llama-2-7B and CodeLlama-34B.
        (A100, "norm", 512, (4096,), 11),
        (A100, "norm", 4096, (4096,), 96),
        (A100, "norm", 4096, (8192,), 184),
        (A100, "activation", 1024, (2752,), 18),
        (A100, "activation", 4096, (5504,), 139),
        (A100, "rope", 2048, (1024, 1024), 21),
        (A100, "rope", 2048, (2048, 256), 20),
        (A100, "residual", 2048, (4096,), 27),
        (A100, "embedding", 1024, (8192,), 108),
        (H100, "norm", 640, (4096,), 9),
        (H100, "activation", 2048, (2752,), 20),
        (H100, "residual", 4096, (4096,), 30),
        (H100, "embedding", 2048, (4096,), 57),
    ],
)
def test_row_kernels_take_what_was_measured(line, kind, rows, widths, measured):
    assert microseconds(line, kind, rows, *widths) == pytest.approx(measured, rel=0.15)


def test_a_row_more_than_a_wave_of_blocks_costs_a_started_wave():
    # Two blocks of 1,024 threads on each of 108 multiprocessors: 216 rows in 5 us, 224 in 8 us.
    full, started = (microseconds(A100, "norm", rows, 4096) for rows in (216, 217))
    assert started > 1.4 * full
    assert microseconds(A100, "norm", 108, 4096) > 0.85 * full


def test_keys_that_fill_no_step_cost_one_all_the_same():
    # One KV head's 128 keys take a step of their own after the queries' 1,024 values.
    with_keys = microseconds(A100, "rope", 432, 1024, 128)
    assert with_keys > 1.05 * microseconds(A100, "rope", 432, 1024)
    assert with_keys == pytest.approx(microseconds(A100, "rope", 432, 1024, 256), rel=0.05)


def test_narrow_rows_leave_room_for_more_blocks():
    # 256 threads a row at TP 8 of Llama-2-7B: eight blocks on a multiprocessor instead of four.
    narrow, wide = (microseconds(A100, "rope", 864, width, 128) for width in (512, 1024))
    assert wide > 1.3 * narrow


def test_bytes_beyond_the_cache_take_longer():
    cached, beyond = (microseconds(A100, "residual", rows, 4096) for rows in (512, 4096))
    assert beyond > 8.5 * cached


def test_no_byte_beyond_the_cache_is_faster_than_the_memory():
    a40 = load_device("a40")
    beyond = (
        row_bytes("residual", 16384, 8192, 2) - Roofline(a40).kernels.rows["residual"].cached_bytes
    )
    seconds = Roofline(a40).rowwise("residual", 16384, 8192, "fp16").seconds
    assert seconds >= beyond / a40.memory_bytes_per_second


@pytest.mark.parametrize("kind", sorted(ROW_SHAPES))
def test_bytes_are_those_that_are_read_and_written(kind):
    reads_and_writes = {"norm": 2, "rope": 2, "activation": 3, "residual": 3, "embedding": 2}
    assert row_bytes(kind, 10, 100, 2) == 2000 * reads_and_writes[kind]


@given(
    st.sampled_from(sorted(ROW_SHAPES)),
    st.integers(1, 50_000),
    st.integers(1, 20_000),
    st.integers(0, 4_000),
    st.integers(0, 50_000),
    st.integers(0, 4_000),
)
def test_more_rows_and_more_keys_are_never_faster(kind, rows, width, second, more, more_second):
    for line in (A100, H100):
        small = line.rowwise(kind, rows, width, "bf16", second).seconds
        large = line.rowwise(kind, rows + more, width, "bf16", second + more_second).seconds
        assert large >= small * (1 - 1e-9)
