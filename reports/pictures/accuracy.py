"""Forecast against measured, one picture per table: line of equality and a band of 20 % around it."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from rlplan.reports.pictures.picture import Picture, picture
from rlplan.reports.pictures.style import (
    FAINT,
    MUTED,
    PAGE_WIDTH,
    SERIES_COLOURS,
    FillStyle,
    LegendEntry,
    drawing,
    dress_axes,
    panel_axes,
    scale_by_decades,
    titled_canvas,
)
from rlplan.results.accuracy import Row
from rlplan.units import show_seconds

BAND_FRACTION = 0.2
MOST_POINTS = 2000  # of longer tables every so many-th row is drawn

_SIDE, _LEFT, _RIGHT = 330.0, 70.0, 14.0
_MARGIN = 1.3  # free room around the points, as a factor


def accuracy_picture(name: str, rows: Sequence[Row]) -> Picture:
    """Return the picture of a table: fitted rows hollow, all others filled, one colour a kind."""
    known = [row for row in rows if row.error_fraction is not None]
    every = -(-len(known) // MOST_POINTS)
    file_name = "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")
    unit = known[0].unit if known else "seconds"
    return picture(
        _figure(name, known[:: max(1, every)], len(known)),
        name=f"accuracy-{file_name}",
        title=f"{name}: forecast against measured {unit}, {len(known)} rows",
    )


def _figure(name: str, rows: Sequence[Row], count: int) -> Figure:
    kinds = list(dict.fromkeys(row.kind for row in rows))
    colours = {
        kind: SERIES_COLOURS[index % len(SERIES_COLOURS)] for index, kind in enumerate(kinds)
    }
    entries = [
        LegendEntry(kind or "rows", FillStyle(colours[kind]), _counted(rows, kind))
        for kind in kinds
    ]
    with drawing():
        shown = f"{count:,} rows" if count == len(rows) else f"{len(rows):,} of {count:,} rows"
        title = f"{name}: {shown}; the band is 20 % to either side of equality"
        figure, bottom = titled_canvas(title, entries, _SIDE)
        axes = panel_axes(figure, _LEFT, bottom, PAGE_WIDTH - _LEFT - _RIGHT, _SIDE, "forecast")
        _draw_band(axes, rows)
        for kind in kinds:
            _draw_kind(axes, [row for row in rows if row.kind == kind], colours[kind])
        scale_by_decades(axes)
        for each in (axes.xaxis, axes.yaxis):
            each.set_major_formatter(FuncFormatter(lambda value, _: show_seconds(value)))
        dress_axes(axes, "measured", "forecast")
    return figure


def _counted(rows: Sequence[Row], kind: str) -> str:
    """Say how many rows of a kind are drawn filled (not fitted on) and hollow (fitted on)."""
    fitted = sum(row.fitted for row in rows if row.kind == kind)
    held = sum(row.kind == kind for row in rows) - fitted
    return f"{held} not fitted on (filled), {fitted} fitted on (hollow)"


def _draw_band(axes: Axes, rows: Sequence[Row]) -> None:
    measured = [row.measured or 0.0 for row in rows]
    ends = (min(measured) / _MARGIN, max(measured) * _MARGIN)
    low, high = (
        [end * factor for end in ends] for factor in (1 - BAND_FRACTION, 1 + BAND_FRACTION)
    )
    axes.fill_between(ends, low, high, color=FAINT, linewidth=0)
    axes.plot(ends, ends, color=MUTED, linewidth=0.8)


def _draw_kind(axes: Axes, rows: Sequence[Row], colour: str) -> None:
    for is_fitted in (True, False):
        chosen = [row for row in rows if row.fitted == is_fitted]
        measured = [row.measured or 0.0 for row in chosen]
        forecast = [row.predicted or 0.0 for row in chosen]
        axes.plot(
            measured, forecast,
            linestyle="none", marker="o", markersize=3.4, markeredgecolor=colour,
            markerfacecolor="white" if is_fitted else colour, markeredgewidth=0.7,
        )  # fmt: skip
