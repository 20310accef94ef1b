"""Products on a device of Hopper's kernels whose multiprocessors have a quarter of H100's rate: H20."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import load_device
from rlplan.profiles.kernels.kernel_time import load_kernels

H20, H100, H200 = (Roofline(load_device(name)) for name in ("h20", "h100-80gb-sxm", "h200"))
SIDE = st.integers(1, 64).map(lambda blocks: 128 * blocks)


@pytest.mark.parametrize("rows", [1, 8, 16])
def test_few_rows_take_what_reading_the_weights_does(rows):
    read = 2 * 5120 * 25600 / 4.0e12
    assert read < H20.gemm(rows, 5120, 25600, "bf16").seconds < 1.4 * read


def test_few_tokens_of_many_experts_take_what_reading_them_does():
    read = 100 * 2 * 4096 * 1536 / 4.0e12
    seconds = H20.grouped_gemm(2, 4096, 1536, 100, "bf16").seconds
    assert read < seconds < 1.5 * read


@pytest.mark.parametrize("tokens", [64, 4096])
def test_poor_tiles_cost_nothing_where_they_are_fed_faster_than_they_compute(tokens):
    slow, usual = (H20.grouped_gemm(tokens, 2048, 1024, 64, "bf16", rate) for rate in (0.5, 1.0))
    assert slow.seconds == usual.seconds
    slow, usual = (H100.grouped_gemm(tokens, 2048, 1024, 64, "bf16", rate) for rate in (0.5, 1.0))
    assert slow.seconds > usual.seconds


def test_long_products_keep_their_rate():
    """Training on H20 was logged at 77 to 83 % of 148 TFLOP/s (SGLang's and verl's users), which products lie above."""
    assert 2 * 8192**3 / H20.gemm(8192, 8192, 8192, "bf16").seconds == pytest.approx(
        0.87 * 148e12, rel=0.02
    )
    assert 2 * 8192**3 / H100.gemm(8192, 8192, 8192, "bf16").seconds < 0.76 * 989e12


@given(m=st.integers(1, 20000), k=SIDE, n=SIDE, precision=st.sampled_from(["bf16", "fp8"]))
def test_no_product_is_faster_than_peak_or_memory(m, k, n, precision):
    sheet = H20.sheet
    value_bytes = 2 if precision == "bf16" else 1
    seconds = H20.gemm(m, k, n, precision).seconds
    assert seconds > 2 * m * k * n / sheet.peak_flops_per_second[precision]
    assert seconds > value_bytes * k * n / sheet.memory_bytes_per_second


@given(m=st.integers(1, 4096), k=SIDE, n=SIDE)
def test_devices_of_the_rate_that_kernels_are_of_are_as_if_nothing_was_said(m, k, n):
    kernels = load_kernels("hopper")
    silent = replace(kernels, gemm=replace(kernels.gemm, unit_flops_per_second={}))
    for line in (H100, H200):
        other = Roofline(line.sheet, kernels=silent)
        assert line.gemm(m, k, n, "bf16").seconds == pytest.approx(
            other.gemm(m, k, n, "bf16").seconds, rel=1e-3
        )


def test_devices_that_borrow_kernels_keep_their_shares():
    line = Roofline(load_device("mi300x"))
    assert line.kernels.architecture == "hopper"
    assert 2 * 8192**3 / line.gemm(8192, 8192, 8192, "bf16").seconds < 0.5 * 1307e12
