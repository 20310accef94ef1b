"""Measured seconds on the range in which a forecast has them, a row for each stage or task."""

from dataclasses import dataclass
from typing import ClassVar

from rlplan.reports.tables.wording import interval
from rlplan.reports.widgets import share
from rlplan.results.measurement import Comparison
from rlplan.results.step_check import StepCheck
from rlplan.units import show_seconds

MARGIN = 1.04


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRow:
    """Hold a row as shares of the width.

    Attributes:
        verdict: Of the measured value, in a word; empty for none.
    """

    name: str
    words: str
    verdict: str
    forecast: str
    left: str
    width: str
    measured: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Hold rows, each on a scale of its own: what is told is the ratio.

    Attributes:
        band: What the range is.
    """

    rows: tuple[RangeRow, ...]
    band: str
    template: ClassVar[str] = "ranges.html.j2"


def ranges_of_check(found: StepCheck) -> Ranges:
    """Return the stages of a step that was checked, the step last."""
    band = "normal range"
    rows = (
        _row(
            each.name,
            band,
            measured_seconds=each.measured_seconds,
            forecast_seconds=each.forecast_seconds,
            range_seconds=each.normal_seconds,
            verdict=each.verdict,
        )
        for each in (*found.stages, *((found.step,) if found.step else ()))
    )
    return Ranges(rows=tuple(rows), band=band)


def ranges_of_run(comparison: Comparison) -> Ranges:
    """Return the tasks of a run at the lengths that it had, the iteration last."""
    band = "measured p10 to p90"
    rows = (
        _row(
            row.name,
            band,
            measured_seconds=row.measured_median_seconds,
            forecast_seconds=row.forecast_seconds
            if row.as_run_seconds is None
            else row.as_run_seconds,
            range_seconds=row.measured_interval_seconds,
        )
        for row in (*comparison.rows, comparison.iteration)
        if row.forecast_seconds > 0
    )
    return Ranges(rows=tuple(rows), band=band)


def _row(
    name: str,
    band: str,
    *,
    measured_seconds: float,
    forecast_seconds: float,
    range_seconds: tuple[float, float],
    verdict: str = "",
) -> RangeRow:
    low, high = range_seconds
    end = max(forecast_seconds, high, measured_seconds) * MARGIN
    measured, forecast = show_seconds(measured_seconds), show_seconds(forecast_seconds)
    return RangeRow(
        name=name,
        words=f"measured {measured}, forecast {forecast} ({band} {interval(range_seconds)})",
        verdict=verdict,
        forecast=share(forecast_seconds, end),
        left=share(low, end),
        width=share(high - low, end),
        measured=share(measured_seconds, end),
    )
