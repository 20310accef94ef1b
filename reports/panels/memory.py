"""Memory against capacity, by term: a row for the fullest GPU of every pool."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.pictures.picture import MUTED, WARNING, FillStyle, LegendEntry, Picture, picture
from rlplan.reports.pictures.stacked_bars import Bar, Scale, stacked_figure
from rlplan.reports.tables.plans import memory_table, memory_terms_table
from rlplan.reports.tables.wording import percent
from rlplan.reports.widgets import MOST_PEAKS_SHOWN, memory_bars
from rlplan.results.forecast import Forecast, MemoryForecast, MemoryMoment
from rlplan.results.measurement import MeasuredRun
from rlplan.units import bytes_scale, show_bytes

ORDER = 40


def section(subject: Subject) -> Section | None:
    """Return the memory of every pool; None where the forecast has none."""
    forecast, run = subject.forecast, subject.run
    if not forecast.memory:
        return None
    return Section(
        key="memory",
        title="Memory against capacity",
        short="Memory",
        words=(
            (
                "What lies in the memory of every pool's fullest device. The line is its capacity; left of the "
                "dotted line, 10 % of it are free."
            ),
            *forecast.infeasible_reasons,
        ),
        picture=memory_picture(forecast, run),
        widgets=(memory_bars(_moments(subject), run.memory_peak_bytes if run else None),),
        parts=(
            Part(table=memory_table(forecast, run)),
            Part(table=memory_terms_table(forecast), heading="All terms", is_folded=True),
        ),
    )


def _moments(subject: Subject) -> tuple[MemoryMoment, ...]:
    """Return what lies in memory during every task; where that is not known, at the peaks alone."""
    forecast, known = subject.forecast, subject.details.memory if subject.details else ()
    order = {cost.name: place for place, cost in enumerate(forecast.costs)}
    if known:
        return tuple(sorted(known, key=lambda each: order.get(each.during, 0)))
    return tuple(
        MemoryMoment(
            pool=each.pool,
            during=each.peak_task,
            terms=each.terms,
            capacity_bytes=each.capacity_bytes,
        )
        for each in forecast.memory
        if each.terms and each.capacity_bytes
    )


def memory_figure(forecast: Forecast, run: MeasuredRun | None = None) -> Figure:
    """Draw the forecast peaks by term with each capacity, and the measured peaks under them."""
    measured: Mapping[str, int] = run.memory_peak_bytes if run else {}
    bars = [_bar(memory, measured.get(memory.pool)) for memory in forecast.memory]
    filled = max(max(bar.length, bar.second or 0.0) for bar in bars) or 1.0
    capacity = max(memory.capacity_bytes for memory in forecast.memory)
    shows_capacity = capacity <= filled * MOST_PEAKS_SHOWN
    end = max(capacity, filled) * 1.03 if shows_capacity else filled * 1.25
    word, each_bytes = bytes_scale(end)
    extra = []
    if any(bar.limit is not None and bar.limit <= end for bar in bars):
        extra.append(LegendEntry("capacity", FillStyle(WARNING)))
    if measured:
        extra.append(LegendEntry("measured peak of a process", FillStyle(MUTED)))
    axis = word if shows_capacity else f"{word} (the capacity lies farther to the right)"
    return stacked_figure(bars, Scale(end=end, unit=each_bytes, word=axis), extra)


def memory_picture(forecast: Forecast, run: MeasuredRun | None) -> Picture:
    """Return memory against capacity, by term and pool."""
    told = (
        f"pool {each.pool}: {show_bytes(each.gpu_peak_bytes)} of {show_bytes(each.capacity_bytes)}"
        for each in forecast.memory
    )
    return picture(
        memory_figure(forecast, run),
        name="memory",
        title="Memory against capacity, by term",
        description="; ".join(told) + ".",
    )


def _bar(memory: MemoryForecast, measured_bytes: int | None) -> Bar:
    share = percent(memory.gpu_peak_bytes / memory.capacity_bytes)
    peak, capacity = show_bytes(memory.gpu_peak_bytes), show_bytes(memory.capacity_bytes)
    remark = f"{peak} of {capacity} ({share})"
    if measured_bytes is not None:
        remark += f"\nmeasured {show_bytes(measured_bytes)}"
    return Bar(
        name=memory.pool,
        pieces={term: float(size) for term, size in memory.terms.items()},
        remark=remark,
        limit=float(memory.capacity_bytes),
        second=None if measured_bytes is None else float(measured_bytes),
        is_warning=not memory.fits,
    )
