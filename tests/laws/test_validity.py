"""Planner, simulator and executor agree on which plans are valid: random plans near valid ones."""

from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlplan.errors import CapabilityError, FileError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.files.frozen import FrozenDict
from rlplan.plan import PlanDraft, PoolDraft, ResourcePool, TaskDraft
from rlplan.profiles.catalog import ENGINES
from rlplan.profiles.facts import load_facts
from rlplan.rules import refusals
from rlplan.simulator.simulate import simulate
from rlplan.workload import Environment
from tests.executor.plans import ALL_ROLES, TINY, make_job, make_plan
from tests.golden.kept import kept_plans

EXPERTS = replace(TINY, family="mixtral", num_experts=4, experts_per_token=2, moe_ffn_size=16)
APART = {"p0": (4, ALL_ROLES), "generator": (2, ("actor",))}
KEPT_EVERY = 10
TOOL = Environment(
    name="tool",
    source="safe_tool.py:Tool",
    turns=2,
    observation_tokens=2,
    step_seconds=0.01,
    cpu_cores=0.0,
)
sizes = st.sampled_from([1, 2, 4])
CHANGES = {
    "tp": sizes,
    "pp": sizes,
    "dp": st.sampled_from([1, 2, 3, 4, 8]),
    "cp": sizes,
    "ep": sizes,
    "zero": st.sampled_from([0, 1, 2, 3]),
    "chunks": sizes,
    "micro_batch": st.sampled_from([1, 2, 3, 8]),
    "recompute": st.sampled_from(["none", "selective", "alternate", "full", "full-offload"]),
    "token_budget": st.sampled_from([None, 1, 64]),
    "shard_ranks": st.sampled_from([None, 1, 2]),
    "expert_tp": st.sampled_from([None, 1, 2]),
    "offload": st.booleans(),
    "engine": st.sampled_from(["torch-3d", "torch-3d-sp", "torch-static", "fsdp2", "vllm", "none"]),
    "pool": st.sampled_from(["p0", "generator", "host", "none"]),
}


def on_engines(plan):
    """Return a plan of the executor's tests with the engines that it runs by default."""
    engines = {"generate": "torch-static", "compute_reward": "python"}
    tasks = {
        name: replace(each, engine=engines.get(name.partition(".")[2], "torch-3d"))
        for name, each in plan.tasks.items()
    }
    rewards = replace(plan.job.rewards, function_seconds_per_sample=1e-4)
    job = replace(plan.job, precision="fp32", rewards=rewards)
    reward = tasks.get("reward.compute_reward")
    if reward is not None:
        tasks["reward.compute_reward"] = replace(reward, engine="torch-3d")
    return replace(plan, job=job, tasks=FrozenDict(tasks))


@cache
def valid_plans():
    """Return valid plans with their facts: what the executor's tests run, and what is kept."""
    job, group = make_job(), make_job("grpo", samples_per_prompt=2)
    experts, pool = make_job(model=EXPERTS), {"p0": (4, ALL_ROLES)}
    apart = make_plan(job, APART, transition="two-copies")
    own = [
        make_plan(job, pool, tp=2),
        make_plan(job, pool, tp=2, zero=1, transition="all-gather"),
        make_plan(job, pool, pp=2, pp_gen=1, micro_batch=2),
        make_plan(job, pool, cp=2, zero=2),
        make_plan(group, {"p0": (2, ("actor",)), "p1": (2, ("reference",))}),
        make_plan(experts, pool, ep=2),
        make_plan(experts, pool, tp=2, ep=2, tp_gen=1),
        apart,
        replace(apart, mode="one-step-off", staleness=1),
    ]
    found = [(each, load_facts(each.job)) for each in map(on_engines, own)]
    return (*found, *kept_plans()[::KEPT_EVERY])


@st.composite
def near_valid_plans(draw):
    """Draw a valid plan with up to three changes, each of which may or may not leave it valid."""
    plan, facts = draw(st.sampled_from(valid_plans()))
    for _ in range(draw(st.integers(0, 3))):
        plan = draw(st.sampled_from(KINDS))(draw, plan)
    return plan, facts


