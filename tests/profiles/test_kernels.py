"""Kernels: stairs of waves, laws of size, and times that were measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import UnknownNameError
from rlplan.estimate import Source
from rlplan.models import Attention
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import load_device
from rlplan.profiles.kernels.kernel_time import (
    KERNELS_FOLDER,
    ROW_SHAPES,
    load_kernels,
    split_parts,
)

A100, H100 = (Roofline(load_device(name)) for name in ("a100-80gb-sxm", "h100-80gb-sxm"))


def paged(roofline, *lengths):
    shape = Attention("attention", *lengths, q_heads=32, kv_heads=4, head_dim=128)
    return roofline.attention(shape, "fp16", paged=True)


def test_every_file_of_kernels_reads_and_names_its_architecture():
    for path in KERNELS_FOLDER.glob("*.yaml"):
        kernels = load_kernels(path.stem)
        assert kernels.architecture == path.stem
        assert kernels.source
        assert bool(kernels.refit) == kernels.fitted
        assert set(kernels.rows) == set(ROW_SHAPES)
    with pytest.raises(UnknownNameError, match="did you mean 'ampere'"):
        load_kernels("amper")


@pytest.mark.parametrize(
    ("roofline", "shape", "milliseconds"),
    [
        # Measured (microsoft/vidur, MIT): Llama-2-7B at TP 4 and CodeLlama-34B, both held out.
        (A100, (1024, 4096, 5504), 0.204),
        (A100, (4096, 8192, 10240), 2.89),
        (A100, (8, 8192, 44032), 0.455),
        (H100, (4096, 4096, 22016), 0.987),
    ],
)
def test_products_take_what_was_measured(roofline, shape, milliseconds):
    assert roofline.gemm(*shape, "fp16").seconds == pytest.approx(milliseconds * 1e-3, rel=0.12)


def test_a_started_wave_costs_nearly_a_whole_one():
    # 384 rows make 96 tiles of 128 x 128 for 108 multiprocessors, 392 make 128.
    one, two = (A100.gemm(m, 4096, 4096, "fp16").seconds for m in (384, 392))
    assert two > 1.15 * one
    assert A100.gemm(390, 4096, 4096, "fp16").seconds == pytest.approx(two, rel=1e-3)


def test_kernels_of_another_architecture_are_no_fit():
    assert A100.gemm(64, 64, 64, "fp16").source == Source.FITTED
    ada = Roofline(load_device("l40s"))
    assert ada.gemm(64, 64, 64, "fp16").source == Source.DATASHEET
    assert paged(A100, 8, 1, 512).source == Source.FITTED
    assert paged(H100, 8, 1, 512).source == Source.DATASHEET


@given(
    st.sampled_from(sorted(ROW_SHAPES)),
    st.integers(1, 100_000),
    st.integers(1, 50_000),
    st.integers(0, 100_000),
    st.integers(0, 50_000),
)
def test_more_rows_or_wider_ones_are_never_faster(kind, rows, width, more_rows, wider):
    for roofline in (A100, H100):
        small = roofline.rowwise(kind, rows, width, "bf16").seconds
        large = roofline.rowwise(kind, rows + more_rows, width + wider, "bf16").seconds
        assert large >= small * (1 - 1e-9)


@pytest.mark.parametrize(
    ("shape", "microseconds"),
    [
        # Measured (microsoft/vidur, MIT), 32 query and 4 KV heads on one A100.
        ((1, 1024, 0), 216),
        ((1, 512, 1024), 119),
        ((1, 2496, 1536), 1255),
        ((64, 1, 2048), 220),
        ((125, 1, 3840), 635),
        ((33, 1, 1920), 104),
    ],
)
def test_attention_over_a_paged_cache_takes_what_was_measured(shape, microseconds):
    assert paged(A100, *shape).seconds == pytest.approx(microseconds * 1e-6, rel=0.2)


def test_keys_are_split_only_when_blocks_are_few():
    assert split_parts(87, 60, 108) == 1  # at least 0.8 blocks on every multiprocessor
    assert split_parts(4, 1, 108) == 1  # nothing to split
    assert split_parts(36, 60, 108) == 3  # exactly one wave
    assert split_parts(4, 60, 108) * 4 <= 108


def test_without_a_paged_cache_attention_is_the_training_kernel():
    shape = Attention("attention", 1, 2048, 0, q_heads=32, kv_heads=4, head_dim=128)
    assert A100.attention(shape, "fp16").seconds < paged(A100, 1, 2048, 0).seconds
