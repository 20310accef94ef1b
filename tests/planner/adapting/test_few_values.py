"""Errors of medians that are known from few values: Student's distribution in place of the normal one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from rlplan.estimate import P90_DEVIATIONS
from rlplan.planner.adapting.window import level_of, median_width, student_p90
from rlplan.trace import IterationSpan, Trace
from tests.planner.adapting.test_adapting import (
    facts,  # noqa: F401 -- a fixture
    job,  # noqa: F401 -- a fixture
    measured_run,
    together,  # noqa: F401 -- a fixture
)


@given(st.floats(2.0, 1e4))
def test_percentiles_are_those_of_students_distribution(degrees):
    assert student_p90(degrees) == pytest.approx(t.ppf(0.9, degrees), rel=0.01)


def run_of(plan, known, seconds):
    """Return a run whose iterations take so long."""
    spans = tuple(
        IterationSpan(
            iteration=number, start_seconds=10.0 * number, end_seconds=10.0 * number + each
        )
        for number, each in enumerate(seconds)
    )
    return replace(
        measured_run(plan, known).measured(),
        trace=Trace(origin="measured", spans=(), iterations=spans),
    )


def test_three_values_know_less_of_their_error_than_many_do(together, facts):  # noqa: F811
    """One of three values, beside a run without chance: two degrees of freedom, 1.886 deviations for 1.282."""
    few, calm = run_of(together, facts, [1.0, 2.0, 3.0]), run_of(together, facts, [2.0] * 10)
    error = level_of([1.0, 2.0, 3.0]).error
    assert median_width((few, 1.0), (calm, 1.0)) == pytest.approx(1.886 * error, rel=0.01)
    assert median_width((few, 0.5), (calm, 1.0)) == pytest.approx(0.5 * 1.886 * error, rel=0.01)
    # Two alike have four, by Welch and Satterthwaite: 1.533.
    both = median_width((few, 1.0), (few, 1.0))
    assert both == pytest.approx(1.533 * 2**0.5 * error, rel=0.01)
    many = run_of(together, facts, [1.0, 2.0, 3.0] * 200)
    wide = level_of([1.0, 2.0, 3.0] * 200).error
    assert median_width((many, 1.0)) == pytest.approx(P90_DEVIATIONS * wide, rel=0.01)
    assert median_width((calm, 1.0), (calm, 2.0)) == 0.0
