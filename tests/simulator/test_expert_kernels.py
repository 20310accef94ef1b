"""Experts as an engine's own kernels compute them: tokens read where they lie, and tiles that nobody tuned."""

from dataclasses import replace

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.models import Batch
from rlplan.parts import experts
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.profiles.facts import DeviceFacts
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.generation.expert_kernels import in_place
from rlplan.simulator.generation.prices import ReplicaSetting, engine_steps
from rlplan.simulator.placed import Site


def steps_of(engine, device, *, precision="bf16", tp=1, ep=1, model="qwen3-235b-a22b"):
    facts = DeviceFacts(load_device(device))
    layout = TaskPlan(pool="", tp=tp, ep=ep, expert_tp=1 if ep > 1 else None, engine=engine)
    sheet = load_engine(engine)
    setting = setting_on(layout, sheet, facts, Site(device, tp, 8, 1e9), precision)
    return engine_steps(ReplicaSetting(load_model(model), sheet, setting))


def operators_of(steps, tokens):
    batch = Batch(sequences=tokens, tokens=tokens, sequence_tokens=1, head_tokens=0)
    return experts.operators(steps.model, steps.setting.shard, batch, tokens)


def layer_seconds(steps, tokens):
    """Return what a layer's experts take, without the router."""
    _, *rest = operators_of(steps, tokens)
    return sum(each.seconds for each in steps.prices(tuple(rest), tokens))


def names(steps, tokens=1024):
    found, _ = in_place(
        steps.engine.steps, steps.setting, steps.model, operators_of(steps, tokens), tokens
    )
    return [each.name for each in found]


# Of the tables of aiconfigurator 0.12 (NVIDIA, Apache-2.0), popularity power_law_1.01: ms of the experts of a layer of
# Qwen3-235B-A22B on one GPU by tokens. SGLang has no tuned tiles for them, and vLLM 0.24 needs none.
MEASURED = {
    ("sglang-0.5.6", "h200"): {64: 1.026, 1024: 2.313, 4096: 5.363, 16384: 18.41},
    ("vllm-0.15", "h100-80gb-sxm"): {64: 1.467, 1024: 1.938, 4096: 3.483, 16384: 10.85},
}


@pytest.mark.parametrize(
    ("engine", "device", "tokens", "milliseconds"),
    [(*where, *row) for where, rows in MEASURED.items() for row in rows.items()],
)
def test_a_layer_takes_what_was_measured(engine, device, tokens, milliseconds):
    seconds = layer_seconds(steps_of(engine, device), tokens)
    assert seconds == pytest.approx(milliseconds / 1000, rel=0.2)


def test_kernels_in_16_bits_read_tokens_where_they_lie():
    assert "dispatch" not in names(steps_of("vllm-0.11", "h100-80gb-sxm"))
    assert "combine" in names(steps_of("vllm-0.11", "h100-80gb-sxm"))
    assert "dispatch" in names(steps_of("vllm-0.11", "h100-80gb-sxm", precision="fp8"))
    assert "dispatch" in names(steps_of("vllm-0.11", "b200"))
    assert "dispatch" in names(steps_of("tensorrt-llm-1", "h100-80gb-sxm"))


def test_ranks_that_exchange_tokens_bring_them_to_buffers():
    steps = steps_of("vllm-0.11", "h100-80gb-sxm", tp=8)
    shard = replace(steps.setting.shard, tp=1, ep=8, sums_experts=False)
    apart = replace(steps, setting=replace(steps.setting, shard=shard))
    assert "expert exchange" in names(apart)
    assert "dispatch" in names(apart)


def test_tiles_that_nobody_tuned_are_slow_in_steps_of_more_tokens_than_experts():
    """Columns of 384, as a rank of four has them: tuned in SGLang for H100, and in vLLM 0.11 not."""
    steps = steps_of("vllm-0.11", "h100-80gb-sxm", tp=4)
    tuned = FrozenDict({"h100-80gb-sxm": FrozenDict({128: (384,)})})
    costs = replace(steps.engine.steps, tuned_experts=tuned)
    known = replace(steps, engine=replace(steps.engine, steps=costs))
    assert layer_seconds(steps, 128) == layer_seconds(known, 128)
    assert 1.1 * layer_seconds(known, 2048) < layer_seconds(steps, 2048)
    assert layer_seconds(steps, 2048) < 2 * layer_seconds(known, 2048)


def test_whole_experts_of_a_rank_are_other_tiles_than_parts_of_all():
    """SGLang has tuned 128 experts of 192 columns on H100, and not 16 of 1,536."""
    cut, whole = (steps_of("sglang-0.5", "h100-80gb-sxm", tp=8, ep=ep) for ep in (1, 8))
    rates = [
        in_place(each.engine.steps, each.setting, each.model, operators_of(each, 1024), 1024)[1]
        for each in (cut, whole)
    ]
    assert [rate.kernels.grouped_compute_rate for rate in rates] == [1.0, 0.5]
