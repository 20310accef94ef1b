"""Layouts that run in production are valid, and what is not says which rule, with both numbers."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlplan.errors import InfeasibleError
from rlplan.files.frozen import FrozenDict
from rlplan.job import NodeGroup
from rlplan.layout import ModelCut, layers_of_stages
from rlplan.models import Attention, Batch, Collective, Shard
from rlplan.parts import expert_parameters, layer_parameters, num_parameters
from rlplan.plan import PlanDraft, PoolDraft, TaskDraft
from rlplan.planner.requests.drafts import pinned_parts
from rlplan.planner.search import search
from rlplan.profiles.catalog import ENGINES, load_job, load_model
from rlplan.profiles.facts import load_facts
from rlplan.rules import check_plan, refusals
from rlplan.simulator.model import layer_operators
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.simulator.stages import task_cost, task_memory
from tests.planner.sound_plans import plan_on

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
H100 = "h100-80gb-sxm"


def grpo(model, nodes, **work):
    """Return GRPO with one model in both roles on nodes of eight H100."""
    job = load_job(EXAMPLES / "grpo-qwen2.5-7b-8xh100.yaml")
    return replace(
        job,
        models=FrozenDict(dict.fromkeys(job.models, load_model(model))),
        workload=replace(job.workload, **work),
        cluster=(NodeGroup(gpu=H100, gpus_per_node=8, nodes=nodes, inter_node_gbps=3200),),
    )


def colocated(job, train, generate):
    """Return a plan of all roles on all GPUs."""
    infer = {name: size for name, size in train.items() if name not in ("zero", "recompute")}
    return plan_on(
        job,
        {"p0": (job.gpus, ("actor", "reference")), "host": (16, ("rule",))},
        {
            "actor.generate": ("p0", generate),
            "reference.compute_log_prob": ("p0", infer),
            "rule.compute_reward": ("host", {"dp": 16}),
            "actor.update": ("p0", train),
        },
        device=H100,
        transition="all-gather",
    )


def refused(plan):
    """Return what the rules refuse of a plan, in words."""
    return [f"{each.field}: {each.problem.words}" for each in refusals(plan, plan.job, ENGINES)]


def test_sixteen_prompts_of_32_samples_are_shared_out_to_32_ranks():
    work = {"prompts": 16, "samples_per_prompt": 32, "updates": 1}
    job = grpo("qwen3-30b-a3b", 4, **work)
    train = {"dp": 32, "ep": 8, "zero": 1, "recompute": "full"}
    plan = colocated(job, train, {"tp": 2, "dp": 16})
    check_plan(plan, ENGINES)
    forecast = simulate(plan, load_facts(job))
    assert forecast.iteration_seconds > 0
    one_more = replace(job, workload=replace(job.workload, prompts=17))
    assert simulate(replace(plan, job=one_more), load_facts(job)).iteration_seconds > (
        forecast.iteration_seconds
    )


def test_generation_crosses_nodes_where_its_engine_does_and_training_does_not():
    job = grpo("llama-2-7b", 4, prompts=64, samples_per_prompt=8, updates=1)
    train = {"tp": 4, "dp": 8, "zero": 1, "recompute": "full"}
    plan = colocated(job, train, {"tp": 32})
    assert not refused(plan)
    beyond = colocated(job, train | {"tp": 32, "dp": 1}, {"tp": 32})
    words = ["actor.update", "reference.compute_log_prob"]
    assert sorted(refused(beyond)) == [f"tasks.{name}.tp: leaves the node" for name in words]


def test_more_ranks_than_kv_heads_hold_copies_of_them():
    job = grpo("llama-3.1-70b", 2, prompts=64, samples_per_prompt=8, updates=1)
    train = {"tp": 8, "pp": 2, "zero": 1, "recompute": "full"}
    plan = colocated(job, train, {"tp": 16})
    assert not refused(plan)
    generate = plan.tasks["actor.generate"]
    three = plan.tasks.with_item("actor.generate", replace(generate, tp=12))
    assert refused(replace(plan, tasks=three))[0] == (
        "tasks.actor.generate.tp: does not divide the 64 heads and 8 KV heads of llama-3.1-70b"
    )


@pytest.mark.full
def test_a_batch_that_does_not_divide_is_about_as_fast_as_the_next_that_does():
    seconds = [
        search(job, load_facts(job)).plans[0].forecast.iteration_seconds
        for job in (grpo("qwen2.5-0.5b", 1, prompts=count, updates=1) for count in (125, 128))
    ]
    assert seconds[0] <= seconds[1]


@given(st.integers(1, 128), st.integers(1, 32), st.integers(0, 4), st.integers(0, 4))
def test_stages_have_all_layers_between_them_and_the_ends_what_is_said(layers, stages, first, last):
    between = stages - (first > 0) - (last > 0)
    assume(between > 0 and layers - first - last >= between)
    found = layers_of_stages(layers, stages, first, last)
    assert len(found) == stages
    assert sum(found) == layers
    assert first in (0, found[0])
    assert last in (0, found[-1])
    inner = found[first > 0 : stages - (last > 0)]
    assert max(inner) - min(inner) <= 1
    assert list(inner) == sorted(inner, reverse=True)


def test_94_layers_run_on_eight_stages_and_shorter_ends_make_them_faster():
    assert layers_of_stages(94, 8, 11, 11) == (11, 12, 12, 12, 12, 12, 12, 11)
    model = replace(load_model("qwen3-8b"), num_layers=94)
    job = grpo("qwen3-8b", 4, prompts=128, samples_per_prompt=8, updates=1)
    job = replace(job, models=FrozenDict(dict.fromkeys(job.models, model)))
    train = {"tp": 2, "pp": 8, "dp": 2, "zero": 1, "recompute": "full", "micro_batch": 1}
    plan = colocated(job, train, {"tp": 8, "dp": 4})
    shorter = colocated(
        job, train | {"first_stage_layers": 11, "last_stage_layers": 9}, {"tp": 8, "dp": 4}
    )
    seconds = []
    for each in (plan, shorter):
        check_plan(each, ENGINES)
        forecast = simulate(each, load_facts(job))
        seconds.append(forecast.stage_seconds["training"])
    assert seconds[1] < seconds[0]


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_ranks_hold_all_experts_between_them_however_they_are_cut(expert_tp, ep):
    model = load_model("qwen3-30b-a3b")
    whole = layer_parameters(model, ModelCut(tp=4))
    attention = whole - expert_parameters(model, ModelCut(tp=4))
    cut = layer_parameters(model, ModelCut(tp=4, ep=ep, expert_tp=expert_tp))
    assert (cut - attention) * ep * expert_tp == expert_parameters(model)


def test_experts_are_shared_out_over_tensor_parallel_ranks_too():
    job = grpo("qwen3-30b-a3b", 4, prompts=64, samples_per_prompt=8, updates=1)
    train = {"tp": 4, "cp": 2, "dp": 4, "ep": 32, "expert_tp": 1, "zero": 1, "recompute": "full"}
    plan = colocated(job, train, {"tp": 8, "dp": 4, "ep": 32, "expert_tp": 1})
    check_plan(plan, ENGINES)
    assert simulate(plan, load_facts(job)).iteration_seconds > 0
    assert refused(colocated(job, train | {"expert_tp": 2}, {"tp": 8, "dp": 4})) == [
        f"tasks.{name}.ep: x expert_tp 2 = 64 does not divide tp 4 x cp 2 x dp 4 = 32"
        for name in ("reference.compute_log_prob", "actor.update")
    ]


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from([1, 4]), st.sampled_from([1, 2]))
def test_ranks_keep_all_optimizer_states_once_however_experts_are_shared_out(ep, tp, cp):
    job = grpo("qwen3-30b-a3b", 4, prompts=64, samples_per_prompt=8, updates=1)
    train = {"tp": tp, "cp": cp, "dp": 32 // tp // cp, "ep": ep, "expert_tp": 1, "zero": 1}
    plan = colocated(job, train, {"tp": 2, "dp": 16})
    placed = PlacedPlan(plan, load_facts(job)).tasks["actor.update"]
    kept = task_memory(placed).resident["actor optimizer states"] * job.gpus
    whole = num_parameters(placed.model) * placed.formats.optimizer_bytes
    copied = 2 * tp * num_parameters(replace(placed.model, num_experts=1)) * 12
    assert whole * 0.999 <= kept <= whole + copied  # norms and routers are on every rank


def test_hybrid_sharding_keeps_what_a_group_of_its_size_does_and_reduces_among_groups():
    job = grpo("qwen2.5-7b", 4, prompts=64, samples_per_prompt=8, updates=1)
    job = replace(job, engines=replace(job.engines, train="fsdp2"))
    train = {"dp": 32, "zero": 3, "recompute": "full"}
    tasks = [
        PlacedPlan(colocated(job, train | more, {"tp": 2, "dp": 16}), load_facts(job)).tasks
        for more in ({}, {"shard_ranks": 8})
    ]
    whole, grouped = (task_memory(each["actor.update"]) for each in tasks)
    states = "actor optimizer states"
    assert grouped.resident[states] == pytest.approx(4 * whole.resident[states], rel=1e-6)
    gathers = [dict(task_cost(each["actor.update"]).parts)["weight gathers"] for each in tasks]
    assert gathers[1].seconds < gathers[0].seconds


def test_ulysses_exchanges_heads_where_a_gather_exchanges_keys_and_values():
    model, batch = (
        load_model("llama-2-7b"),
        Batch(sequences=1, tokens=65536, sequence_tokens=65536, head_tokens=65536),
    )
    found = {}
    for way in ("gather", "ulysses"):
        shard = Shard(cp=8, context_exchange=way)
        operators = layer_operators(model, shard, batch)
        exchange = [
            each for each in operators if isinstance(each, Collective) and each.group == "cp"
        ]
        (attention,) = (each for each in operators if isinstance(each, Attention))
        found[way] = sum(each.num_bytes for each in exchange), attention
    bytes_of_heads = 65536 * 4096 * 2
    assert found["gather"][0] == 2 * bytes_of_heads
    assert found["ulysses"][0] == 4 * bytes_of_heads / 8
    assert found["ulysses"][1].q_heads == 4
    assert found["ulysses"][1].query_tokens == 65536


@pytest.mark.full
def test_what_is_pinned_is_searched_whatever_a_search_lists():
    job = grpo("qwen2.5-0.5b", 4, prompts=64, samples_per_prompt=8, updates=1)
    pool = PoolDraft(roles=("actor", "reference"), gpus=24)
    cut = TaskDraft(pp=3, last_stage_layers=6)
    draft = PlanDraft(job="", pools=(pool,), tasks=FrozenDict({"actor.update": cut}))
    best = search(job, load_facts(job), pinned=pinned_parts(draft, job)).plans[0]
    update = best.plan.tasks["actor.update"]
    assert (update.gpus, update.pp, update.last_stage_layers) == (24, 3, 6)


def test_a_pool_of_more_gpus_than_sequences_says_both_numbers():
    job = grpo("qwen2.5-7b", 4, prompts=1, samples_per_prompt=2, updates=1)
    job = replace(job, engines=replace(job.engines, train="fsdp2"))
    draft = PlanDraft(job="", pools=(PoolDraft(roles=("actor", "reference"), gpus=24),))
    words = "actor, reference cannot be laid out on 24 x h100-80gb-sxm: dp is at least 6, and it has 2 sequences"
    with pytest.raises(InfeasibleError, match=words):
        search(job, load_facts(job), pinned=pinned_parts(draft, job))
