"""All-reduces by engines' own kernels, and layers of experts whose ranks have the same tokens."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.all_reduces import AllReduces
from rlplan.files.frozen import FrozenDict
from rlplan.models import Batch, Collective, Gemm
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.profiles.facts import DeviceFacts
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.generation.prices import ReplicaSetting, engine_steps
from rlplan.simulator.model import layer_operators, shard_of
from rlplan.simulator.placed import Site

LINK = 4.5e11
TABLE = AllReduces(
    link_bytes_per_second=LINK,
    seconds=FrozenDict(
        {
            2: FrozenDict({1000: 4e-6, 3000: 6e-6}),
            8: FrozenDict({1000: 5e-6, 2000: 7e-6, 3000: 20e-6}),
        }
    ),
)


def steps_of(engine, model, device="b200", precision="bf16", tp=8, ep=1):
    sheet = load_engine(engine)
    layout = TaskPlan(pool="", tp=tp, ep=ep, expert_tp=1 if ep > 1 else None, engine=engine)
    site, facts = Site(device, tp, 8, 5e10), DeviceFacts(load_device(device))
    setting = setting_on(layout, sheet, facts, site, precision, cache_value_bytes=2)
    return engine_steps(ReplicaSetting(load_model(model), sheet, setting))


def reduced(steps, num_bytes):
    """Return the microseconds of an all-reduce in a step."""
    (found,) = steps.prices((Collective("all-reduce", "all_reduce", num_bytes),), 1)
    return found.seconds * 1e6


@pytest.mark.parametrize(
    ("ranks", "num_bytes", "microseconds"),
    [(8, 10, 5), (8, 1500, 6), (8, 2500, 13.5), (8, 9000, 20), (2, 2000, 5), (4, 1500, 6)],
)
def test_seconds_are_read_off_straight_lines_and_of_the_next_larger_group(
    ranks, num_bytes, microseconds
):
    assert TABLE.seconds_of(ranks, num_bytes, LINK) == pytest.approx(microseconds / 1e6)


def test_slower_links_add_what_their_bytes_take_longer_and_faster_ones_take_nothing_off():
    # 1,500 bytes pass a link of 8 ranks 2 x 7 / 8 times: 2,625 bytes at half the rate take as long again.
    slower = TABLE.seconds_of(8, 1500, LINK / 2)
    assert slower == pytest.approx(6e-6 + 2 * 1500 * 7 / 8 / LINK)
    assert TABLE.seconds_of(8, 1500, LINK * 2) == pytest.approx(6e-6)


@pytest.mark.parametrize("seconds", [{8: {2000: 1e-6, 1000: 2e-6}}, {1: {1000: 1e-6}}, {8: {}}])
def test_tables_that_cannot_be_read_off_are_refused(seconds):
    rows = FrozenDict({ranks: FrozenDict(row) for ranks, row in seconds.items()})
    with pytest.raises(ValueError, match="have no sizes that rise"):
        AllReduces(link_bytes_per_second=LINK, seconds=rows)


def test_a_step_s_all_reduces_leap_where_the_engine_s_kernel_asks_for_a_second_round():
    # SGLang 0.5.9 on 8 B200: 9.4 microseconds for 64 KiB, 25.6 for 128 KiB.
    steps = steps_of("sglang-0.5", "qwen3-coder-next")
    assert reduced(steps, 65536) == pytest.approx(9.4, abs=0.1)
    assert reduced(steps, 131072) == pytest.approx(25.6, abs=0.1)


def test_families_whose_all_reduces_go_with_their_norm_have_that_kernel_s_seconds():
    fused, apart = (reduced(steps_of("sglang-0.5.6", model), 131072) for model in ("qwen3-235b-a22b-2507", "minimax-m2.5"))  # fmt: skip
    assert (fused, apart) == (pytest.approx(8.1, abs=0.1), pytest.approx(25.6, abs=0.1))
    before = reduced(steps_of("sglang-0.5", "qwen3-235b-a22b-2507"), 131072)
    assert before == apart


@given(power=st.integers(10, 30))
def test_larger_tensors_take_longer_beyond_the_largest_that_was_measured(power):
    steps = steps_of("vllm-0.11", "qwen3-32b", device="h100-80gb-sxm")
    beyond = max(2**power, 2**23)
    assert reduced(steps, 2 * beyond) > reduced(steps, beyond)


@pytest.mark.parametrize("device", ["h20", "gb200", "a800-80gb-sxm"])
def test_devices_of_an_architecture_have_its_table(device):
    assert reduced(steps_of("vllm-0.15", "qwen3-32b", device=device, tp=4), 1024) < 10


@pytest.mark.parametrize(
    "engine", ["vllm-0.11-tokens", "vllm-0.11-server-nccl", "vllm-0.11-server-nccl-eager"]
)
def test_engines_without_kernels_of_their_own_have_the_library_s_collectives(engine):
    steps = steps_of(engine, "qwen3-32b", device="h100-80gb-sxm")
    whole = steps.setting.collective("all_reduce", 65536, 8, 1)
    assert reduced(steps, 65536) == pytest.approx(whole.seconds * 1e6)


def experts_of(layout, tokens, engine="sglang-0.5"):
    """Return the exchanges of a layer of experts, and rows and number of its experts on the busiest rank."""
    model, sheet = load_model("minimax-m2.5"), load_engine(engine)
    shard = replace(shard_of(layout, "bf16", sheet), popularity_spread=0.0)
    batch = Batch(sequences=tokens, tokens=tokens, sequence_tokens=1, head_tokens=0)
    operators = layer_operators(model, shard, batch)
    exchanges = [each.name for each in operators if isinstance(each, Collective)]
    first = next(each for each in operators if isinstance(each, Gemm) and each.name == "mlp up")
    return exchanges, first.m * first.count


def test_ranks_of_one_tensor_parallel_group_sum_their_experts_up_without_an_exchange():
    layout = TaskPlan(pool="", tp=8, ep=8, expert_tp=1)
    exchanges, rows = experts_of(layout, 1024)
    assert exchanges == ["norm statistics", "all-reduce", "all-reduce"]
    assert rows == pytest.approx(1024 * 8 / 8, rel=0.05)  # 8 experts a token, on 8 ranks
    cut, whole = experts_of(TaskPlan(pool="", tp=8), 1024)
    assert (cut, whole) == (exchanges, pytest.approx(1024 * 8, rel=0.05))


def test_ranks_beyond_a_tensor_parallel_group_exchange_tokens_and_so_do_trainers():
    asks = "expert exchange"
    by_rank = TaskPlan(pool="", tp=1, dp=8, ep=8, expert_tp=1)
    assert experts_of(by_rank, 128)[0].count(asks) == 2
    trained = TaskPlan(pool="", tp=8, ep=8, expert_tp=1)
    assert experts_of(trained, 128, "megatron-core-2025")[0].count(asks) == 2


def test_one_token_does_not_become_one_for_every_rank():
    _, rows = experts_of(TaskPlan(pool="", tp=8, ep=8, expert_tp=1), 1)
    assert rows <= 8


@pytest.mark.parametrize(
    ("model", "microseconds"), [("deepseek-v3", 2.4 * 6), ("qwen3-235b-a22b-2507", 2.4 * 2)]
)
def test_products_with_narrow_weights_pack_their_scales_on_blackwell(model, microseconds):
    found = steps_of("sglang-0.5", model, precision="fp8")
    sheet = replace(found.engine, steps=replace(found.engine.steps, cast_seconds=FrozenDict()))
    kind, _ = found.dense_layers[-1]
    without = replace(found, engine=sheet)
    longer = found.layer(kind, 16).seconds - without.layer(kind, 16).seconds
    assert longer * 1e6 == pytest.approx(microseconds, abs=0.05)


def test_experts_that_triton_computes_take_longer_in_fp8_on_blackwell_alone():
    def longer(model, precision, device="b200"):
        found = steps_of("sglang-0.5", model, device=device, precision=precision)
        costs = replace(found.engine.steps, narrow_expert_times=FrozenDict())
        without = replace(found, engine=replace(found.engine, steps=costs))
        return found.dense(64).seconds > without.dense(64).seconds

    assert longer("minimax-m2.5", "fp8")
    assert not longer("minimax-m2.5", "nvfp4")
    assert not longer("minimax-m2.5", "bf16")
    assert not longer("minimax-m2.5", "fp8", "h100-80gb-sxm")
    assert not longer("deepseek-v3", "fp8")


def test_prompts_of_linear_attention_take_a_host_longer_to_launch():
    # 48 layers with experts: 12 of grouped attention, 36 of linear attention, which take 1.6 ms more each.
    steps = steps_of("sglang-0.5", "qwen3-coder-next", tp=2)
    assert steps.floor_seconds(10, prompts=True) == pytest.approx(48 * 9.3e-4 + 36 * 1.6e-3)
    assert steps.floor_seconds(10) == 0


@pytest.mark.parametrize(("device", "tp", "longer"), [("h20", 8, True), ("h200", 8, False), ("h200", 1, True)])  # fmt: skip
def test_latent_attention_reads_its_cache_no_faster_than_blocks_of_64_rows_are_computed(
    device, tp, longer
):
    # 100 sequences of 10,000 tokens, each 576 values of two bytes in 61 layers. H20: 2 x 64 x 1,088 operations a token at 0.67 of
    # 148e12 a second, 1.4 ns, where 0.34 are read in. H200: 0.21 ns with 16 heads, 0.42 with 128, of 0.28.
    sheet, rows = load_device(device), -(-(128 // tp) // 64) * 64
    computed = 2 * rows * 1088 / (0.67 * sheet.peak_flops_per_second["bf16"])
    read = 1152 / (0.852 * sheet.memory_bytes_per_second)
    assert (computed > read) is longer
    steps = steps_of("sglang-0.5", "deepseek-v3", device=device, tp=tp)
    more, fewer = (steps.decode_attention(100, cached).seconds for cached in (20_000, 10_000))
    assert more - fewer == pytest.approx(61 * 100 * 10_000 * max(computed, read), rel=0.01)
