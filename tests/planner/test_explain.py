from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import InfeasibleError
from rlplan.files.frozen import FrozenDict
from rlplan.job import NO_SPECS, Rewards
from rlplan.plan import TaskDraft
from rlplan.planner.answers.best_plans import best_plans
from rlplan.planner.answers.explain import nearest_fit
from rlplan.planner.exact.infeasibility import infeasibility_reason, shortage_of
from rlplan.planner.exact.space import Space
from rlplan.planner.layouts.settings import PinnedCut, PoolCuts
from rlplan.planner.placements.partitions import placed_roles
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.planner.search import search
from rlplan.profiles.catalog import ENGINES, load_engine, load_job
from rlplan.profiles.facts import load_facts
from rlplan.rules import check_plan
from rlplan.simulator.placed import site_at
from rlplan.simulator.simulate import simulate
from tests.planner.brute_force import facts_with
from tests.planner.sound_plans import A100, plan_on

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ppo-7b-16xa100.yaml"
ROLES = ("actor", "critic", "reference", "reward")


@pytest.fixture(scope="module")
def job():
    """Return four Llama-2-7B on one node of eight A100."""
    example = load_job(EXAMPLE)
    return replace(example, cluster=(replace(example.cluster[0], nodes=1),))


def colocated(job, *, micro_batch=1, recompute="full", zero=1, tp=8, dp=1, infer_batch=8):
    sizes = {"tp": tp, "dp": dp}
    train = {**sizes, "micro_batch": micro_batch, "recompute": recompute, "zero": zero}
    infer = {**sizes, "micro_batch": infer_batch}
    return plan_on(
        job,
        {"p0": (8, ROLES)},
        {
            "actor.generate": (
                "p0",
                {"tp": 2, "dp": 4, "max_running": 256, "memory_fraction": 0.5},
            ),
            "critic.compute_values": ("p0", infer),
            "reference.compute_log_prob": ("p0", infer),
            "reward.compute_reward": ("p0", infer),
            "actor.update": ("p0", train),
            "critic.update": ("p0", train),
        },
        transition="all-gather" if tp < 2 else "hybridflow",
    )


def changed(plan, words):
    """Return the plan with the change that the words name."""
    task, change = words.split(": ")
    field, value = change.split(" ")
    kept = plan.tasks[task]
    value = type(getattr(kept, field))(value)
    return replace(plan, tasks=plan.tasks.with_item(task, replace(kept, **{field: value})))


def test_a_micro_batch_too_large_is_told_to_recompute_or_to_shrink(job):
    facts = load_facts(job)
    plan = colocated(job, micro_batch=128)
    plan = replace(
        plan,
        tasks=plan.tasks.with_item(
            "actor.update", replace(plan.tasks["actor.update"], recompute="none")
        ).with_item("critic.update", replace(plan.tasks["critic.update"], micro_batch=1)),
    )
    check_plan(plan, ENGINES)
    assert not simulate(plan, facts).feasible
    words = nearest_fit(plan, facts)
    assert words is not None
    assert words.startswith("actor.update: micro_batch ")
    assert simulate(changed(plan, words), facts).feasible


def test_an_inference_batch_too_large_is_told_to_shrink(job):
    facts = load_facts(job)
    plan = colocated(job)
    name = "reference.compute_log_prob"
    plan = replace(
        plan, tasks=plan.tasks.with_item(name, replace(plan.tasks[name], micro_batch=1024))
    )
    words = nearest_fit(plan, facts)
    assert words is not None
    assert words.startswith(f"{name}: micro_batch ")
    assert simulate(changed(plan, words), facts).feasible


def test_two_faults_at_once_have_no_single_change(job):
    plan = colocated(job, micro_batch=128, recompute="none", infer_batch=1024)
    assert not simulate(plan, load_facts(job)).feasible
    assert nearest_fit(plan, load_facts(job)) is None


def space_of(job, memory_bytes):
    return Space(job, facts_with(job, memory_bytes), {}, "throughput", NO_SPECS)


