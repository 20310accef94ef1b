"""Summaries of rows made by hand: errors are fractions of what was measured."""

import pytest

from rlplan.estimate import Estimate
from rlplan.planner.measured.rows import by_kind, findings_of, summarise
from rlplan.results.accuracy import Row


def row(measured, forecast, *, spread=0.0, kind="", fitted=False):
    estimate = Estimate(forecast, spread)
    margin = 1.2816 * spread
    return Row(
        table="t",
        index=0,
        label="a row",
        kind=kind,
        measured_seconds=measured,
        forecast=estimate,
        fitted=fitted,
        interval_seconds=(forecast - margin, forecast + margin),
    )


SKIPPED = Row(table="t", index=9, label="another", skipped="no sizes", measured_seconds=1.0)


def test_errors_are_fractions_of_the_measured_seconds():
    # Errors: +10 %, -20 %, 0 %, +50 %, -10 %.
    pairs = [(10, 11), (10, 8), (10, 10), (10, 15), (10, 9)]
    summary = summarise([row(*pair) for pair in pairs])
    assert summary.rows == 5
    assert summary.median_error == pytest.approx(0.10)
    assert summary.mean_error == pytest.approx(0.18)
    assert summary.p90_error == pytest.approx(0.38)
    assert summary.worst_error == pytest.approx(0.50)
    assert summary.bias == pytest.approx(0.06)


def test_skipped_rows_are_counted_by_reason_and_have_no_error():
    summary = summarise([row(10, 11), SKIPPED, SKIPPED])
    assert (summary.rows, summary.skipped) == (1, 2)
    assert summary.skipped_reasons == {"no sizes": 2}
    assert SKIPPED.error_fraction is None
    assert SKIPPED.inside_interval is None


def test_a_table_without_a_forecast_has_no_errors():
    summary = summarise([SKIPPED], "empty")
    assert (summary.table, summary.rows, summary.skipped) == ("empty", 0, 1)
    assert summary.median_error is None
    assert summary.bias is None


def test_coverage_counts_measurements_between_p10_and_p90():
    rows = [row(10, 11, spread=1.0), row(10, 20, spread=1.0), row(10, 10), row(10, 9)]
    assert summarise(rows).coverage == pytest.approx(0.5)


def test_kinds_are_summed_up_apart_in_the_order_in_which_they_come():
    rows = [row(10, 11, kind="b"), row(10, 10, kind="a"), row(10, 12, kind="b")]
    kinds = by_kind(rows)
    assert [(each.table, each.rows) for each in kinds] == [("b", 2), ("a", 1)]


def test_rows_fitted_on_and_held_back_are_told_apart():
    found = findings_of("t", [row(10, 11, fitted=True), row(10, 15), SKIPPED], "a table")
    assert found.fitted.median_error == pytest.approx(0.1)
    assert found.held.median_error == pytest.approx(0.5)
    assert found.whole.fitted_rows == 1
    assert [miss.measured_seconds for miss in found.misses] == [10]
