"""Searches for the time to a score: fresher plans where that pays, and bounds that hold with the age of samples in them."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import InfeasibleError
from rlplan.job import TIME_TO_SCORE, Specs
from rlplan.planner.answers.run_limits import AskedRun, plans_within
from rlplan.planner.exact.space import Space
from rlplan.planner.objectives import load_objective
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.schedules import (
    ONE_STEP_OFF,
    SYNC,
    AskedSchedules,
    Schedule,
    ScheduleSpace,
)
from rlplan.planner.search import search
from rlplan.profiles.facts import load_facts
from rlplan.results.renting import RentalLimits
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.progress import with_progress
from tests.cases import draws
from tests.planner.brute_force import with_every_figure
from tests.planner.test_lending import result
from tests.planner.test_streams import (
    LONG_TAILED,
    STREAMING,
    asynchronous,
    bound_of,
    drawn_jobs,
    pair,
    scheduled,
)
from tests.simulator.test_streaming_plans import apart

ROUNDING = 1e-9
OBJECTIVE = load_objective(TIME_TO_SCORE)
SMALL = replace(LONG_TAILED, cluster=pair)
STREAM = with_every_figure(apart("async", staleness=1))


@cache
def streamed():
    """Return the forecast of a stream, which thousands of responses are played for."""
    return simulate(STREAM, load_facts(STREAM.job))


def of_age(seconds, age):
    """Return what an iteration of so many seconds is worth, with samples of a mean age."""
    overlap = replace(streamed().overlap, staleness_mean=age)
    forecast = replace(streamed(), iteration_seconds=seconds, iteration_seconds_interval=(seconds, seconds), overlap=overlap)  # fmt: skip
    return OBJECTIVE.figure(with_progress(forecast, STREAM))


@given(st.floats(1e-3, 1e5), st.floats(0, 20), st.floats(1, 3), st.floats(0, 5))
def test_an_older_and_slower_plan_is_never_preferred(seconds, age, times, older):
    assert of_age(seconds, age) <= of_age(seconds * times, age + older) * (1 + ROUNDING)
    assert of_age(seconds, 0) == pytest.approx(seconds)


def schedules(specs, **asked):
    space = ScheduleSpace(LONG_TAILED, specs, AskedSchedules(**asked), weighs_age=True)
    return tuple(space)


def test_bounds_up_to_the_limit_are_looked_at():
    assert schedules(Specs()) == (SYNC,)
    found = [each for each in schedules(Specs(staleness=6)) if each.mode == "async"]
    assert [(each.staleness, each.sync_every) for each in found] == [
        (1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4),
    ]  # fmt: skip
    pinned = schedules(Specs(staleness=6), modes=("async",), staleness=3)
    assert {each.staleness for each in pinned} == {3}
    told = ScheduleSpace(LONG_TAILED, Specs(staleness=6), AskedSchedules(modes=("async",)), weighs_age=True, least_staleness=2)  # fmt: skip
    assert {each.staleness for each in told} == {2, 4}
    every = schedules(Specs(staleness=6), modes=("async",), sync_every=4)
    assert [(each.staleness, each.sync_every) for each in every] == [(3, 4), (4, 4)]
    assert {each.staleness for each in schedules(Specs(staleness=0.5), modes=("async",))} == {0.5}


@given(st.floats(1, 40), st.floats(1, 40), st.none() | st.integers(1, 9))
def test_what_is_looked_at_under_a_limit_is_looked_at_under_a_larger_one(one, other, every):
    small, large = (
        {*schedules(Specs(staleness=limit), modes=("async",), sync_every=every)}
        for limit in sorted((one, other))
    )
    assert small <= large
    assert all(each.staleness <= min(one, other) for each in small)


@pytest.fixture(scope="module")
def found():
    """Return what is found of one job by seconds, and by the time to a score."""
    asked = Pinned(asked=AskedSchedules(modes=("sync", "async")))
    facts, specs = load_facts(SMALL), Specs(staleness=4)
    return {
        name: search(SMALL, facts, pinned=asked, objective=name, specs=specs)
        for name in ("throughput", TIME_TO_SCORE)
    }


@pytest.mark.full
def test_fresher_samples_win_where_they_are_worth_their_seconds(found):
    fast, fresh = (found[name].plans[0] for name in ("throughput", TIME_TO_SCORE))
    assert fast.plan.mode == fresh.plan.mode == "async"
    assert fresh.plan.job.objective == TIME_TO_SCORE
    assert fast.forecast.progress is None
    assert fast.forecast.iteration_seconds <= fresh.forecast.iteration_seconds * (1 + ROUNDING)
    value = OBJECTIVE.figure(with_progress(fast.forecast, with_every_figure(fast.plan)))
    assert OBJECTIVE.figure(fresh.forecast) <= value * (1 + ROUNDING)


@pytest.mark.full
def test_nothing_is_called_proven_that_the_age_of_samples_leaves_open(found):
    best, gap = found[TIME_TO_SCORE].plans[0], found[TIME_TO_SCORE].gap
    bound = OBJECTIVE.figure(best.forecast) * (1 - gap)
    fast = found["throughput"]
    # The bound is no higher than that on seconds, with samples as fresh as can be.
    seconds = fast.plans[0].forecast.iteration_seconds * (1 - fast.gap)
    assert gap > 0
    assert bound <= OBJECTIVE.figure(best.forecast)
    assert bound >= seconds * (1 - ROUNDING) * 0.9


@pytest.mark.full
@pytest.mark.parametrize("simulations", [0, 4])
@pytest.mark.parametrize(
    "schedule",
    [STREAMING, asynchronous(1, 1), asynchronous(2, 2), asynchronous(4, 4)],
    ids=lambda each: each.words,
)
def test_no_stream_is_worth_less_than_its_bound(schedule, simulations):
    for generator, job, alone, facts in drawn_jobs(11, draws(2, 6)):
        bound = bound_of(job, facts, schedule, simulations, TIME_TO_SCORE)
        for plan in generator.sample(alone, min(3, len(alone))):
            forecast = simulate(with_every_figure(scheduled(plan, schedule)), facts)
            assert not forecast.feasible or bound <= OBJECTIVE.figure(forecast) * (1 + ROUNDING)


def test_the_least_of_a_schedule_is_what_its_bound_is_multiplied_with():
    space = Space(SMALL, load_facts(SMALL), {}, TIME_TO_SCORE, SMALL.specs)
    times = {
        each: space.score.least_factor(each)
        for each in (SYNC, STREAMING, ONE_STEP_OFF, Schedule("async", 4, 4))
    }
    assert list(times.values()) == pytest.approx([1, 1, 1.114, 1 + 1.5 * 0.114])
    plain = Space(SMALL, load_facts(SMALL), {}, "throughput", SMALL.specs)
    assert plain.score.least_factor(ONE_STEP_OFF) == 1


@pytest.mark.full
def test_what_another_objective_found_under_a_budget_says_how_far_it_gets():
    group = replace(STREAM.job.cluster[0], usd_per_gpu_hour=100.0)
    dear = replace(STREAM, job=replace(STREAM.job, cluster=(group,)))
    asked = AskedRun(steps=100, limits=RentalLimits(budget_usd=50.0))

    def find(wanted):
        """Return the dear plan, but the cheap one for the least money, and nothing under limits of a step."""
        if wanted.specs != dear.job.specs:
            raise InfeasibleError("nothing keeps them")
        plan = STREAM if wanted.objective == "cost" else dear
        return result(replace(plan, job=replace(plan.job, objective=wanted.objective)))

    best = plans_within(dear.job, load_facts(dear.job), asked, find).plans[0]
    assert best.plan == STREAM
    assert best.forecast.progress == streamed().progress
