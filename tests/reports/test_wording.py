"""Sentences that pages and the terminal share."""

from dataclasses import replace

import pytest

from rlplan.reports.tables import wording
from rlplan.results.measurement import Comparison, ComparisonRow

ITERATION = ComparisonRow(
    name="iteration",
    pool="",
    forecast_seconds=2.0,
    measured_median_seconds=1.0,
    measured_interval_seconds=(1.0, 1.0),
    error_fraction=1.0,
    source="measured",
)
COMPARED = Comparison(rows=(), iteration=ITERATION, warmup_iterations=2, compared_iterations=10)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (31.0, None),
        (8.3, "shorter than the forecast's: 8.3 tokens on average, not 32.0"),
        (40.0, "longer than the forecast's"),
    ],
)
def test_responses_of_other_lengths_than_the_forecasts_are_named(measured, said):
    words = wording.other_lengths(replace(COMPARED, response_tokens=(32.0, measured)))
    assert (words is None) if said is None else (said in words)


def test_a_run_that_noted_no_lengths_has_no_warning_of_them():
    assert wording.other_lengths(COMPARED) is None
