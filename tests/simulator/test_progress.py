"""How far iterations get whose samples are old: laws, literal figures, and what forecasts say."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.job import TIME_TO_SCORE
from rlplan.plan import FLOWS
from rlplan.planner.objectives import load_objective, objective_names
from rlplan.profiles.facts import load_facts
from rlplan.reports.tables.run import score_lines
from rlplan.results.progress import stretched
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.progress import (
    correction_of,
    least_age,
    least_needed,
    mean_age,
    needed_iterations,
    with_progress,
)
from tests.cases import first
from tests.simulator.plans import priced_plan
from tests.simulator.test_streaming_plans import apart

ages = st.floats(0, 100)
slopes = st.floats(0, 10)


@given(ages, ages, slopes)
def test_older_samples_never_need_fewer_iterations(one, other, slope):
    younger, older = sorted((one, other))
    assert 1 == needed_iterations(0, slope) <= needed_iterations(younger, slope)
    assert needed_iterations(younger, slope) <= needed_iterations(older, slope)


@given(
    st.floats(1e-3, 1e6), st.floats(0, 1), st.floats(1, 3),
    st.floats(1, 20), st.floats(0.05, 1), st.floats(1, 20),
)  # fmt: skip
def test_both_intervals_together_are_no_narrower_than_either(
    seconds, low, high, needed, least, most
):
    interval, needed_interval = (seconds * low, seconds * high), (needed * least, needed * most)
    found, (shortest, longest) = stretched(seconds, interval, needed, needed_interval)
    assert found == pytest.approx(seconds * needed)
    assert shortest <= found * min(low, least) * (1 + 1e-9)
    assert longest >= found * max(high, most) * (1 - 1e-9)
    assert longest <= found * high * most * (1 + 1e-9)


def test_intervals_add_up_in_squares():
    # 30 % and 40 % less, or more, are 50 % together.
    found = stretched(10.0, (7.0, 13.0), 2.0, (1.2, 2.8))
    assert found == (20.0, pytest.approx((10.0, 30.0)))
    assert stretched(10.0, (0.0, 20.0), 2.0, (1.0, 4.0))[1][0] == 0.0


def asked(plan):
    """Return a plan whose job minimises the time to a score."""
    return replace(plan, job=replace(plan.job, objective=TIME_TO_SCORE))


def test_the_name_is_an_objectives():
    assert TIME_TO_SCORE in objective_names()
    assert load_objective(TIME_TO_SCORE).weighs_age
    assert not any(load_objective(name).weighs_age for name in objective_names() if name != TIME_TO_SCORE)  # fmt: skip


def test_nothing_is_assumed_where_nobody_asked():
    plan = priced_plan()
    forecast = simulate(plan, load_facts(plan.job))
    assert forecast.progress is None
    assert score_lines(forecast) == ()


def test_fresh_samples_make_it_the_time_itself():
    plan = asked(priced_plan())
    forecast = simulate(plan, load_facts(plan.job))
    assert forecast.progress is not None
    assert forecast.progress.mean_age == 0
    assert forecast.progress.fresh_seconds == forecast.iteration_seconds
    within = forecast.progress.fresh_seconds_interval
    assert within == pytest.approx(forecast.iteration_seconds_interval)
    assert load_objective(TIME_TO_SCORE).figure(forecast) == forecast.iteration_seconds
    assert "samples are fresh" in forecast.assumptions[0]


def streamed(staleness=2, sync_every=1):
    return asked(apart("async", staleness=staleness, sync_every=sync_every))


def test_a_stream_takes_as_many_steps_as_its_samples_are_old():
    plan = streamed()
    forecast = simulate(plan, load_facts(plan.job))
    assert forecast.overlap is not None
    assert forecast.progress is not None
    age = forecast.overlap.staleness_mean
    assert age > 0
    assert forecast.progress.mean_age == age
    # 0.114 and 1.35 iterations more for each iteration of age (profiles/fits/sample_ages.yaml)
    assert forecast.progress.needed_iterations == pytest.approx(1 + 0.114 * age)
    assert forecast.progress.needed_interval == pytest.approx((1, 1 + 1.35 * age))
    seconds = forecast.iteration_seconds * (1 + 0.114 * age)
    assert forecast.progress.fresh_seconds == pytest.approx(seconds)


def test_a_correction_makes_old_samples_cost_less():
    plan = streamed()
    learns = replace(plan.job.hyperparameters, importance_cap=2.0)
    capped = replace(plan, job=replace(plan.job, hyperparameters=learns))
    assert (correction_of(plan.job), correction_of(capped.job)) == ("none", "decoupled")
    forecast = simulate(plan, load_facts(plan.job))
    plain, corrected = (with_progress(forecast, each).progress for each in (plan, capped))
    assert plain is not None
    assert corrected is not None
    assert corrected.needed_iterations < plain.needed_iterations
    assert corrected.needed_iterations == pytest.approx(1 + 0.0766 * plain.mean_age)


@pytest.mark.parametrize(
    ("staleness", "sync_every"),
    first(2, [(1, 2), (4, 4), (1, 1), (2, 2), (4, 1), (4, 2), (3, 3)]),
)
def test_no_stream_is_younger_than_its_least_age(staleness, sync_every):
    plan = streamed(staleness, sync_every)
    forecast = simulate(plan, load_facts(plan.job))
    assert mean_age(plan, forecast) >= least_age(plan.flow, sync_every)


def test_the_least_age_is_that_of_the_mode():
    found = {mode: least_age(flow, 1) for mode, flow in FLOWS.items()}
    assert found == {"sync": 0, "streaming": 0, "one-step-off": 1, "async": 0}
    assert least_age(FLOWS["async"], 4) == 1.5
    job = priced_plan().job
    assert least_needed(job, FLOWS["one-step-off"], 1) == pytest.approx(1.114)


def test_a_runs_hours_are_those_of_as_many_fresh_steps():
    plan = streamed()
    plan = replace(plan, job=replace(plan.job, iterations=400))
    forecast = simulate(plan, load_facts(plan.job))
    lines = score_lines(forecast)
    assert lines[0].startswith("score: as far as a step on fresh samples in ")
    assert lines[1].strip().startswith("400 fresh-equivalent steps in ")
    assert forecast.progress is not None
    found, _ = forecast.progress.stretched(100.0, (90.0, 110.0))
    assert found == pytest.approx(100 * forecast.progress.needed_iterations)
