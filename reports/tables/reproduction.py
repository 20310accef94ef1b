"""Rows of the tables of a reproduced evaluation: claims, points, errors by series."""

from collections.abc import Sequence
from statistics import mean, median

from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import percent, signed_percent
from rlplan.results.reproduced import Claim, Point
from rlplan.units import show_bytes, show_seconds

_NOTHING = "-"


def claims_table(claims: Sequence[Claim]) -> Table:
    """Return every claim with its mark and the figures that it stands on."""
    return Table(
        columns=columns("Claim", "Stated in", "In the forecasts", "Figures"),
        rows=tuple(
            (claim.text, claim.where, "holds" if claim.holds else "fails", claim.evidence)
            for claim in claims
        ),
    )


def series_table(points: Sequence[Point]) -> Table:
    """Return the errors against published values, one row for each figure and series."""
    groups: dict[tuple[str, str], list[float]] = {}
    for point in points:
        if point.error_fraction is not None:
            groups.setdefault((point.figure, point.series), []).append(point.error_fraction)
    return Table(
        columns=columns("Figure", "Series", "#Points", "#Median error", "#Mean", "#Worst"),
        rows=tuple(
            (
                figure,
                series,
                str(len(errors)),
                percent(median(abs(error) for error in errors)),
                signed_percent(mean(errors)),
                signed_percent(max(errors, key=abs)),
            )
            for (figure, series), errors in groups.items()
        ),
    )


def points_table(points: Sequence[Point]) -> Table:
    """Return every point: forecast, published value, error, and the plan that was forecast."""
    return Table(
        columns=columns(
            "Part", "Series", "#GPUs", "#Forecast", "#Published", "#Error", "Plan forecast"
        ),
        rows=tuple(
            (
                point.panel,
                point.series,
                str(point.gpus),
                _shown(point, point.forecast),
                _shown(point, point.published),
                _NOTHING if point.error_fraction is None else signed_percent(point.error_fraction),
                point.plan or point.reason,
            )
            for point in points
        ),
    )


def _shown(point: Point, value: float | None) -> str:
    if value is None:
        return _NOTHING
    if point.quantity == "bytes":
        return show_bytes(value)
    if point.quantity == "seconds":
        return show_seconds(value)
    return f"{value:,.0f} {'frames' if point.quantity == 'frames_per_second' else 'tokens'}/s"
