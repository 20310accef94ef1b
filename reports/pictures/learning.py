"""Learning curves over several seeds, for the results that are published with the code."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rlplan.reports.pictures.picture import (
    FOOT,
    HEAD,
    PAGE_WIDTH,
    SERIES_COLOURS,
    LegendEntry,
    draw_legend,
    draw_title,
    drawing,
    dress_axes,
    legend_height,
    looks,
    new_canvas,
    panel_axes,
    write_figure,
)
from rlplan.reports.tables.wording import counted

Curves = Mapping[str, Sequence[Sequence[float]]]

_HEIGHT, _GUTTER, _RIGHT = 240.0, 52.0, 14.0


def plot_learning(
    curves: Curves, out: Path, title: str, *, axis: str = "mean reward of an iteration"
) -> Path:
    """Draw the mean over seeds, and every seed as a thin line; return the file's path.

    Args:
        curves: By name (of an algorithm, say), one list of values per seed.
        out: A file that ends in `.svg` or `.png`.
        axis: What the values are.
    """
    write_figure(learning_figure(curves, title, axis), out, title=title)
    return out


def mean_curve(seeds: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over seeds at every iteration that all of them reached."""
    return [sum(values) / len(values) for values in zip(*seeds, strict=False)]


def learning_figure(curves: Curves, title: str, axis: str) -> Figure:
    """Draw learning curves by name, mean and single seeds."""
    found = looks(curves, SERIES_COLOURS)
    entries = [
        LegendEntry(name, look, f"mean of {counted(len(curves[name]), 'seed')}")
        for name, look in found.items()
    ]
    with drawing():
        legend = legend_height(entries, PAGE_WIDTH)
        height = HEAD + legend + _HEIGHT + FOOT
        figure, canvas = new_canvas(height)
        draw_title(canvas, title, height - HEAD / 2)
        draw_legend(canvas, entries, _GUTTER, height - HEAD, PAGE_WIDTH - _GUTTER)
        axes = panel_axes(figure, _GUTTER, FOOT, PAGE_WIDTH - _GUTTER - _RIGHT, _HEIGHT, "learning")
        for name, seeds in curves.items():
            _draw(axes, seeds, found[name].colour)
        axes.margins(x=0.01, y=0.05)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
        dress_axes(axes, "iteration", axis, grid="y")
    return figure


def _draw(axes: Axes, seeds: Sequence[Sequence[float]], colour: str) -> None:
    for values in seeds:
        axes.plot(range(len(values)), values, color=colour, linewidth=0.8, alpha=0.4)
    mean = mean_curve(seeds)
    axes.plot(range(len(mean)), mean, color=colour, linewidth=2)