def test_a_set_that_needs_too_much_memory_is_named_with_what_it_lacks(job):
    placement = (placed_roles(job),)
    reason = infeasibility_reason(placement, space_of(job, 20 * 2**30))
    assert reason.startswith(
        "{actor, critic, reference, reward} on 8 x a100-80gb-sxm needs at least "
    )
    assert "20.0 GiB" in reason


def test_a_set_without_room_for_a_sequence_says_so(job):
    placement = (placed_roles(job),)
    site = site_at(job, A100, 0, 8)
    needed = shortage_of(placement[0], site, space_of(job, 2**40)).needed_bytes
    reason = infeasibility_reason(placement, space_of(job, needed + 2**20))
    assert reason == (
        "{actor, critic, reference, reward} on 8 x a100-80gb-sxm leaves no room for the KV cache of "
        "one sequence"
    )


def test_pins_that_no_layout_keeps_are_named_where_memory_is_not_what_is_short(job):
    pins = {"actor.update": TaskDraft(token_budget=5000, micro_batch=4)}
    space = Space(job, facts_with(job, 2**40), pins, "throughput", NO_SPECS)
    reason = infeasibility_reason((placed_roles(job),), space)
    assert reason == (
        "actor cannot be laid out on 8 x a100-80gb-sxm: no layout keeps actor.update: micro_batch 4, "
        "token_budget 5000"
    )


def test_pins_of_two_passes_that_share_no_layout_are_named_as_well(job):
    grpo = replace(
        job,
        algorithm="grpo",
        models=FrozenDict({role: job.models[role] for role in ("actor", "reference")}),
        rewards=Rewards(function="exact_match"),
        old_log_prob="trainer",
    )
    pins = {"actor.update": TaskDraft(token_budget=5000, micro_batch=4)}
    space = Space(grpo, facts_with(grpo, 2**40), pins, "throughput", NO_SPECS)
    reason = infeasibility_reason((placed_roles(grpo),), space)
    assert reason == (
        "{actor, reference} on 8 x a100-80gb-sxm has no layout of actor that keeps "
        "actor.update: micro_batch 4, token_budget 5000"
    )


def test_an_engine_that_no_layout_keeps_is_not_called_short_of_cache(job):
    pins = {"actor.generate": TaskDraft(tp=3)}
    space = Space(job, facts_with(job, 2**40), pins, "throughput", NO_SPECS)
    reason = infeasibility_reason((placed_roles(job),), space)
    assert reason.endswith("has no layout of generation that keeps what is pinned")


def test_nothing_is_called_pinned_where_nothing_is(job):
    facts = facts_with(job, 2**30)
    pinned = Pinned(asked=AskedSchedules(modes=("one-step-off",)))
    with pytest.raises(InfeasibleError) as mode_alone:
        best_plans(job, facts, pinned=pinned)
    assert "pinned" not in str(mode_alone.value)
    assert "in mode one-step-off fits its cluster" in str(mode_alone.value)
    pinned = Pinned(tasks=FrozenDict({"actor.update": TaskDraft(tp=2)}))
    with pytest.raises(InfeasibleError) as kept:
        search(job, facts, pinned=pinned)
    assert "that keeps what is pinned fits its cluster" in str(kept.value)


@pytest.mark.parametrize("zero", [2, 3])
def test_a_pinned_stage_of_sharding_is_laid_out_on_one_rank(zero):
    job = load_job(EXAMPLE)
    engine = load_engine("fsdp2-hf")
    asked = PinnedCut(TaskDraft(zero=zero))
    cuts = PoolCuts(job.architecture("actor"), engine, job, 1, 1, asked)
    assert {sizes.zero for sizes in cuts.train()} == {zero}
    assert zero in {sizes.zero for sizes in cuts.infer()} or zero != 3


def test_more_pools_than_gpus_cannot_be_divided(job):
    small = replace(job, cluster=(replace(job.cluster[0], gpus_per_node=2),))
    placement = tuple((role,) for role in placed_roles(small))
    reason = infeasibility_reason(placement, space_of(small, 2**40))
    assert reason == "4 pools are more than the cluster's 2 GPUs"
