"""Horizontal stacked bars with a legend and a value beside each row: memory terms, parts of tasks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rlplan.reports.pictures.picture import (
    FAINT,
    INK,
    MUTED,
    PAGE_WIDTH,
    REST_COLOUR,
    SMALL_SIZE,
    TASK_COLOURS,
    WARNING,
    FillStyle,
    LegendEntry,
    draw_legend,
    drawing,
    elided,
    legend_height,
    looks,
    new_canvas,
    panel_axes,
    text_width,
)
from rlplan.units import seconds_scale

REST = "other"
_MOST_COLOURS = len(TASK_COLOURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Hold one row.

    Attributes:
        pieces: Sizes by name, in one unit over all rows.
        remark: Text at the right end of the row.
        limit: Where a line marks the row's limit, if it has one.
        second: A thinner bar under the stack, if there is something to compare.
        is_warning: Whether the remark is set in the colour of warnings.
    """

    name: str
    pieces: Mapping[str, float]
    remark: str
    limit: float | None = None
    second: float | None = None
    is_warning: bool = False

    @property
    def length(self) -> float:
        """Return the sum of the pieces."""
        return sum(self.pieces.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Hold the axis that all rows share.

    Attributes:
        unit: The size of one tick unit, in the bars' unit.
        word: What the axis counts.
    """

    end: float
    unit: float
    word: str


_ROW, _BAR, _SECOND = 34.0, 18.0, 5.0
_LARGEST_GUTTER = 190.0


def stacked_figure(
    bars: Sequence[Bar], scale: Scale, extra_legend: Sequence[LegendEntry] = ()
) -> Figure:
    """Draw rows of stacked bars on one scale."""
    found = piece_looks(bars)
    with drawing():
        gutter = min(max(text_width(bar.name) for bar in bars), _LARGEST_GUTTER) + 12
        right = max(text_width(bar.remark, SMALL_SIZE) for bar in bars) + 14
        entries = [LegendEntry(name, look) for name, look in found.items()] + list(extra_legend)
        rows_height = len(bars) * _ROW
        height = 4 + rows_height + 34 + legend_height(entries, PAGE_WIDTH) + 4
        figure, canvas = new_canvas(height)
        width = PAGE_WIDTH - gutter - right
        bottom = height - 4 - rows_height
        axes = panel_axes(figure, gutter, bottom, width, rows_height, "bars")
        _draw_axis(axes, bars, scale)
        for number, bar in enumerate(bars):
            top = number * _ROW + (_ROW - _BAR) / 2
            _draw_bar(axes, bar, found, top, scale.end)
            canvas.text(
                PAGE_WIDTH - right + 10, bottom + rows_height - (number + 0.5) * _ROW, bar.remark,
                size=SMALL_SIZE, va="center", color=WARNING if bar.is_warning else INK,
            )  # fmt: skip
        draw_legend(canvas, entries, 0, bottom - 34, PAGE_WIDTH)
    return figure


def seconds_figure(bars: Sequence[Bar]) -> Figure:
    """Draw rows of seconds on a scale that ends a little behind the longest."""
    end = max(bar.length for bar in bars) * 1.02 or 1.0
    word, each_seconds = seconds_scale(end)
    return stacked_figure(bars, Scale(end=end, unit=each_seconds, word=word))


def piece_looks(bars: Sequence[Bar]) -> dict[str, FillStyle]:
    """Return a look for each piece, the largest over all rows first; the small rest shares one."""
    totals: dict[str, float] = {}
    for bar in bars:
        for name, size in bar.pieces.items():
            if size > 0:
                totals[name] = totals.get(name, 0.0) + size
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    if len(ranked) <= _MOST_COLOURS:
        return looks(ranked, TASK_COLOURS)
    return looks(ranked[:_MOST_COLOURS], TASK_COLOURS) | {REST: FillStyle(REST_COLOUR)}


def _draw_axis(axes: Axes, bars: Sequence[Bar], scale: Scale) -> None:
    axes.set_xlim(0, scale.end)
    axes.set_ylim(len(bars) * _ROW, 0)
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    names = [elided(bar.name, _LARGEST_GUTTER) for bar in bars]
    axes.set_yticks([(number + 0.5) * _ROW for number in range(len(bars))], names, color=INK)
    axes.tick_params(axis="both", length=0)
    ticks = MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]).tick_values(0, scale.end / scale.unit)
    axes.set_xticks([tick * scale.unit for tick in ticks if 0 <= tick * scale.unit <= scale.end])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale.unit:g}"))
    axes.set_xlabel(scale.word, size=SMALL_SIZE, labelpad=2)


def _draw_bar(axes: Axes, bar: Bar, found: dict[str, FillStyle], top: float, end: float) -> None:
    backdrop = end if bar.limit is None else min(bar.limit, end)
    axes.add_patch(Rectangle((0, top), backdrop, _BAR, facecolor=FAINT))
    left = 0.0
    for name, size in pieces_in_order(bar.pieces, found):
        look = found[name]
        axes.add_patch(
            Rectangle(
                (left, top), size, _BAR, facecolor=look.colour, hatch=look.hatch,
                edgecolor="white", linewidth=0.5, zorder=2,
            )
        )  # fmt: skip
        left += size
    if bar.second is not None:
        axes.add_patch(Rectangle((0, top + _BAR + 1), bar.second, _SECOND, facecolor=MUTED))
    if bar.limit is not None and bar.limit <= end:
        axes.plot(
            [bar.limit, bar.limit],
            [top - 5, top + _BAR + 7],
            color=WARNING,
            linewidth=1.6,
            zorder=3,
        )


def pieces_in_order(pieces: Mapping[str, float], named: Collection[str]) -> list[tuple[str, float]]:
    """Return pieces in the order of those that have a colour, what has none summed up last."""
    found = [(name, pieces[name]) for name in named if pieces.get(name, 0) > 0]
    rest = sum(size for name, size in pieces.items() if name not in named)
    if rest > 0:
        found = [(name, size) for name, size in found if name != REST]
        found.append((REST, rest + pieces.get(REST, 0.0)))
    return found
