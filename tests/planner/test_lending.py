"""Lending in searches: proposed only where it is better, never worse for it, and what a deadline costs."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import MissingFactError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Failures, Specs, Spot
from rlplan.plan import Lending
from rlplan.planner.answers import variants
from rlplan.planner.answers.run_limits import deadline_price
from rlplan.planner.answers.variants import expected, on_spot_nodes, with_lending
from rlplan.planner.requests.specs import run_seconds, spec_values, with_deadline
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts
from rlplan.results.forecast import Candidate, SearchResult
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.spot import stopping_parts
from tests.simulator.test_streaming_plans import apart

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "grpo-qwen2.5-7b-8xh100.yaml"


@pytest.fixture(autouse=True)
def few_ways(monkeypatch):
    monkeypatch.setattr(variants, "WAYS_TO_LEND", (Lending(until=1.0), Lending(to=("training",))))


def result(*plans):
    """Return the result of a search that found these plans."""
    found = []
    for plan in plans:
        forecast = simulate(plan, load_facts(plan.job))
        found.append(
            Candidate(plan=plan, forecast=forecast, loses_seconds=0.0, loses_to=FrozenDict())
        )
    found.sort(key=lambda each: each.forecast.iteration_seconds)
    return SearchResult(
        plans=tuple(found), infeasible=(), considered=FrozenDict(), pruned=FrozenDict(),
        bound_seconds=0.5 * found[0].forecast.iteration_seconds, gap=0.5, search_seconds=0.0,
        profile="datasheet",
    )  # fmt: skip


def streaming():
    """Return a plan that streams, with as much memory left as searches leave."""
    plan = apart("streaming", samples=1, updates=1)
    generate = replace(plan.tasks["actor.generate"], memory_fraction=0.8)
    return replace(plan, tasks=plan.tasks.with_item("actor.generate", generate))


def test_lending_allowed_is_never_worse_and_what_lends_is_said_to_be_bounded_by_nothing():
    plan = streaming()
    found = result(plan)
    lent = with_lending(found, plan.job, load_facts(plan.job))
    best, before = lent.plans[0], found.plans[0]
    assert best.forecast.iteration_seconds <= before.forecast.iteration_seconds
    assert best.forecast.feasible
    if best.plan.lending is None:
        assert (lent.gap, lent.bound_seconds) == (found.gap, found.bound_seconds)
    else:
        assert (lent.gap, lent.bound_seconds) == (1.0, 0.0)
    assert "idle GPUs lent" in lent.space


def test_nothing_is_tried_once_a_search_is_out_of_time():
    plan = streaming()
    found = result(plan)
    late = with_lending(found, plan.job, load_facts(plan.job), seconds=-1.0)
    assert [each.plan for each in late.plans] == [plan]
    assert late.considered["plans that lend"] == 0
    assert late.space.endswith("tried on 1 of the plans found, as far as there was time")


def test_lending_is_tried_on_plans_that_stream_alone():
    plan = replace(streaming(), mode="sync", staleness=0.0)
    found = result(plan)
    lent = with_lending(found, plan.job, load_facts(plan.job))
    assert [each.plan for each in lent.plans] == [each.plan for each in found.plans]


@pytest.mark.full
def test_a_limit_never_improves_what_lending_finds():
    plan = streaming()
    facts, found = load_facts(plan.job), result(plan)
    free = with_lending(found, plan.job, facts).plans[0].forecast.iteration_seconds
    limited = replace(plan.job, specs=Specs(memory_headroom_fraction=0.2))
    tight = with_lending(found, limited, facts).plans[0].forecast.iteration_seconds
    assert tight >= free


def test_a_run_takes_its_iterations_with_what_is_lost():
    plan = streaming()
    spot = Spot(loss_every_seconds=600.0, replacement_seconds=60.0, start_seconds=30.0)
    group = replace(plan.job.cluster[0], gpus_per_node=2, usd_per_gpu_hour=1.0)
    job = replace(plan.job, iterations=100, cluster=(group, replace(group, spot=spot)))
    on_spot = replace(plan, job=job)
    steady = replace(plan, job=replace(job, cluster=(group, group)))
    lossy, whole = (simulate(each, load_facts(each.job)) for each in (on_spot, steady))
    assert run_seconds(steady, whole) == pytest.approx(100 * whole.iteration_seconds)
    assert run_seconds(on_spot, lossy) == lossy.spot.run_seconds > run_seconds(steady, whole)
    assert spec_values(on_spot, lossy)["run_seconds"] == lossy.spot.run_seconds


def test_a_deadline_limits_an_iteration_to_its_part_of_the_run():
    job = replace(streaming().job, iterations=100)
    assert with_deadline(Specs(run_seconds=1000.0), job).iteration_seconds == 10.0
    assert (
        with_deadline(Specs(run_seconds=1000.0, iteration_seconds=3.0), job).iteration_seconds
        == 3.0
    )
    assert with_deadline(Specs(), job) == Specs()


def test_a_deadline_costs_what_the_cheapest_run_in_time_costs_more():
    plan = streaming()
    job = replace(plan.job, iterations=100)
    cheap = result(replace(plan, job=job))
    dear = replace(
        cheap,
        plans=tuple(
            replace(each, forecast=replace(each.forecast, cost_usd=3 * each.forecast.cost_usd))
            for each in cheap.plans
        ),
    )
    asked = replace(job, specs=Specs(run_seconds=1e6))

    def search(job):
        assert job.objective == "cost"
        return dear if job.specs.run_seconds else cheap

    assert deadline_price(job, cheap, search) is None
    price = deadline_price(asked, dear, search)
    assert price.extra_usd == pytest.approx(2 * price.free_run_usd)
    assert price.run_seconds == price.free_run_seconds
    slow = replace(
        dear,
        plans=tuple(
            replace(
                each,
                forecast=replace(
                    each.forecast, iteration_seconds=9 * each.forecast.iteration_seconds
                ),
            )
            for each in dear.plans
        ),
    )
    free = deadline_price(asked, cheap, lambda job: cheap if job.specs.run_seconds else slow)
    assert (free.extra_usd, free.free_run_seconds) == (0, free.run_seconds), (
        "of one run, not of two"
    )


def test_generators_stand_on_the_nodes_that_may_be_lost_where_a_search_had_training_there():
    plan = streaming()
    spot = Spot(loss_every_seconds=600.0, replacement_seconds=60.0, start_seconds=30.0)
    group = replace(plan.job.cluster[0], gpus_per_node=2, usd_per_gpu_hour=1.0)
    failures = Failures(node_mtbf_seconds=1e7, checkpoint_seconds=5.0, restart_seconds=60.0)
    job = replace(plan.job, cluster=(replace(group, spot=spot), group), failures=failures)
    found = result(replace(plan, job=job))
    best = on_spot_nodes(found, job, load_facts(job)).plans[0]
    assert found.plans[0].forecast.spot.pools == ("t",)
    assert best.forecast.spot.pools == ("g",)
    assert expected(best, job) < expected(found.plans[0], job)


def test_on_spot_nodes_a_gap_is_of_the_objective_not_of_its_seconds():
    plan = streaming()
    spot = Spot(loss_every_seconds=600.0, replacement_seconds=60.0, start_seconds=30.0)
    group = replace(plan.job.cluster[0], gpus_per_node=2, usd_per_gpu_hour=1.0)
    failures = Failures(node_mtbf_seconds=1e7, checkpoint_seconds=5.0, restart_seconds=60.0)
    job = replace(
        plan.job, cluster=(replace(group, spot=spot), group), failures=failures, objective="cost"
    )
    found = result(replace(plan, job=job))
    best = on_spot_nodes(found, job, load_facts(job))
    least = 0.5 * found.plans[0].forecast.cost_usd
    assert best.gap == pytest.approx(max(0.5, 1 - least / expected(best.plans[0], job)))


def test_without_spot_nodes_plans_stay_in_their_order():
    found = result(streaming())
    job = found.plans[0].plan.job
    assert on_spot_nodes(found, job, load_facts(job)) is found


def test_what_lends_leaves_as_much_memory_free_as_searches_do():
    plan = streaming()
    found = with_lending(result(plan), plan.job, load_facts(plan.job))
    assert found.plans[0].forecast.free_fraction >= 0.1 - 1e-9


@pytest.mark.parametrize("stays", [True, False])
def test_a_search_without_failures_trains_on_nodes_that_stay_or_names_the_field(stays):
    job = load_job(EXAMPLE)
    (group,) = job.cluster
    group = replace(group, gpus_per_node=4, usd_per_gpu_hour=2.0)
    spot = Spot(loss_every_seconds=36000.0, replacement_seconds=300.0, start_seconds=120.0)
    cluster = (group, replace(group, spot=spot)) if stays else (replace(group, spot=spot),)
    job = replace(job, cluster=cluster)
    if not stays:
        with pytest.raises(MissingFactError, match=r"job\.failures \(node_mtbf_seconds"):
            search(job, load_facts(job))
        return
    found = search(job, load_facts(job))
    assert all(not stopping_parts(each.plan) for each in found.plans)
    assert "none that trains on spot nodes without job.failures" in found.space
