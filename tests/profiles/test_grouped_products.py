"""Products of many experts in one kernel: laws, and measurements of shapes that no fit has seen."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.models import Batch, Elementwise, Gemm, Shard
from rlplan.parts import experts
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import load_device, load_model

DEVICES = ("a100-80gb-sxm", "h100-80gb-sxm", "h200", "b200", "gb200")

# Of the tables of aiconfigurator 0.12 (NVIDIA, Apache-2.0), vLLM 0.14 and 0.19, popularity power_law_1.01: ms of
# the experts of a layer of Qwen3-235B-A22B by tokens, which benchmarks/fit_aiconfigurator.py holds out.
LAYERS = {
    "a100-80gb-sxm": {8: 1.047, 64: 2.474, 128: 2.878},
    "h100-80gb-sxm": {8: 0.642, 64: 1.467, 128: 1.658, 256: 2.285},
    "h200": {8: 0.460, 64: 1.046, 128: 1.164},
    "b200": {8: 0.306, 64: 0.674, 128: 0.748, 256: 0.771},
    "gb200": {8: 0.287, 64: 0.635, 128: 0.712, 256: 0.753},
}


def layer_seconds(line, tokens, model=None):
    """Return what a layer's experts take, without the router."""
    batch = Batch(sequences=tokens, tokens=tokens, sequence_tokens=1, head_tokens=0)
    model = model or load_model("qwen3-235b-a22b")
    _, *rest = experts.operators(model, Shard(), batch, tokens)
    seconds = 0.0
    for each in rest:
        if isinstance(each, Gemm):
            seconds += line.grouped_gemm(each.m, each.k, each.n, each.count, "bf16").seconds
        else:
            assert isinstance(each, Elementwise)
            seconds += line.memory_bound(each.num_bytes, kernels=each.kernels).seconds
    return seconds


@pytest.mark.parametrize(
    ("device", "tokens", "milliseconds"),
    [(device, *row) for device, rows in LAYERS.items() for row in rows.items()],
)
def test_experts_of_a_layer_take_what_was_measured(device, tokens, milliseconds):
    seconds = layer_seconds(Roofline(load_device(device)), tokens)
    assert seconds == pytest.approx(milliseconds / 1000, rel=0.25)


# Its tables of vLLM 0.24 on H200, which nothing was fitted to: ms of a layer of 256 experts of 64 columns, as a rank of 32 has
# them, on hidden states of 6,144.
NARROW = {8: 0.1007, 16: 0.1470, 32: 0.2012, 64: 0.2353}


@pytest.mark.parametrize(("tokens", "milliseconds"), NARROW.items())
def test_narrow_experts_take_what_their_many_small_tiles_do(tokens, milliseconds):
    line = Roofline(load_device("h200"))
    model = replace(
        load_model("qwen3-235b-a22b"), num_experts=256, hidden_size=6144, moe_ffn_size=64
    )
    assert layer_seconds(line, tokens, model) == pytest.approx(milliseconds / 1000, rel=0.15)
    grouped = replace(line.kernels.grouped, few_rows=0)
    without = Roofline(line.sheet, kernels=replace(line.kernels, grouped=grouped))
    assert layer_seconds(without, tokens, model) < 0.85 * milliseconds / 1000


def takes_small_tiles(line, m, count):
    """Tell whether a grouped product has so few rows that its kernel takes small tiles."""
    return m <= 16 and m * count <= line.kernels.grouped.few_rows


def test_a_few_large_experts_take_no_small_tiles_for_their_many_rows():
    # Mixtral's second product at TP 8: 44 rows of each of its eight experts, and 16 of them.
    line = Roofline(load_device("h100-80gb-sxm"))
    without = Roofline(
        line.sheet,
        kernels=replace(line.kernels, grouped=replace(line.kernels.grouped, few_rows=0)),
    )
    for rows in (16, 44):
        assert line.grouped_gemm(rows, 1792, 4096, 8, "bf16") == without.grouped_gemm(
            rows, 1792, 4096, 8, "bf16"
        )