def change_a_field(draw, plan):
    field = draw(st.sampled_from(sorted(CHANGES)))
    name = draw(st.sampled_from(sorted(plan.tasks)))
    layout = replace(plan.tasks[name], **{field: draw(CHANGES[field])})
    return replace(plan, tasks=plan.tasks.with_item(name, layout))


def change_a_field_of_a_role(draw, plan):
    field = draw(st.sampled_from(sorted(CHANGES)))
    role, value = draw(st.sampled_from(sorted(plan.tasks))).split(".")[0], draw(CHANGES[field])
    tasks = {
        name: replace(layout, **{field: value}) if name.startswith(f"{role}.") else layout
        for name, layout in plan.tasks.items()
    }
    return replace(plan, tasks=FrozenDict(tasks))


def trade_data_for_model_parallelism(draw, plan):
    field = draw(st.sampled_from(["tp", "pp", "cp", "ep"]))
    role = draw(st.sampled_from(sorted(plan.tasks))).split(".")[0]
    tasks = dict(plan.tasks)
    for name, layout in tasks.items():
        if name.startswith(f"{role}.") and layout.dp % 2 == 0:
            dp = layout.dp if field == "ep" else layout.dp // 2
            tasks[name] = replace(layout, dp=dp, **{field: 2 * getattr(layout, field)})
    return replace(plan, tasks=FrozenDict(tasks))


def change_how_weights_move(draw, plan):
    names = ["hybridflow", "hybridflow-v", "all-gather", "two-copies", "none"]
    names += ["verl-naive", "verl-nccl", "checkpoint-engine"]
    return replace(plan, transition=draw(st.sampled_from(names)))


def change_the_mode(draw, plan):
    mode = draw(st.sampled_from(["sync", "one-step-off", "streaming", "async"]))
    staleness = draw(st.sampled_from([int(mode != "sync"), 0, 1, 4]))
    in_flight = draw(st.sampled_from(["drain", "keep", "recompute"]))
    sync_every = draw(st.sampled_from([1, 1, 2]))
    return replace(plan, mode=mode, staleness=staleness, in_flight=in_flight, sync_every=sync_every)


def change_a_pool(draw, plan):
    pools = list(plan.pools)
    index = draw(st.integers(0, len(pools) - 1))
    change = draw(
        st.sampled_from(
            [
                {"gpus": draw(st.sampled_from([1, 2, 4, 64, 256]))},
                {"device": draw(st.sampled_from(["cpu", "host", "h20"]))},
                {"roles": pools[index].roles[1:]},
                {"roles": (*pools[index].roles, "actor", "cost")},
                {"name": "p0"},
            ]
        )
    )
    pools[index] = replace(pools[index], **change)
    return replace(plan, pools=tuple(pools))


def drop_or_double_something(draw, plan):
    name = draw(st.sampled_from(sorted(plan.tasks)))
    kept = {each: layout for each, layout in plan.tasks.items() if each != name}
    pool = draw(st.sampled_from(plan.pools))
    changes = [
        {"tasks": FrozenDict(kept)},
        {"tasks": plan.tasks.with_item("critic.compute_nothing", plan.tasks[name])},
        {"pools": tuple(each for each in plan.pools if each != pool)},
        {"pools": (*plan.pools, ResourcePool(name="more", device="cpu", gpus=1, roles=("actor",)))},
        {"order": plan.order.with_item(plan.pools[0].name, (name,))},
        {"order": plan.order.with_item("nowhere", ())},
    ]
    return replace(plan, **draw(st.sampled_from(changes)))


def shuffle_an_order(draw, plan):
    name = draw(st.sampled_from(sorted(plan.order)))
    return replace(
        plan, order=plan.order.with_item(name, tuple(draw(st.permutations(plan.order[name]))))
    )


