"""A catalogue of two devices: which of them a plan takes is decided with the plan."""

from dataclasses import replace
from functools import cache

import pytest

from rlplan.errors import InfeasibleError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Specs
from rlplan.planner.answers.best_plans import best_front, best_plans
from rlplan.planner.requests.specs import USUAL_HEADROOM, violations
from rlplan.profiles.catalog import ENGINES, load_model
from rlplan.profiles.facts import load_facts
from rlplan.rules import check_plan
from rlplan.simulator.simulate import simulate
from rlplan.workload import Workload

H100, H20 = "h100-80gb-sxm", "h20"
JOB = Job(
    algorithm="grpo",
    models=FrozenDict(dict.fromkeys(("actor", "reference", "reward"), load_model("qwen2.5-1.5b"))),
    workload=Workload(
        prompts=64, samples_per_prompt=2, prompt_tokens=256, response_tokens=1024, updates=2
    ),
    cluster=(
        NodeGroup(gpu=H100, gpus_per_node=2, inter_node_gbps=200.0),
        NodeGroup(gpu=H20, gpus_per_node=2, inter_node_gbps=200.0),
    ),
    engines=Engines(train="megatron-core", generate="vllm"),
    precision="bf16",
)
AHEAD = replace(JOB, specs=Specs(staleness=1))


@cache
def best(objective, job=JOB):
    return best_plans(replace(job, objective=objective), load_facts(job)).plans[0]


@cache
def front(names, job=JOB):
    return best_front(job, load_facts(job), names)


def devices(plan):
    return {pool.device for pool in plan.pools}


@pytest.mark.full
@pytest.mark.parametrize("job", [JOB, AHEAD], ids=["sync", "one-step-off allowed"])
def test_the_ends_of_a_front_are_the_optima_of_the_single_objectives(job):
    points = front(("throughput", "cost"), job).points
    head, last = points[0].candidate.forecast, points[-1].candidate.forecast
    assert head.iteration_seconds == pytest.approx(
        best("throughput", job).forecast.iteration_seconds
    )
    assert last.cost_usd == pytest.approx(best("cost", job).forecast.cost_usd)
    assert "throughput" in points[0].best_in
    assert "cost" in points[-1].best_in


@pytest.mark.full
def test_every_point_is_a_sound_plan_and_the_simulators_own_forecast():
    for point in front(("throughput", "cost", "energy")).points:
        plan, forecast = point.candidate.plan, point.candidate.forecast
        check_plan(plan, ENGINES)
        assert simulate(plan, load_facts(JOB)) == forecast
        assert forecast.feasible
        assert point.gap >= 0


@pytest.mark.full
def test_no_point_beats_another():
    values = [point.values for point in front(("throughput", "cost", "energy")).points]
    for one in values:
        assert not any(
            other != one and all(other[name] <= one[name] for name in one) for other in values
        )


@pytest.mark.full
def test_what_costs_too_much_is_left_unused_and_what_is_cheap_is_taken():
    assert devices(best("cost").plan) == {H20}
    dear = replace(JOB.cluster[1], usd_per_gpu_hour=100.0)
    assert devices(best("cost", replace(JOB, cluster=(JOB.cluster[0], dear))).plan) == {H100}


@pytest.mark.full
def test_training_on_one_device_and_generating_on_another_is_found_where_it_pays():
    """With a limit of money that two H100 break, an H100 trains while two H20 generate."""
    work = replace(JOB.workload, response_tokens=4096)
    limited = replace(JOB, workload=work, specs=Specs(staleness=1, usd_per_hour=12.0))
    found = best("throughput", limited)
    plan = found.plan
    assert (plan.mode, plan.staleness, plan.transition) == ("one-step-off", 1, "two-copies")
    assert plan.pool_of("actor.update").device == H100
    assert plan.pool_of("actor.generate").device == H20
    alone = replace(limited, specs=Specs(usd_per_hour=12.0))
    assert found.forecast.iteration_seconds < best("throughput", alone).forecast.iteration_seconds


@pytest.mark.full
def test_limits_are_kept_and_what_no_plan_keeps_is_told():
    limit = 0.9 * best("throughput").forecast.cost_usd
    specs = Specs(cost_usd=limit)
    kept = best_plans(replace(JOB, specs=specs), load_facts(JOB)).plans[0]
    assert not violations(kept.plan, kept.forecast, specs)
    hard = Specs(iteration_seconds=0.5 * best("throughput").forecast.iteration_seconds)
    with pytest.raises(InfeasibleError, match=r"specs\.iteration_seconds .* would have to be"):
        best_plans(replace(JOB, specs=hard), load_facts(JOB))


def test_winners_leave_a_tenth_of_memory_free_where_nothing_says_how_much():
    best = best_plans(JOB, load_facts(JOB)).plans[0]
    assert best.forecast.free_fraction >= USUAL_HEADROOM - 1e-9
    assert best.plan.job.specs == JOB.specs  # what was not asked for is not written into the plan