def test_small_tiles_are_counted_one_by_one():
    # 2 products of 3 x 64 by 64 x 256: one tile of 16 rows by four of 64 columns each, over 132 multiprocessors.
    line = Roofline(load_device("h100-80gb-sxm"))
    grouped = replace(
        line.kernels.grouped, few_rows=6, tile_seconds=1.0, depth_seconds=0.5, fixed_seconds=0.0
    )
    own = Roofline(line.sheet, kernels=replace(line.kernels, grouped=grouped))
    assert own.grouped_gemm(3, 64, 256, 2, "bf16").seconds == pytest.approx(8 / 132 * 1.5, rel=1e-3)
    assert own.grouped_gemm(4, 64, 256, 2, "bf16").seconds < 1e-4  # more rows: other tiles


@given(
    device=st.sampled_from(DEVICES),
    m=st.integers(1, 4096),
    k=st.integers(64, 8192),
    n=st.integers(64, 8192),
    count=st.integers(1, 256),
)
def test_more_products_or_tokens_take_no_less_and_never_less_than_the_device_s_rates(
    device, m, k, n, count
):
    sheet = load_device(device)
    line = Roofline(sheet)
    seconds = line.grouped_gemm(m, k, n, count, "bf16").seconds
    for rows, products in ((m, count + 1), (2 * m, count)):
        # Of more rows kernels take larger tiles, with which narrow experts are faster.
        if takes_small_tiles(line, m, count) == takes_small_tiles(line, rows, products):
            assert line.grouped_gemm(rows, k, n, products, "bf16").seconds >= seconds
    assert seconds > 2 * m * k * n * count / sheet.peak_flops_per_second["bf16"] * 0.95
    # A table of A100 has its memory 4 % faster than the datasheet.
    assert seconds > 2 * count * k * n / sheet.memory_bytes_per_second * 0.85


def test_products_one_after_another_are_slower_than_in_one_kernel():
    line = Roofline(load_device("h100-80gb-sxm"))
    single = line.gemm(8, 2048, 1536, "bf16").seconds
    assert line.grouped_gemm(8, 2048, 1536, 128, "bf16").seconds < 0.5 * 128 * single
    without = Roofline(line.sheet, kernels=replace(line.kernels, grouped=None))
    assert without.grouped_gemm(8, 2048, 1536, 128, "bf16") is None


def test_blackwell_multiplies_as_was_measured():
    # The same tables, B200 and vLLM 0.19: m by 4096 by 4096.
    line = Roofline(load_device("b200"))
    for m, milliseconds in ((64, 0.0089), (4096, 0.0916), (8192, 0.157)):
        assert line.gemm(m, 4096, 4096, "bf16").seconds == pytest.approx(
            milliseconds / 1000, rel=0.15
        )


@given(st.integers(2, 512), st.integers(1, 8), st.integers(1, 4096))
def test_no_more_experts_are_reached_than_there_are_choices(count, top_k, tokens):
    found = experts.reached(count, min(top_k, count), tokens)
    assert 0 < found <= count
    assert found <= tokens * min(top_k, count) + 1e-9
    assert experts.reached(count, min(top_k, count), tokens + 1) >= found


def test_the_busiest_rank_has_more_the_fewer_experts_each_holds():
    loads = [experts.busiest_rank(128, ranks) for ranks in (1, 2, 8, 32, 128)]
    assert loads[0] == 1
    assert loads == sorted(loads)
    # The same tables, H100: 8 ranks of 16 experts take 1.27 to 1.35 times as long as with equal loads.
    assert experts.busiest_rank(128, 8) == pytest.approx(1.3, rel=0.05)


def test_the_rank_that_reaches_most_experts_is_waited_for():
    # The same tables, H100: of 8 ranks of Qwen3-235B-A22B's experts, 8 tokens' slowest takes 0.177 ms, where each
    # would read a share of what one rank reads in 0.642 ms.
    mean = experts.reached(128, 8, 8) / 8
    assert experts.most_reached(128, 8, 8, 8) / mean == pytest.approx(1.5, rel=0.05)
    assert experts.most_reached(128, 8, 8, 1) == pytest.approx(experts.reached(128, 8, 8))
    assert experts.most_reached(128, 8, 4096, 8) <= 16
