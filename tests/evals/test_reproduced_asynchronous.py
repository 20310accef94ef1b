"""AReaL's and AsyncFlow's evaluations: what was published, and that a few points of each come near it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.evals.claims import ALL, FALLS, TIE_FRACTION, judged, near, order
from rlplan.evals.reproductions import areal, asyncflow, reproduction_names
from rlplan.evals.settings.published_points import plan_words, step_seconds, step_tokens
from rlplan.planner.measured.framework_runs import job_of, plan_of
from rlplan.rules import check_plan

PUBLISHED_RATES = [128.7e3, 269.3e3, 356.6e3, 356.6e3, 382.4e3, 396.8e3]


def test_evaluations_are_found_by_their_files():
    assert {"areal", "asyncflow"} <= set(reproduction_names())


@pytest.mark.parametrize("staleness", [0.0, 4.0])
def test_areals_ends_of_the_rise_come_within_a_fifth(staleness):
    assert list(areal.PUBLISHED.values()) == PUBLISHED_RATES
    run = areal.run_of(staleness)
    rate = step_tokens(run) / step_seconds(run)
    assert rate == pytest.approx(areal.PUBLISHED[staleness], rel=areal.WITHIN_FRACTION)


def test_areals_hours_are_of_as_many_tokens_as_its_rates():
    for hours, rate in ((41.0, 128.7e3), (14.8, 356.6e3)):
        tokens = hours * 3600 / 1000 * rate
        assert step_tokens(areal.SYNCHRONOUS) == pytest.approx(tokens, rel=0.02)


def test_claims_are_marked_by_what_was_forecast():
    claims = areal.CLAIMS[:7]
    assert all(claim.holds for claim in judged(claims, PUBLISHED_RATES))
    worse = [*judged(claims, [rate / 2 for rate in PUBLISHED_RATES])]
    assert not any(claim.holds for claim in worse[:6])


def test_asyncflows_parts_make_it_faster_in_their_order():
    apart, last = asyncflow.apart(32), asyncflow.asynchronous(32)
    assert step_seconds(last) < step_seconds(apart)
    assert (last.staleness, last.mode, last.framework) == (1.0, "async", "asyncflow")
    assert plan_words(last) == "16 generate with TP 1, 16 train, async, staleness 1"
    assert plan_words(asyncflow.TOGETHER) == "all 512 together, generation with TP 1"


@pytest.mark.parametrize("run", [areal.run_of(4.0), asyncflow.asynchronous(64), asyncflow.TOGETHER])
def test_their_plans_keep_all_rules(run):
    check_plan(plan_of(run, job_of(run)))


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=6))
def test_an_order_holds_of_what_was_sorted_for_it(values):
    (fallen,) = order(sorted(values, reverse=True)).figures
    assert FALLS.holds(fallen)
    (rising,) = order([1.0, 1.0 + 2 * TIE_FRACTION]).figures
    assert not FALLS.holds(rising)


@given(st.floats(0.1, 10.0), st.floats(0.01, 0.5))
def test_a_stated_figure_holds_within_its_fraction(value, within):
    for sign in (1, -1):
        assert near(value, within).holds(value * (1 + 0.9 * sign * within))
        assert not near(value, within).holds(value * (1 + 1.1 * sign * within))


@pytest.mark.full
def test_the_search_lets_asyncflows_job_generate_beside_training():
    found = asyncflow.chosen_modes({64: asyncflow.searched(64)})
    assert ALL.holds(*found.figures)
    assert found.evidence.startswith("64: async, 32 + 32, gap ")
