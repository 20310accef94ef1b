"""The timeline of an iteration, forecast and measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rlplan.plan import Plan
from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.pictures.picture import (
    ACTIVITY_COLOURS,
    FAINT,
    INK,
    PAGE_WIDTH,
    SMALL_SIZE,
    TASK_COLOURS,
    FillStyle,
    LegendEntry,
    Picture,
    draw_legend,
    draw_title,
    drawing,
    elided,
    legend_height,
    looks,
    new_canvas,
    panel_axes,
    picture,
    readable_on,
    text_width,
)
from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import counted
from rlplan.reports.widgets import even_ticks, share, short_scale
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import MeasuredRun
from rlplan.trace import IterationSpan, Span, Trace
from rlplan.units import seconds_scale, show_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Hold one iteration to draw; its spans start at 0 when the iteration does.

    Attributes:
        label: `forecast` or `measured`.
        spans: The iteration's own.
        drawn: Those seen while it lasts, the parts of overlapping iterations included.
    """

    label: str
    title: str
    seconds: float
    spans: tuple[Span, ...]
    drawn: tuple[Span, ...]

    @property
    def end_seconds(self) -> float:
        """Return when the last thing ends, counted from the iteration's start."""
        return max([self.seconds, *(span.end_seconds for span in self.drawn)])


def forecast_panel(forecast: Forecast) -> Panel:
    """Return the iteration of a forecast that is nearest to its steady state."""
    steady = forecast.iteration_seconds
    chosen = min(
        forecast.trace.iterations,
        key=lambda each: (abs(each.seconds - steady), each.iteration),
        default=IterationSpan(iteration=0, start_seconds=0.0, end_seconds=steady),
    )
    return Panel(
        label="forecast",
        title=f"Forecast: an iteration takes {show_seconds(chosen.seconds)}",
        seconds=chosen.seconds,
        spans=_from_start(forecast.work_trace, chosen),
        drawn=_spans_during(forecast.work_trace, chosen),
    )


def measured_panel(run: MeasuredRun) -> Panel | None:
    """Return the median iteration after the warm-up; None if there is none."""
    chosen = median_iteration(run)
    if chosen is None:
        return None
    return Panel(
        label="measured",
        title=f"Measured: iteration {chosen.iteration}, the median one, took "
        f"{show_seconds(chosen.seconds)}",
        seconds=chosen.seconds,
        spans=_from_start(run.trace, chosen),
        drawn=_spans_during(run.trace, chosen),
    )


def panels_of(forecast: Forecast, run: MeasuredRun | None) -> list[Panel]:
    """Return the forecast's iteration and, if there was a run, its median one."""
    measured = measured_panel(run) if run else None
    return [forecast_panel(forecast), *([measured] if measured else [])]


