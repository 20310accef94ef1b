"""Searches with the factors of a site: bounds stay bounds, and the winner is the best of all plans."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.calibration import WORK_KINDS, Calibration, Factor
from rlplan.errors import InfeasibleError
from rlplan.files.frozen import FrozenDict
from rlplan.planner.search import search
from rlplan.simulator.simulate import simulate
from tests.golden.kept import kept_plans
from tests.planner.brute_force import every_order, facts_with, random_space, small_jobs
from tests.planner.test_exact import ROUNDING, some


def site_of(values):
    """Return a site with these factors, by kind of work."""
    factors = {kind: Factor(value=value) for kind, value in values.items()}
    return Calibration(stages=FrozenDict(factors))


sites = st.fixed_dictionaries(dict.fromkeys(WORK_KINDS, st.floats(0.3, 3.0))).map(site_of)


@pytest.mark.full
@some
@given(small_jobs(), sites)
def test_plans_found_at_a_site_are_simulated_to_the_same_seconds(job, site):
    facts = facts_with(job, 2**40).with_calibration(site)
    try:
        result = search(job, facts)
    except InfeasibleError:
        return
    assert result.bound_seconds <= result.plans[0].forecast.iteration_seconds
    for each in result.plans:
        assert simulate(each.plan, facts) == each.forecast


@pytest.mark.full
@pytest.mark.parametrize("seed", range(8))
def test_the_best_plan_at_a_site_is_the_best_of_all_plans(seed):
    generator = random.Random(seed)
    for _ in range(2):
        job, plans, facts = random_space(generator, 60)
        site = site_of({kind: generator.uniform(0.3, 1.5) for kind in WORK_KINDS})
        facts = facts.with_calibration(site)
        forecasts = [simulate(each, facts) for plan in plans for each in every_order(plan)]
        seconds = [each.iteration_seconds for each in forecasts if each.feasible]
        if not seconds:
            continue
        found = search(job, facts).plans[0].forecast.iteration_seconds
        assert found <= min(seconds) * (1 + ROUNDING)


def test_factors_of_1_leave_forecasts_equal():
    ones = site_of(dict.fromkeys(WORK_KINDS, 1.0))
    for plan, facts in itertools.islice(kept_plans(), 0, 60, 12):
        usual, again = simulate(plan, facts), simulate(plan, facts.with_calibration(ones))
        assert again.iteration_seconds == usual.iteration_seconds
        assert again.tasks == usual.tasks