def change_the_work(draw, plan):
    changes: list[dict[str, Any]] = [
        {"prompts": 6},
        {"updates": 3},
        {"samples_per_prompt": 3},
        {"over_provisioning": 1.5},
        {"over_sampling": 2},
        {"environments": (TOOL,)},
        {"environments": (replace(TOOL, inference="inline"),), "over_provisioning": 1.5},
    ]
    change = draw(st.sampled_from(changes))
    return replace(plan, job=replace(plan.job, workload=replace(plan.job.workload, **change)))


def change_the_models(draw, plan):
    change = draw(
        st.sampled_from(
            [
                {"num_layers": 3},
                {"num_heads": 6, "num_kv_heads": 6},
                {"ffn_size": 66, "moe_ffn_size": 66},
                {"gated_mlp": False},
                {"family": "qwen2"},
            ]
        )
    )
    models = {role: replace(model, **change) for role, model in plan.job.models.items()}
    return replace(plan, job=replace(plan.job, models=FrozenDict(models)))


KINDS = (
    change_a_field,
    change_a_field_of_a_role,
    trade_data_for_model_parallelism,
    change_how_weights_move,
    change_the_mode,
    change_a_pool,
    drop_or_double_something,
    shuffle_an_order,
    change_the_work,
    change_the_models,
)
often = settings(suppress_health_check=[HealthCheck.too_slow])


def outcome(action):
    """Return how an action ends: its refusal, or nothing."""
    try:
        action()
    except (FileError, CapabilityError) as error:
        return error
    return None


def test_the_plans_that_random_ones_are_near_to_are_valid():
    assert [
        [refusal.field for refusal in refusals(plan, plan.job, ENGINES)]
        for plan, _ in valid_plans()
    ] == [[]] * len(valid_plans())


@often
@given(near_valid_plans())
def test_what_is_valid_the_executor_runs_or_refuses_for_a_named_capability(drawn):
    plan, _ = drawn
    refused = outcome(lambda: check_runnable(plan))
    broken = {refusal.rule.name for refusal in refusals(plan, plan.job)}
    if broken:
        assert isinstance(refused, FileError)
    else:
        assert refused is None or (isinstance(refused, CapabilityError) and refused.capability)


@pytest.mark.full
@often
@given(near_valid_plans())
def test_the_simulator_forecasts_what_is_valid_and_nothing_else(drawn):
    plan, facts = drawn
    refused = outcome(lambda: simulate(plan, facts))
    if any(refusals(plan, plan.job, ENGINES)):
        assert isinstance(refused, FileError)
    else:
        assert refused is None or (isinstance(refused, CapabilityError) and refused.capability)


def part_of(draw, given_part, kind, keep=()):
    """Return a part of a draft with some of what is given left open."""
    names = [field.name for field in fields(kind)]
    values = {name: getattr(given_part, name) for name in names}
    return kind(
        **{name: value for name, value in values.items() if name in keep or draw(st.booleans())}
    )


@often
@given(near_valid_plans(), st.data())
def test_a_draft_is_refused_only_where_every_plan_that_fills_it_is(drawn, data):
    plan, _ = drawn
    # An open device is one of the cluster's, so that host pools say what they are.
    kept = {pool: ("name", "roles", *(["device"] if pool.is_host else [])) for pool in plan.pools}
    draft = PlanDraft(
        job="job.yaml",
        pools=tuple(part_of(data.draw, pool, PoolDraft, kept[pool]) for pool in plan.pools),
        tasks=FrozenDict(
            {
                name: part_of(data.draw, layout, TaskDraft, ("pool",))
                for name, layout in plan.tasks.items()
                if name == "actor.generate" or data.draw(st.booleans())
            }
        ),
        mode=data.draw(st.sampled_from([None, plan.mode])),
        transition=data.draw(st.sampled_from([None, plan.transition])),
    )
    refused = [(each.field, each.problem.words) for each in refusals(draft, plan.job, ENGINES)]
    assert not refused or any(refusals(plan, plan.job, ENGINES)), refused