def median_iteration(run: MeasuredRun) -> IterationSpan | None:
    """Return the iteration of median length after the warm-up, the lower one of two."""
    counted = [each for each in run.trace.iterations if each.iteration >= run.warmup_iterations]
    ranked = sorted(counted, key=lambda each: (each.seconds, each.iteration))
    return ranked[(len(ranked) - 1) // 2] if ranked else None


def _from_start(trace: Trace, iteration: IterationSpan) -> tuple[Span, ...]:
    start = iteration.start_seconds
    return tuple(
        replace(
            span, start_seconds=span.start_seconds - start, end_seconds=span.end_seconds - start
        )
        for span in trace.of_iteration(iteration.iteration)
    )


def _spans_during(trace: Trace, iteration: IterationSpan) -> tuple[Span, ...]:
    """Return all spans during an iteration; spans of other iterations are cut at its ends."""
    own = _from_start(trace, iteration)
    others = (
        span
        for number in (iteration.iteration - 1, iteration.iteration + 1)
        for span in _from_start(trace, replace(iteration, iteration=number))
    )
    cut = [replace(span, end_seconds=min(span.end_seconds, iteration.seconds)) for span in others]
    seen = [replace(span, start_seconds=max(span.start_seconds, 0.0)) for span in (*own, *cut)]
    return tuple(span for span in seen if span.start_seconds < span.end_seconds)


def lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """Return the spans of one pool in as few lanes as keep them from overlapping."""
    found: list[list[Span]] = []
    for span in sorted(spans, key=lambda each: (each.start_seconds, each.name)):
        free = next((lane for lane in found if lane[-1].end_seconds <= span.start_seconds), None)
        if free is None:
            found.append([span])
        else:
            free.append(span)
    return found


_LANE, _ROW_GAP, _TITLE, _AXIS, _PANEL_GAP, _RIGHT = 24.0, 8.0, 22.0, 30.0, 6.0, 14.0
_LARGEST_GUTTER = 150.0
_THIN = 4.0


def timelines_figure(plan: Plan, forecast: Forecast, run: MeasuredRun | None = None) -> Figure:
    """Draw the forecast's iteration and, if there was a run, its median one on the same scale."""
    panels = panels_of(forecast, run)
    seen = {span.pool for panel in panels for span in panel.spans}
    pools = list(dict.fromkeys([pool.name for pool in plan.pools] + sorted(seen)))
    end = max(panel.end_seconds for panel in panels) * 1.02 or 1.0
    found = task_looks(forecast, panels)
    with drawing():
        gutter = min(max(text_width(pool) for pool in pools), _LARGEST_GUTTER) + 12
        entries = _legend(panels, found)
        heights = [_rows_height(panel, pools) for panel in panels]
        legend = legend_height(entries, PAGE_WIDTH)
        height = sum(heights) + len(panels) * (_TITLE + _AXIS + _PANEL_GAP) + legend + 4
        figure, canvas = new_canvas(height)
        top = height
        for panel, rows_height in zip(panels, heights, strict=True):
            draw_title(canvas, panel.title, top - _TITLE / 2)
            top -= _TITLE + rows_height
            width = PAGE_WIDTH - gutter - _RIGHT
            axes = panel_axes(figure, gutter, top, width, rows_height, panel.label)
            _draw_panel(axes, panel, pools, found, width_points=width, end_seconds=end)
            top -= _AXIS + _PANEL_GAP
        draw_legend(canvas, entries, 0, top, PAGE_WIDTH)
    return figure


def timelines_picture(plan: Plan, forecast: Forecast, run: MeasuredRun | None) -> Picture:
    """Return the timelines, forecast above measured."""
    titles = [panel.title for panel in panels_of(forecast, run)]
    name = "Forecast and measured timelines" if len(titles) > 1 else "Forecast timeline"
    return picture(
        timelines_figure(plan, forecast, run),
        name="timelines",
        title=f"{name} of one iteration",
        description=". ".join(titles) + ". Pools are rows, tasks are bars, time runs to the right.",
    )


def key_of(span: Span) -> str:
    """Return what a span counts as in the legend: transfers of all data are one thing."""
    return span.name if span.activity == "task" else span.activity


def task_looks(forecast: Forecast, panels: Sequence[Panel]) -> dict[str, FillStyle]:
    """Return a look for every task, in the dataflow's order, and one for each other activity."""
    spans = [span for panel in panels for span in panel.spans]
    known = [task.name for task in forecast.costs if task.activity == "task"]
    known += sorted({span.name for span in spans if span.activity == "task"})
    others = {name: FillStyle(colour) for name, colour in ACTIVITY_COLOURS.items()}
    return looks(known, TASK_COLOURS) | others


def _legend(panels: Sequence[Panel], found: dict[str, FillStyle]) -> list[LegendEntry]:
    entries = []
    present = {key_of(span) for panel in panels for span in panel.spans}
    for name, look in found.items():
        if name not in present:
            continue
        told = (
            sum(span.seconds for span in panel.spans if key_of(span) == name) for panel in panels
        )
        entries.append(LegendEntry(name, look, " / ".join(map(show_seconds, told))))
    return entries


def _rows_height(panel: Panel, pools: Sequence[str]) -> float:
    return sum(_row_height(panel, pool) for pool in pools)


def _row_height(panel: Panel, pool: str) -> float:
    count = len(lanes([span for span in panel.drawn if span.pool == pool]))
    return max(count, 1) * _LANE + _ROW_GAP


def _draw_panel(
    axes: Axes,
    panel: Panel,
    pools: Sequence[str],
    found: dict[str, FillStyle],
    *,
    width_points: float,
    end_seconds: float,
) -> None:
    axes.set_xlim(0, end_seconds)
    axes.set_ylim(_rows_height(panel, pools), 0)
    axes.grid(axis="x")
    top = 0.0
    middles = []
    for pool in pools:
        row_height = _row_height(panel, pool)
        axes.add_patch(
            Rectangle(
                (0, top + _ROW_GAP / 2), panel.seconds, row_height - _ROW_GAP, facecolor=FAINT
            )
        )
        for number, lane in enumerate(lanes([span for span in panel.drawn if span.pool == pool])):
            for span in lane:
                _draw_span(
                    axes, span, found[key_of(span)],
                    top=top + _ROW_GAP / 2 + number * _LANE,
                    points_per_second=width_points / end_seconds,
                )  # fmt: skip
        middles.append(top + row_height / 2)
        top += row_height
    axes.axvline(panel.seconds, color=INK, linewidth=1, linestyle=(0, (3, 2)))
    axes.set_yticks(middles, [elided(pool, _LARGEST_GUTTER) for pool in pools], color=INK)
    axes.tick_params(axis="both", length=0)
    axes.spines["left"].set_visible(False)
    word, each_seconds = seconds_scale(end_seconds)
    _tick_in_unit(axes, word, each_seconds, end_seconds)


def _tick_in_unit(axes: Axes, word: str, each_seconds: float, end_seconds: float) -> None:
    """Set ticks at round numbers of the axis's unit and name the unit."""
    locator = MaxNLocator(nbins=9, steps=[1, 2, 2.5, 5, 10])
    ticks = [
        tick * each_seconds
        for tick in locator.tick_values(0, end_seconds / each_seconds)
        if 0 <= tick * each_seconds <= end_seconds
    ]
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / each_seconds:g}"))
    axes.set_xlabel(f"{word} since the iteration's start", size=SMALL_SIZE, labelpad=2)


