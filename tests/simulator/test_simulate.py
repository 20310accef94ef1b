import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from tests.effort import calls_of

ROOT = Path(__file__).resolve().parents[2]
A100 = "a100-80gb-sxm"
ROLES = ("actor", "critic", "reference", "reward")
INFER = ("critic.compute_values", "reference.compute_log_prob", "reward.compute_reward")


def job(nodes=2):
    found = load_job(ROOT / "examples" / "ppo-7b-16xa100.yaml")
    return replace(found, cluster=(replace(found.cluster[0], nodes=nodes),))


def layouts(pool, gpus, roles):
    """Return TP 8 training and inference, TP 2 generation for the tasks of some roles."""
    found = {}
    if "actor" in roles:
        found["actor.generate"] = TaskPlan(pool=pool, tp=2, dp=gpus // 2, engine="vllm")
    for name in (*INFER, "actor.update", "critic.update"):
        if name.split(".")[0] in roles:
            found[name] = TaskPlan(
                pool=pool,
                tp=8,
                dp=gpus // 8,
                engine="megatron-core",
                micro_batch=2,
                recompute="full" if name.endswith("update") else "none",
                zero=1 if name.endswith("update") else 0,
            )
    return found


def plan(pools, nodes=2, **changes):
    """Return a plan with these pools: pairs of GPUs and roles."""
    tasks, found = {}, []
    for index, (gpus, roles) in enumerate(pools):
        name = f"p{index}"
        found.append(ResourcePool(name=name, device=A100, gpus=gpus, roles=roles))
        tasks |= layouts(name, gpus, roles)
    canonical = ("actor.generate", *INFER, "actor.update", "critic.update")
    order = {
        pool.name: tuple(name for name in canonical if tasks[name].pool == pool.name)
        for pool in found
    }
    return Plan(
        job=job(nodes),
        pools=tuple(found),
        tasks=FrozenDict(tasks),
        order=FrozenDict(order),
        **changes,
    )


def forecast(chosen, **settings):
    return simulate(chosen, load_facts(chosen.job, None), **settings)


COLOCATED = plan([(16, ROLES)])
SPLIT = plan([(8, ("actor", "reference")), (8, ("critic", "reward"))])
STANDALONE = plan([(8, ("actor",)), (8, ("critic", "reference", "reward"))])


def test_a_colocated_plan_runs_its_tasks_one_after_another():
    done = forecast(COLOCATED)
    spans = done.trace.spans
    assert [span.name for span in spans] == [
        "transition", "actor.generate", *INFER, "actor.update", "critic.update",
    ]  # fmt: skip
    assert all(b.start_seconds == a.end_seconds for a, b in itertools.pairwise(spans))
    assert done.iteration_seconds == pytest.approx(sum(span.seconds for span in spans))
    assert done.idle_seconds == {}
    assert sum(done.stage_seconds.values()) == pytest.approx(done.iteration_seconds)


def test_a_split_plan_prepares_and_trains_at_once_and_transfers_between_its_pools():
    done = forecast(SPLIT)
    spans = {(span.name, span.pool): span for span in done.trace.spans}
    assert spans["transfer:sequences", "p1"].start_seconds == pytest.approx(
        spans["actor.generate", "p0"].end_seconds
    )
    assert (
        spans["reference.compute_log_prob", "p0"].start_seconds
        < spans["critic.compute_values", "p1"].end_seconds
    )
    assert spans["actor.update", "p0"].start_seconds < spans["critic.update", "p1"].end_seconds
    moved = {(span.name, span.pool) for span in done.trace.spans if span.activity == "transfer"}
    assert moved == {
        ("transfer:sequences", "p1"),
        ("transfer:log_probs", "p1"),
        ("transfer:reference_log_probs", "p1"),
        ("transfer:values", "p0"),
        ("transfer:scores", "p0"),
    }


def test_a_transition_between_two_pools_holds_both():
    done = forecast(DISAGGREGATED)
    transition = done.trace.spans[0]
    assert (transition.name, transition.pool, transition.activity) == (
        "transition",
        "p1",
        "transition",
    )
    assert done.stage_seconds["transition"] == transition.seconds > 0
    assert "waiting in transition" not in done.idle_seconds


def test_every_task_of_the_forecast_is_in_the_trace():
    done = forecast(SPLIT)
    assert {(task.name, task.pool) for task in done.costs} == {
        (span.name, span.pool) for span in done.trace.spans
    }
    for task in done.costs:
        assert sum(task.parts.values()) == pytest.approx(task.seconds)


def test_the_same_plan_gives_the_same_forecast():
    assert forecast(SPLIT, iterations=2) == forecast(SPLIT, iterations=2)


def test_a_forecast_without_a_profile_says_that_nothing_was_measured():
    assert any("datasheet" in warning for warning in forecast(COLOCATED).warnings)


def test_streaming_takes_less_than_its_tasks_one_after_another():
    found = forecast(replace(DISAGGREGATED, mode="streaming"))
    tasks = sum(cost.seconds for cost in found.costs if cost.activity == "task")
    assert max(found.stage_seconds.values()) < found.iteration_seconds < tasks


def test_generation_cannot_run_ahead_on_the_pool_that_trains():
    with pytest.raises(FileError, match=r"actor\.generate shares pool p0 with actor\.update"):
        forecast(replace(COLOCATED, mode="one-step-off", staleness=1))


DISAGGREGATED = replace(
    plan([(8, ("actor", "critic", "reference", "reward")), (8, ("actor",))]),
    transition="two-copies",
)
DISAGGREGATED = replace(
    DISAGGREGATED,
    tasks=FrozenDict(
        {
            name: replace(layout, pool="p1" if name == "actor.generate" else "p0")
            for name, layout in DISAGGREGATED.tasks.items()
        }
    ),
    order=FrozenDict(
        {
            "p0": tuple(name for name in DISAGGREGATED.tasks if name != "actor.generate"),
            "p1": ("actor.generate",),
        }
    ),
)


def test_generating_ahead_hides_the_shorter_of_generation_and_training():
    together = forecast(DISAGGREGATED)
    ahead = forecast(replace(DISAGGREGATED, mode="one-step-off", staleness=1))
    seconds = {cost.name: cost.seconds for cost in together.costs}
    trained = sum(value for name, value in seconds.items() if "transfer" not in name)
    trained -= seconds["actor.generate"]
    assert ahead.iteration_seconds == pytest.approx(
        max(trained, seconds["transition"] + seconds["actor.generate"]), rel=1e-3
    )
    assert ahead.iteration_seconds < together.iteration_seconds
    assert sum(ahead.stage_seconds.values()) == pytest.approx(ahead.iteration_seconds)
    assert ahead.memory == together.memory
    assert any("up to 1 update" in warning for warning in ahead.warnings)


def test_what_pools_do_in_an_iteration_that_overlaps_with_others_is_all_its_work():
    ahead = forecast(replace(DISAGGREGATED, mode="one-step-off", staleness=1))
    together = forecast(DISAGGREGATED)
    less_idle = together.iteration_seconds - ahead.iteration_seconds
    facts = load_facts(DISAGGREGATED.job, None)
    idle_watts = 16 * facts.device(A100).sheet.idle_watts
    assert together.energy_joules - ahead.energy_joules == pytest.approx(idle_watts * less_idle)
    busy = 2 * ahead.iteration_seconds - sum(ahead.idle_seconds.values())
    assert busy == pytest.approx(
        sum(
            cost.seconds * (2 if cost.name == "transition" else 1)
            for cost in ahead.costs
            if "transfer" not in cost.name
        )
    )


def test_a_plan_without_a_layout_for_a_task_is_refused():
    tasks = {name: layout for name, layout in COLOCATED.tasks.items() if name != "actor.update"}
    with pytest.raises(FileError, match=r"tasks\.actor\.update: is missing"):
        forecast(replace(COLOCATED, tasks=FrozenDict(tasks)))


@pytest.mark.parametrize("nodes", [2, 16])
def test_a_simulation_is_a_small_effort_on_any_number_of_nodes(nodes):
    half = nodes * 4
    chosen = plan([(half, ("actor", "reference")), (half, ("critic", "reward"))], nodes)
    facts = load_facts(chosen.job, None)
    assert calls_of(lambda: simulate(chosen, facts)) < 200_000
    assert calls_of(lambda: simulate(chosen, facts)) < 20_000  # costs are remembered
