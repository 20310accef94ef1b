"""Layers of unlike kinds: what layers have is added up kind by kind, stage by stage."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.files.frozen import FrozenDict
from rlplan.layout import ModelCut
from rlplan.models import NO_PART, Batch, LayerKind, layer_kinds
from rlplan.parts import cache_bytes_per_token, num_parameters
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_engine, load_model
from rlplan.profiles.jobs.checks import architecture_fault
from rlplan.simulator.columns import columns_of
from rlplan.simulator.costs.layouts import layout_seconds
from rlplan.simulator.costs.pricing import _layer_launch, pass_seconds
from rlplan.simulator.costs.setting import setting_of
from rlplan.simulator.memory.task_memory import layout_memory, passes_memory
from rlplan.simulator.model import kinds_of_stages, shard_parameters
from rlplan.simulator.placed import PlacedTask, PlacedTasks
from rlplan.simulator.stages import task_cost
from tests.hybrids import with_layers
from tests.simulator.cost_jobs import PPO, facts_of, job_of, site_of

UNIFORM = load_model("llama-2-7b")  # 32 layers
LAYOUT = {"tp": 2, "pp": 4, "dp": 2, "micro_batch": 2}


ALIKE = with_layers(UNIFORM, {"one": LayerKind(), "other": LayerKind()}, (16, ("one", "other")))
# The last sixteen layers have an MLP of twice the width.
WIDER = with_layers(
    UNIFORM,
    {"narrow": LayerKind(), "wide": LayerKind(ffn_size=2 * UNIFORM.ffn_size)},
    (16, ("narrow",)),
    (16, ("wide",)),
)


def placed(model, task, **layout):
    job = job_of()
    job = replace(job, models=FrozenDict(dict.fromkeys(job.models, model)))
    engine = "vllm" if task == "actor.generate" else "megatron-core"
    sizes = {"max_running": 8} if task == "actor.generate" else {}
    chosen = TaskPlan(pool="", engine=engine, **(layout | sizes))
    return PlacedTask(PPO[task], chosen, site_of(job, 16), job, facts_of(job_of()))


@pytest.mark.parametrize("task", ["actor.update", "actor.generate", "critic.compute_values"])
def test_two_kinds_that_do_not_differ_cost_and_hold_what_one_does(task):
    sizes = dict(LAYOUT, pp=1, dp=8) if task == "actor.generate" else LAYOUT
    one, two = (placed(model, task, **sizes) for model in (UNIFORM, ALIKE))
    assert task_cost(two).total.seconds == pytest.approx(task_cost(one).total.seconds, rel=1e-12)
    assert two.cached_sequence == one.cached_sequence
    if task != "actor.generate":
        assert passes_memory(two) == passes_memory(one)


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_attention_is_launched_once_more_for_each_part_that_is_handed_round(cp):
    """A layer of one rank, or without attention, has no parts."""
    name = "megatron-core-2025-early"
    sheet = load_engine(name)
    mixers = {"both": LayerKind(), "mlp": LayerKind(attention=NO_PART)}
    task = placed(with_layers(UNIFORM, mixers, (16, ("both", "mlp"))), "actor.update", cp=cp, dp=8)
    task = task.laid_out(replace(task.layout, engine=name))
    setting = setting_of(PlacedTask(task.task, task.layout, task.site, task.job, task.facts))
    found = [_layer_launch(setting, kind) for kind in layer_kinds(task.model).models]
    whole, parts = sheet.layer_launch_seconds, cp * sheet.context_launch_seconds
    assert found == pytest.approx([whole + (parts if cp > 1 else 0.0), whole / 2])


@pytest.mark.parametrize(
    ("direction", "times"), [("forward", 1), ("full", 1), ("attention", 0), ("backward", 0)]
)
def test_sequences_that_are_rotated_one_by_one_wait_for_24_launches_each(direction, times):
    """An H100's sheet has a launch at 5 microseconds; a layer without attention rotates nothing."""
    task = placed(UNIFORM, "actor.update", **LAYOUT)
    batch = Batch(sequences=3, tokens=3000, sequence_tokens=1000, head_tokens=3000)
    mlp, found = replace(UNIFORM, attention=NO_PART), []
    for name in ("megatron-core-2025-early", "megatron-core-2025-early-rope-apart"):
        layout = replace(task.layout, engine=name)
        setting = setting_of(PlacedTask(task.task, layout, task.site, task.job, task.facts))
        passes = [pass_seconds(setting, each, "layer", batch, direction) for each in (UNIFORM, mlp)]
        found.append([each.compute.seconds for each in passes])
    added = [apart - fused for fused, apart in zip(*found, strict=True)]
    assert added == pytest.approx([times * 3 * 24 * 5e-6, 0.0], abs=1e-12)