def _draw_span(
    axes: Axes, span: Span, look: FillStyle, *, top: float, points_per_second: float
) -> None:
    room = span.seconds * points_per_second
    # Bars that touch are told apart by a white line, which would swallow the thinnest.
    is_thin = room < _THIN
    axes.add_patch(
        Rectangle(
            (span.start_seconds, top + 1), span.seconds, _LANE - 2,
            facecolor=look.colour, hatch=look.hatch, zorder=2,
            edgecolor=look.colour if is_thin else "white", linewidth=0.4 if is_thin else 0.7,
        )
    )  # fmt: skip
    label = _label_that_fits(span, room - 6)
    if label:
        axes.text(
            span.start_seconds + span.seconds / 2, top + _LANE / 2, label, size=SMALL_SIZE,
            ha="center", va="center", color=readable_on(look.colour), zorder=3, clip_on=True,
        )  # fmt: skip


def _label_that_fits(span: Span, room: float) -> str:
    """Return the task's whole name, or only its function, or nothing."""
    for label in (span.name, span.name.rpartition(".")[2]):
        if text_width(label, SMALL_SIZE) <= room:
            return label
    return ""


MOST_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Hold one span.

    Attributes:
        left: Where it begins, as a share of the width, as style sheets have it.
        figures: When it begins, when it ends, what it takes.
        words: What is told of it on demand.
    """

    label: str
    figures: tuple[str, str, str]
    words: str
    left: str
    width: str
    lane: int
    colour: str
    ink: str
    is_hatched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Hold a pool with its bars, in lanes in which none lies on another."""

    name: str
    lanes: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Hold one iteration.

    Attributes:
        end: Where it ends, as a share of the width.
    """

    title: str
    end: str
    tracks: tuple[Track, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Hold charts on one scale.

    Attributes:
        ticks: (share of the width, words) of the scale.
    """

    charts: tuple[Chart, ...]
    ticks: tuple[tuple[str, str], ...]
    template: ClassVar[str] = "timeline.html.j2"


