"""The timeline of an iteration, forecast and measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rlplan.plan import Plan
from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.pictures.style import FillStyle, readable_on
from rlplan.reports.pictures.timelines import (
    Panel,
    key_of,
    lanes,
    median_iteration,
    panels_of,
    task_looks,
    timelines_picture,
)
from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import counted
from rlplan.reports.widgets import even_ticks, share, short_scale
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import MeasuredRun
from rlplan.trace import Span
from rlplan.units import show_seconds

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
