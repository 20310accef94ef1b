"""Forecast against measured, one picture per table: line of equality and a band of 20 % around it."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from reports.pictures.picture import Picture, picture
from reports.pictures.style import (
    FAINT,
    MUTED,
    PAGE_WIDTH,
    SERIES_COLOURS,
    SMALL_SIZE,
    TITLE_SIZE,
    LegendEntry,
    Look,
    canvas_axes,
    draw_legend,
    drawing,
    legend_height,
    new_figure,
    panel_axes,
)
from rlplan.results.accuracy import Row
from rlplan.units import show_seconds

BAND_FRACTION = 0.2
MOST_POINTS = 2000  # of longer tables every so many-th row is drawn

_SIDE, _HEAD, _FOOT, _LEFT = 330.0, 26.0, 36.0, 70.0
_MARGIN = 1.3  # free room around the points, as a factor
_DECADE = 10.0


def accuracy_picture(name: str, rows: Sequence[Row]) -> Picture:
    """Return the picture of a table: fitted rows hollow, all others filled, one colour a kind."""
    known = [row for row in rows if row.error_fraction is not None]
    every = -(-len(known) // MOST_POINTS)
    return picture(
        _figure(name, known[:: max(1, every)], len(known)),
        name=f"accuracy-{_file_name(name)}",
        title=f"{name}: forecast against measured {_unit(known)}, {len(known)} rows",
    )


def _unit(rows: Sequence[Row]) -> str:
    return rows[0].unit if rows else "seconds"


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")


def _figure(name: str, rows: Sequence[Row], count: int) -> Figure:
    kinds = list(dict.fromkeys(row.kind for row in rows))
    colours = {
        kind: SERIES_COLOURS[index % len(SERIES_COLOURS)] for index, kind in enumerate(kinds)
    }
    entries = [
        LegendEntry(kind or "rows", Look(colours[kind]), _counted(rows, kind)) for kind in kinds
    ]
    with drawing():
        legend = legend_height(entries, PAGE_WIDTH)
        figure = new_figure(_HEAD + _SIDE + _FOOT + legend)
        canvas = canvas_axes(figure)
        top = _HEAD + _SIDE + _FOOT + legend
        shown = f"{count:,} rows" if count == len(rows) else f"{len(rows):,} of {count:,} rows"
        title = f"{name}: {shown}; the band is 20 % to either side of equality"
        canvas.text(0, top - _HEAD / 2, title, size=TITLE_SIZE, va="center")
        axes = panel_axes(figure, _LEFT, legend + _FOOT, PAGE_WIDTH - _LEFT - 14, _SIDE, "forecast")
        _draw_band(axes, rows)
        for kind in kinds:
            _draw_kind(axes, [row for row in rows if row.kind == kind], colours[kind])
        _set_axes(axes)
        draw_legend(canvas, entries, 0, legend, PAGE_WIDTH)
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


def _set_axes(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for each in (axes.xaxis, axes.yaxis):
        low, high = each.get_view_interval()
        subdivisions = (1.0,) if high / low > _DECADE**2 else (1.0, 2.0, 5.0)
        each.set_major_locator(LogLocator(subs=subdivisions, numticks=12))
        each.set_major_formatter(FuncFormatter(lambda value, _: show_seconds(value)))
        each.set_minor_formatter(NullFormatter())
    axes.grid(which="major")
    axes.tick_params(axis="both", which="both", length=0, labelsize=SMALL_SIZE)
    axes.set_xlabel("measured", size=SMALL_SIZE, labelpad=2)
    axes.set_ylabel("forecast", size=SMALL_SIZE, labelpad=2)