def timeline_of(plan: Plan, forecast: Forecast, run: MeasuredRun | None = None) -> Timeline:
    """Return the forecast's iteration and, if there was a run, its median one."""
    panels = panels_of(forecast, run)
    end = max(panel.end_seconds for panel in panels) or 1.0
    looks = task_looks(forecast, panels)
    seen = {span.pool for panel in panels for span in panel.drawn}
    pools = list(dict.fromkeys([*(pool.name for pool in plan.pools), *sorted(seen)]))
    word, unit = short_scale(end)
    return Timeline(
        charts=tuple(_chart(panel, pools, looks, end) for panel in panels),
        ticks=tuple(
            (share(tick, end), f"{tick / unit:g} {word}")
            for tick in even_ticks(end, unit, MOST_TICKS)
        ),
    )


def _chart(panel: Panel, pools: Sequence[str], looks: dict[str, FillStyle], end: float) -> Chart:
    tracks = []
    for pool in pools:
        rows = lanes([span for span in panel.drawn if span.pool == pool])
        bars = [
            _bar(span, lane, looks[key_of(span)], end)
            for lane, spans in enumerate(rows)
            for span in spans
        ]
        ordered = sorted(bars, key=lambda bar: float(bar.left.rstrip("%")))
        tracks.append(Track(name=pool, lanes=max(1, len(rows)), bars=tuple(ordered)))
    return Chart(title=panel.title, end=share(panel.seconds, end), tracks=tuple(tracks))


def _bar(span: Span, lane: int, look: FillStyle, end: float) -> Bar:
    times = (span.start_seconds, span.end_seconds, span.seconds)
    begin, stop, length = (show_seconds(each) for each in times)
    return Bar(
        label=span.name,
        figures=(begin, stop, length),
        words=f"{span.name} on {span.pool}: {length}, from {begin} to {stop}",
        left=share(span.start_seconds, end),
        width=share(span.seconds, end),
        lane=lane,
        colour=look.colour,
        ink=readable_on(look.colour),
        is_hatched=bool(look.hatch),
    )


def timeline_table(timeline: Timeline) -> Table:
    """Return every bar as a row."""
    return Table(
        columns=columns("Iteration", "Pool", "Work", "#Begins", "#Ends", "#Takes"),
        rows=tuple(
            (chart.title.partition(":")[0], track.name, bar.label, *bar.figures)
            for chart in timeline.charts
            for track in chart.tracks
            for bar in track.bars
        ),
    )


ORDER = 20


def section(subject: Subject) -> Section:
    """Return the timelines on one scale."""
    run, forecast = subject.run, subject.as_run or subject.forecast
    words = (
        "Pools are rows, tasks are bars that begin where workers do; calls that hand work over lie between "
        "them. The dashed line is the iteration's end. "
    )
    if run and median_iteration(run):
        left_out = counted(run.warmup_iterations, "warm-up iteration")
        words += (
            "Both timelines have the same scale. The measured iteration is the one of median length, "
            f"{left_out} left out."
        )
    if subject.as_run is not None:
        words += " The forecast is the one at the lengths that the run had."
    timeline = timeline_of(subject.plan, forecast, run)
    return Section(
        key="timelines",
        title="Timeline: forecast and measured" if run else "Timeline: forecast",
        short="Timeline",
        words=(words,),
        picture=timelines_picture(subject.plan, forecast, run),
        widgets=(timeline,),
        parts=(
            Part(table=timeline_table(timeline), heading="All bars as a table", is_folded=True),
        ),
    )