def test_parameters_and_cache_are_the_sum_over_kinds():
    wide = replace(UNIFORM, ffn_size=2 * UNIFORM.ffn_size)
    assert num_parameters(WIDER) == (num_parameters(UNIFORM) + num_parameters(wide)) / 2
    assert cache_bytes_per_token(WIDER, 2) == cache_bytes_per_token(UNIFORM, 2)


def test_layers_without_attention_keep_no_cache():
    mixers = {"mlp": LayerKind(attention=NO_PART), "attention": LayerKind(feed_forward=NO_PART)}
    model = with_layers(UNIFORM, mixers, (16, ("mlp", "attention")))
    assert cache_bytes_per_token(model, 2) == cache_bytes_per_token(UNIFORM, 2) / 2
    ends = 2 * UNIFORM.embedding_parameters + UNIFORM.hidden_size
    assert num_parameters(model) - ends == (num_parameters(UNIFORM) - ends) / 2


@given(stages=st.sampled_from([1, 2, 3, 4, 5, 8, 32]))
def test_stages_share_out_every_layer_once(stages):
    counts = kinds_of_stages(WIDER, ModelCut(pp=stages))
    assert tuple(map(sum, zip(*counts, strict=True))) == (16, 16)
    shards = [shard_parameters(WIDER, "lm", ModelCut(pp=stages), stage) for stage in range(stages)]
    assert sum(shards) == num_parameters(WIDER)


@settings(max_examples=10, deadline=None)
@given(pp=st.sampled_from([1, 2, 4, 8]), narrow=st.integers(0, 32))
def test_wider_layers_take_longer_and_more_than_narrow_ones(pp, narrow):
    kinds = dict(WIDER.layer_kinds)
    model = with_layers(UNIFORM, kinds, (narrow, ("narrow",)), (32 - narrow, ("wide",)))
    sizes = LAYOUT | {"pp": pp, "dp": 1}
    least, found, most = (
        placed(each, "actor.update", **sizes)
        for each in (UNIFORM, model, replace(UNIFORM, ffn_size=2 * UNIFORM.ffn_size))
    )
    seconds = [task_cost(each).total.seconds for each in (least, found, most)]
    assert seconds == sorted(seconds)
    held = [passes_memory(each) for each in (least, found, most)]
    held_bytes = [each.resident_bytes + each.transient_bytes for each in held]
    assert held_bytes == sorted(held_bytes)


def test_layouts_costed_together_cost_what_each_does_alone():
    layouts = [
        TaskPlan(pool="", engine="megatron-core", tp=2, pp=pp, dp=1, micro_batch=2)
        for pp in (1, 2, 4, 8)
    ]
    some = placed(WIDER, "actor.update", **LAYOUT)
    table = PlacedTasks(columns_of("megatron-core", layouts), some)
    seconds, held = layout_seconds(table), layout_memory(table)
    for row, layout in enumerate(layouts):
        alone = some.laid_out(layout)
        assert seconds[row] == pytest.approx(task_cost(alone).total.seconds, rel=1e-12)
        assert held.row(row) == passes_memory(alone)


def test_the_slowest_stage_need_be_neither_the_first_nor_the_second_nor_the_last():
    kinds = dict(WIDER.layer_kinds)
    third = with_layers(UNIFORM, kinds, (16, ("narrow",)), (8, ("wide",)), (8, ("narrow",)))
    last = with_layers(UNIFORM, kinds, (24, ("narrow",)), (8, ("wide",)))
    sizes = dict(LAYOUT, dp=1)
    seconds = [
        task_cost(placed(each, "actor.update", **sizes)).total.seconds for each in (third, last)
    ]
    assert seconds[0] > task_cost(placed(UNIFORM, "actor.update", **sizes)).total.seconds * 1.2
    assert seconds[0] < seconds[1]  # the last has the head as well


def test_kinds_are_those_of_layers_in_their_order():
    kinds = layer_kinds(WIDER)
    assert [kind.ffn_size for kind in kinds.models] == [11008, 22016]
    assert kinds.counts(15, 18) == (1, 2)
    assert layer_kinds(UNIFORM).models == (UNIFORM,)


@pytest.mark.parametrize(
    ("wrong", "field", "problem"),
    [
        (with_layers(UNIFORM, {"a": LayerKind()}, (31, ("a",))), "layer_runs", "has 31 layers"),
        (with_layers(UNIFORM, {"a": LayerKind()}, (32, ("b",))), "layer_runs", "names 'b'"),
        (replace(ALIKE, layer_kinds=None), "layer_kinds", "is missing"),
        (replace(ALIKE, layer_runs=None), "layer_runs", "is missing"),
    ],
)
def test_layers_that_do_not_add_up_are_refused(wrong, field, problem):
    fault = architecture_fault(wrong)
    assert (fault.field, problem in fault.problem) == (field, True)
