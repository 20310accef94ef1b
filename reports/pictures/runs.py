"""The picture of a whole run: what a step takes as responses grow, and how time and money add up."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from rlplan.reports.pictures.picture import (
    PAGE_WIDTH,
    SERIES_COLOURS,
    FillStyle,
    LegendEntry,
    Picture,
    drawing,
    dress_axes,
    panel_axes,
    picture,
    titled_canvas,
)
from rlplan.reports.tables.run import duration_interval, usd_interval
from rlplan.results.run import RunForecast, RunPoint
from rlplan.units import (
    DAYS_FROM_HOURS,
    HOURS_OF_A_DAY,
    hours_from_seconds,
    seconds_scale,
    show_duration,
    show_seconds,
    whole_usd,
)

_SIDE, _LEFT, _RIGHT = 220.0, 60.0, 14.0
_BAND_ALPHA = 0.2
# Steps at which what adds up is drawn: more are not told apart.
_DRAWN_STEPS = 200


def run_picture(run: RunForecast) -> Picture:
    """Return two panels: a step's time over the run, and the run's hours and money so far, each with p10 to p90."""
    title = f"A run of {run.steps:,} steps: {show_duration(run.seconds)}, {whole_usd(run.usd)}"
    step, whole = (FillStyle(colour) for colour in SERIES_COLOURS[:2])
    first, last = run.points[0], run.points[-1]
    entries = [
        LegendEntry(
            "a step",
            step,
            f"{show_seconds(first.seconds)} at first, {show_seconds(last.seconds)} at last",
        ),
        LegendEntry(
            "the run so far",
            whole,
            f"p10 to p90 at its end: {duration_interval(run.interval_seconds)}, {usd_interval(run.interval_usd)}",
        ),
    ]
    with drawing():
        figure, bottom = titled_canvas(title, entries, _SIDE)
        width = PAGE_WIDTH / 2
        room = width - _LEFT - _RIGHT
        left = panel_axes(figure, _LEFT, bottom, room, _SIDE, "step")
        _draw_steps(left, run.points, run.steps, step.colour)
        right = panel_axes(figure, width + _LEFT, bottom, room, _SIDE, "run")
        _draw_whole(right, run, whole.colour)
    return picture(figure, name="run", title=title)


def _draw_steps(axes: Axes, points: Sequence[RunPoint], steps: int, colour: str) -> None:
    """Draw what a step takes over the run, with its interval."""
    word, each = seconds_scale(max(point.interval_seconds[1] for point in points))
    at = [point.step for point in points]
    low, middle, high = (
        [value / each for value in values]
        for values in (
            [point.interval_seconds[0] for point in points],
            [point.seconds for point in points],
            [point.interval_seconds[1] for point in points],
        )
    )
    if len(points) == 1:
        at, low, middle, high = [1, steps], 2 * low, 2 * middle, 2 * high
    axes.fill_between(at, low, high, color=colour, alpha=_BAND_ALPHA, linewidth=0)
    axes.plot(at, middle, color=colour, linewidth=1.6)
    _dress(axes, f"{word} a step")


def _draw_whole(axes: Axes, run: RunForecast, colour: str) -> None:
    """Draw how a run's time adds up, with its interval; what stands beside the steps is spread over them."""
    at = np.unique(np.linspace(1, run.steps, min(run.steps, _DRAWN_STEPS)).round())
    every = np.arange(1, run.steps + 1)
    seconds = np.interp(
        every, [point.step for point in run.points], [p.seconds for p in run.points]
    )
    so_far = np.interp(at, every, seconds.cumsum() / seconds.sum())
    hours = hours_from_seconds(run.seconds)
    in_days = hours >= DAYS_FROM_HOURS
    unit = hours / HOURS_OF_A_DAY if in_days else hours
    low, high = (each / run.seconds for each in run.interval_seconds)
    axes.fill_between(
        at, so_far * unit * low, so_far * unit * high, color=colour, alpha=_BAND_ALPHA, linewidth=0
    )
    axes.plot(at, so_far * unit, color=colour, linewidth=1.6)
    _dress(axes, f"{'days' if in_days else 'hours'} so far; at the end {whole_usd(run.usd)}")


def _dress(axes: Axes, up: str) -> None:
    axes.set_ylim(bottom=0)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    dress_axes(axes, "step", up)
