"""The page of a reproduced evaluation: claims, figures with published values beside them, every point."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from rlplan.files.writing import write_text
from rlplan.reports.pages.report import as_markdown
from rlplan.reports.pictures.picture import (
    PAGE_WIDTH,
    SERIES_COLOURS,
    FillStyle,
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
)
from rlplan.reports.tables.accuracy import claims_table, points_table, series_table
from rlplan.reports.tables.plans import Table, markdown_lines
from rlplan.results.accuracy import Point, Reproduction


def write_reproduction_page(folder: Path, found: Reproduction, command: str) -> Path:
    """Write the page and its pictures into a folder, and return the page's path.

    Args:
        command: What made the page, for whoever wants to make it again.
    """
    lines = _head(found, command)
    for figure in dict.fromkeys(point.figure for point in found.points):
        points = [point for point in found.points if point.figure == figure]
        lines += [f"## {figure}", ""]
        if points[0].quantity != "bytes" and any(point.forecast is not None for point in points):
            drawn = figure_picture(figure, points)
            write_text(folder / found.name / drawn.file_name, drawn.file_text)
            lines += [f"![{drawn.title}]({found.name}/{drawn.file_name})", ""]
        lines += ["<details>", f"<summary>All points of {figure}</summary>", ""]
        lines += [*_markdown(points_table(points)), "", "</details>", ""]
    path = folder / f"{found.name}.md"
    write_text(path, "\n".join(lines).rstrip() + "\n")
    return path


def _head(found: Reproduction, command: str) -> list[str]:
    held = sum(claim.holds for claim in found.claims)
    return [
        f"# {found.title}",
        "",
        f"Made by `{command}`. {found.source}.",
        "",
        f"{held} of {len(found.claims)} claims of the paper hold in the forecasts.",
        "",
        "## Claims",
        "",
        *_markdown(claims_table(found.claims)),
        "",
        "## What to know before judging",
        "",
        *(f"- {_cell(note)}" for note in found.notes),
        "",
        "## Errors against published values",
        "",
        *_markdown(series_table(found.points)),
        "",
    ]


def _markdown(table: Table) -> list[str]:
    return markdown_lines(table, _cell)


def _cell(text: str) -> str:
    return str(as_markdown(text))


_PLOT_HEIGHT, _HEAD, _FOOT, _GUTTER = 150.0, 22.0, 34.0, 58.0
_TITLE = 22.0
_BY_TP = re.compile(r"(.*), TP (\d+)$")
_UNITS = {
    "tokens_per_second": "tokens/s",
    "frames_per_second": "frames/s",
    "seconds": "seconds",
    "bytes": "bytes",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """Hold one point of a curve."""

    x: int
    forecast: float | None
    published: float | None


Curves = dict[str, dict[str, list[Mark]]]


def figure_picture(name: str, points: Sequence[Point]) -> Picture:
    """Return the picture of one figure of the evaluation, a panel for each of its parts."""
    return picture(
        _figure(name, points),
        name=f"reproduction-{name.lower().replace(' ', '-')}",
        title=f"{name}: forecast and published values",
        description=f"{len(points)} points, {sum(each.published is not None for each in points)} of "
        "them with a published value.",
    )


def curves_of(points: Sequence[Point]) -> tuple[Curves, str]:
    """Return the marks by panel and series, and what the horizontal axis counts."""
    by_tp = all(_BY_TP.match(point.series) for point in points)
    found: Curves = {}
    for point in points:
        series, x = point.series, point.gpus
        if by_tp:
            match = _BY_TP.match(point.series)
            assert match is not None, "all series are by TP"
            series, x = match.group(1), int(match.group(2))
        mark = Mark(x, point.forecast, point.published)
        found.setdefault(point.panel, {}).setdefault(series, []).append(mark)
    return found, "generation TP" if by_tp else "GPUs"


def _figure(name: str, points: Sequence[Point]) -> Figure:
    curves, counted = curves_of(points)
    names = dict.fromkeys(series for panel in curves.values() for series in panel)
    found = looks(names, SERIES_COLOURS)
    entries = [LegendEntry(series, look) for series, look in found.items()]
    column = PAGE_WIDTH / 2
    rows = -(-len(curves) // 2)
    with drawing():
        legend = legend_height(entries, PAGE_WIDTH)
        panel_height = _HEAD + _PLOT_HEIGHT + _FOOT
        height = _TITLE + legend + rows * panel_height
        figure, canvas = new_canvas(height)
        title = f"{name}: lines are forecasts, hollow marks are published values"
        draw_title(canvas, title, height - _TITLE / 2)
        draw_legend(canvas, entries, 0, height - _TITLE, PAGE_WIDTH)
        for number, (panel, series) in enumerate(curves.items()):
            left = (number % 2) * column
            top = height - _TITLE - legend - (number // 2) * panel_height
            canvas.text(left + _GUTTER, top - _HEAD / 2, panel, va="center")
            axes = panel_axes(
                figure, left + _GUTTER, top - panel_height + _FOOT, column - _GUTTER - 14,
                _PLOT_HEIGHT, panel,
            )  # fmt: skip
            _draw_panel(axes, series, found)
            _set_axes(axes, series, counted, _UNITS[points[0].quantity])
    return figure


def _draw_panel(axes: Axes, series: dict[str, list[Mark]], found: dict[str, FillStyle]) -> None:
    for name, marks in series.items():
        colour = found[name].colour
        known = sorted((mark.x, mark.forecast) for mark in marks if mark.forecast)
        axes.plot(
            [x for x, _ in known], [value for _, value in known],
            color=colour, linewidth=1.4, marker="o", markersize=3.0,
        )  # fmt: skip
        told = [(mark.x, mark.published) for mark in marks if mark.published]
        axes.plot(
            [x for x, _ in told], [value for _, value in told],
            linestyle="none", marker="s", markersize=6.0, markerfacecolor="none",
            markeredgecolor=colour, markeredgewidth=1.2,
        )  # fmt: skip


def _set_axes(axes: Axes, series: dict[str, list[Mark]], counted: str, unit: str) -> None:
    ticks = sorted({mark.x for marks in series.values() for mark in marks})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    dress_axes(axes, counted, unit, grid="y")
