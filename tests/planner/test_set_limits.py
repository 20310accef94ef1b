import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.planner.exact.placement_bounds import Budget

rates = st.just(0.0) | st.floats(0.01, 500.0)
seconds = st.floats(0.0, 1000.0)


@given(st.tuples(rates, rates, rates), st.tuples(seconds, seconds), st.tuples(seconds, seconds))
def test_what_a_budget_pays_for_is_within_its_limits(prices, least, more):
    work, generation = least[0] + more[0], least[1] + more[1]
    waiting, working, generating = prices
    spent = waiting * (work + generation) + working * work + generating * generation
    budget = Budget(spent, waiting, working, generating)
    assert work <= budget.work_seconds(least[1]) * (1 + 1e-9) + 1e-6
    assert work + generation <= budget.pool_seconds(least[0], least[1]) * (1 + 1e-9) + 1e-6


def test_generation_is_paid_before_work():
    budget = Budget(left=1000.0, waiting=2.0, working=8.0, generating=3.0)
    assert budget.work_seconds(100.0) == pytest.approx(50.0)
    assert budget.pool_seconds(50.0, 100.0) == pytest.approx(150.0)


def test_what_costs_nothing_has_no_limit():
    assert Budget(1.0, 0.0, 0.0, 0.0).work_seconds(5.0) == float("inf")
