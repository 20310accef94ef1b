"""Learning curves: of a run over its iterations, and over several seeds."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rlplan.reports.pictures.picture import (
    FOOT,
    HEAD,
    INK,
    PAGE_WIDTH,
    SERIES_COLOURS,
    LegendEntry,
    Picture,
    draw_legend,
    draw_title,
    drawing,
    dress_axes,
    legend_height,
    looks,
    new_canvas,
    panel_axes,
    picture,
    write_figure,
)
from rlplan.reports.tables.wording import counted

Metrics = Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class _Topic:
    """Say which metrics belong on one panel, by words of their names."""

    title: str
    wanted: re.Pattern[str]
    unwanted: re.Pattern[str] = re.compile(r"(?!)")


_NOT_CURVES = re.compile(r"timing|seconds|clip|memory|bytes|tokens|(^|[_/])(std|min|max)$")
_TOPICS = (
    _Topic("Rule reward", re.compile(r"rule")),
    _Topic("Reward", re.compile(r"reward|score")),
    _Topic("KL divergence", re.compile(r"(^|[_/])kl([_/]|$)"), re.compile(r"coef")),
    _Topic("Losses", re.compile(r"loss")),
)
_READING_ORDER = ("Reward", "Rule reward", "KL divergence", "Losses")


def curves_by_topic(metrics: Metrics) -> dict[str, dict[str, list[float]]]:
    """Return the metrics worth a curve, by topic; what is absent in an iteration is NaN."""
    names = dict.fromkeys(name for row in metrics for name in row if name != "iteration")
    found: dict[str, dict[str, list[float]]] = {}
    for name in names:
        topic = topic_of(name)
        values = [float(row.get(name, math.nan)) for row in metrics]
        if topic and any(math.isfinite(value) for value in values):
            found.setdefault(topic, {})[name] = values
    return {topic: found[topic] for topic in _READING_ORDER if topic in found}


def topic_of(name: str) -> str | None:
    """Return the panel that a metric belongs to, or None."""
    low = name.lower()
    if _NOT_CURVES.search(low):
        return None
    for topic in _TOPICS:
        if topic.wanted.search(low) and not topic.unwanted.search(low):
            return topic.title
    return None


_PLOT_HEIGHT, _HEAD, _FOOT, _GUTTER = 130.0, 24.0, 34.0, 52.0


def curves_figure(metrics: Metrics) -> Figure | None:
    """Draw one panel per topic, two beside each other; None when there is nothing to draw."""
    topics = curves_by_topic(metrics)
    steps = [row.get("iteration", number) for number, row in enumerate(metrics)]
    return _panels(topics, steps) if topics else None


def evaluations_figure(evaluations: Metrics) -> Figure:
    """Draw what evaluations found on held-out prompts: the share of right responses, and of prompts with one."""
    curves = {
        name: [row[name] for row in evaluations]
        for name in evaluations[0]
        if name == "accuracy" or name.startswith("pass@")
    }
    lengths = {"response tokens": [row["response_tokens"] for row in evaluations]}
    topics = {"Held-out accuracy": curves, "Length of responses": lengths}
    return _panels(topics, [row["iteration"] for row in evaluations])


def _panels(topics: Mapping[str, Mapping[str, Sequence[float]]], steps: Sequence[float]) -> Figure:
    """Draw a panel of curves for each topic."""
    column = PAGE_WIDTH / 2
    width = column - _GUTTER - 14
    with drawing():
        legends = {topic: _entries(series) for topic, series in topics.items()}
        legend = max(legend_height(entries, width) for entries in legends.values())
        panel = _HEAD + legend + _PLOT_HEIGHT + _FOOT
        height = -(-len(topics) // 2) * panel
        figure, canvas = new_canvas(height)
        for number, (topic, series) in enumerate(topics.items()):
            left, top = (number % 2) * column, height - (number // 2) * panel
            draw_title(canvas, topic, top - _HEAD / 2, left)
            draw_legend(canvas, legends[topic], left + _GUTTER, top - _HEAD, width)
            bottom = top - panel + _FOOT
            axes = panel_axes(figure, left + _GUTTER, bottom, width, _PLOT_HEIGHT, topic)
            _draw_curves(axes, steps, series)
    return figure


def curves_picture(metrics: Metrics) -> Picture | None:
    """Return the learning curves, or None when the metrics hold none."""
    figure = curves_figure(metrics)
    if figure is None:
        return None
    told = [
        f"{name} from {values[0]:.4g} to {values[-1]:.4g}"
        for series in curves_by_topic(metrics).values()
        for name, values in series.items()
    ]
    return picture(
        figure,
        name="curves",
        title=f"Learning curves over {len(metrics)} iterations",
        description="; ".join(told) + ".",
    )


def evaluations_picture(evaluations: Metrics) -> Picture:
    """Return the curves of a run's evaluations."""
    first, last = evaluations[0], evaluations[-1]
    told = f"accuracy from {first['accuracy']:.4g} to {last['accuracy']:.4g}."
    title = f"Held-out prompts, {len(evaluations)} evaluations"
    return picture(
        evaluations_figure(evaluations), name="evaluations", title=title, description=told
    )


def _entries(series: Mapping[str, Sequence[float]]) -> list[LegendEntry]:
    found = looks(series, SERIES_COLOURS)
    return [
        LegendEntry(name, found[name], f"{_shown(values[0])} → {_shown(values[-1])}")
        for name, values in series.items()
    ]


def _draw_curves(axes: Axes, steps: Sequence[float], series: Mapping[str, Sequence[float]]) -> None:
    styles = ("-", (0, (4, 1.5)), (0, (1, 1.2)))
    for number, (values, look) in enumerate(
        zip(series.values(), looks(series, SERIES_COLOURS).values(), strict=True)
    ):
        axes.plot(
            steps, values, color=look.colour, linewidth=1.6, marker="o", markersize=2.6,
            linestyle=styles[number % len(styles)],
        )  # fmt: skip
    axes.margins(x=0.02, y=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _shown(value)))
    dress_axes(axes, "iteration", grid="y")
    axes.xaxis.label.set_color(INK)


def _shown(value: float) -> str:
    return f"{value:.3g}".replace("-", "\N{MINUS SIGN}") if math.isfinite(value) else "none"


Curves = Mapping[str, Sequence[Sequence[float]]]

_HEIGHT, _RIGHT = 240.0, 14.0


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
