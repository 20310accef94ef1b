"""Measured seconds on the range in which a forecast has them, a row for each stage or task."""

from collections.abc import Sequence
from dataclasses import dataclass

from reports.widgets import share
from rlplan.results.measurement import Comparison
from rlplan.results.step_check import StepCheck
from rlplan.units import show_seconds

MARGIN = 1.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Hold a row in seconds.

    Attributes:
        verdict: Of the measured value, in a word; empty for none.
    """

    name: str
    forecast: float
    low: float
    high: float
    measured: float
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRow:
    """Hold a row as shares of the width."""

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

    @property
    def template(self) -> str:
        """Return the name of its template."""
        return "ranges.html.j2"


def ranges_of_check(found: StepCheck) -> Ranges:
    """Return the stages of a step that was checked, the step last."""
    every = (*found.stages, *((found.step,) if found.step else ()))
    rows = [
        Measured(
            name=each.name,
            forecast=each.forecast_seconds,
            low=each.normal_seconds[0],
            high=each.normal_seconds[1],
            measured=each.measured_seconds,
            verdict=each.verdict,
        )
        for each in every
    ]
    return _ranges(rows, "normal range")


def ranges_of_run(comparison: Comparison) -> Ranges:
    """Return the tasks of a run at the lengths that it had, the iteration last."""
    rows = [
        Measured(
            name=row.name,
            forecast=row.forecast_seconds if row.as_run_seconds is None else row.as_run_seconds,
            low=row.measured_interval_seconds[0],
            high=row.measured_interval_seconds[1],
            measured=row.measured_median_seconds,
        )
        for row in (*comparison.rows, comparison.iteration)
        if row.forecast_seconds > 0
    ]
    return _ranges(rows, "measured p10 to p90")


def _ranges(rows: Sequence[Measured], band: str) -> Ranges:
    return Ranges(rows=tuple(_row(row, band) for row in rows), band=band)


def _row(row: Measured, band: str) -> RangeRow:
    end = max(row.forecast, row.high, row.measured) * MARGIN
    measured, forecast = show_seconds(row.measured), show_seconds(row.forecast)
    between = f"{show_seconds(row.low)} to {show_seconds(row.high)}"
    return RangeRow(
        name=row.name,
        words=f"measured {measured}, forecast {forecast} ({band} {between})",
        verdict=row.verdict,
        forecast=share(row.forecast, end),
        left=share(row.low, end),
        width=share(row.high - row.low, end),
        measured=share(row.measured, end),
    )
