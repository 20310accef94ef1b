"""What a page draws itself, of HTML that fits any width and reacts: what each shows, as shares of its width.

A widget names its template in `reports/templates/`; the Markdown version has a picture in its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rlplan.reports.pictures.stacked_bars import Bar as Stack
from rlplan.reports.pictures.stacked_bars import piece_looks, pieces_in_order
from rlplan.reports.tables.wording import interval, percent
from rlplan.results.forecast import MemoryMoment
from rlplan.results.measurement import Comparison, StepCheck
from rlplan.units import seconds_scale, show_bytes, show_seconds


class Widget(Protocol):
    """Be one drawing of a page."""

    @property
    def template(self) -> str:
        """Return the name of its template."""
        ...


def share(value: float, whole: float) -> str:
    """Return a value as a share of a whole for style sheets: `12.3457%`."""
    return f"{100 * value / whole:.4f}".rstrip("0").rstrip(".") + "%" if whole else "0%"


def even_ticks(end: float, unit: float, most: int) -> list[float]:
    """Return round values from 0 to an end, at most so many, in steps of 1, 2 or 5 times a power of ten of a unit."""
    if end <= 0:
        return [0.0]
    step = unit * 10.0**-MOST_DIGITS
    while end / step >= most:
        for factor in (2.0, 2.5, 2.0):
            step *= factor
            if end / step < most:
                break
    return [index * step for index in range(int(end / step + NEARLY) + 1)]


def short_scale(largest_seconds: float) -> tuple[str, float]:
    """Return the unit of an axis of seconds: its symbol and its length in seconds."""
    word, unit = seconds_scale(largest_seconds)
    return _SYMBOLS.get(word, word), unit


_SYMBOLS = {
    "hours": "h", "minutes": "min", "seconds": "s", "milliseconds": "ms", "microseconds": "µs",
}  # fmt: skip
MOST_DIGITS, NEARLY = 6, 1e-9


# What plans leave free unless a job says otherwise (`rlplan.planner.requests.specs.USUAL_HEADROOM`).
USUAL_FREE_FRACTION = 0.10
# Room to the right of a capacity, so that its line stands apart from the edge.
MARGIN = 1.04
# A capacity farther out than this many peaks would press the bars into a sliver.
MOST_PEAKS_SHOWN = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Hold one term of a bar."""

    words: str
    left: str
    width: str
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Hold what lies in memory during one task.

    Attributes:
        is_bad: Whether it is more than there is.
    """

    name: str
    remark: str
    is_bad: bool
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """Hold a pool's rows.

    Attributes:
        capacity: Where the memory ends; empty where that is beyond the scale.
        usual: Where only the usual share of it is free.
    """

    name: str
    rows: tuple[Row, ...]
    capacity: str
    usual: str
    measured: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBars:
    """Hold all pools on one scale, with the colour of every term."""

    pools: tuple[PoolMemory, ...]
    legend: tuple[tuple[str, str], ...]
    template: ClassVar[str] = "memory.html.j2"


def memory_bars(
    moments: Sequence[MemoryMoment],
    measured_bytes: Mapping[str, int] | None = None,
    heading: str = "Pool {}",
) -> MemoryBars:
    """Return bars of moments, in their order, a heading for each pool.

    Args:
        measured_bytes: Peaks by pool, of a run.
        heading: Of each pool, with a place for its name.
    """
    measured_bytes = measured_bytes or {}
    stacks = [
        Stack(name=each.during, pieces={t: float(s) for t, s in each.terms.items()}, remark="")
        for each in moments
    ]
    colours = {name: look.colour for name, look in piece_looks(stacks).items()}
    filled = max([stack.length for stack in stacks] + [float(b) for b in measured_bytes.values()])
    capacity = max(each.capacity_bytes for each in moments)
    end = max(filled, capacity) * MARGIN
    if capacity > filled * MOST_PEAKS_SHOWN:
        end = filled * MARGIN
    pools = dict.fromkeys(each.pool for each in moments)
    return MemoryBars(
        pools=tuple(
            _pool(
                heading.format(pool),
                [each for each in moments if each.pool == pool],
                colours,
                end,
                measured_bytes.get(pool),
            )
            for pool in pools
        ),
        legend=tuple(colours.items()),
    )


def _pool(
    name: str,
    moments: Sequence[MemoryMoment],
    colours: Mapping[str, str],
    end: float,
    measured: int | None,
) -> PoolMemory:
    capacity = moments[0].capacity_bytes
    usual = capacity * (1 - USUAL_FREE_FRACTION)
    return PoolMemory(
        name=name,
        rows=tuple(_moment_row(each, colours, end) for each in moments),
        capacity=share(capacity, end) if capacity <= end else "",
        usual=share(usual, end) if usual <= end else "",
        measured=share(measured, end) if measured is not None else "",
    )


def _moment_row(moment: MemoryMoment, colours: Mapping[str, str], end: float) -> Row:
    whole, pieces, left = sum(moment.terms.values()), [], 0.0
    for term, size in pieces_in_order(moment.terms, colours):
        pieces.append(
            Piece(
                words=f"{term}: {show_bytes(round(size))}",
                left=share(left, end),
                width=share(size, end),
                colour=colours[term],
            )
        )
        left += size
    filled = percent(whole / moment.capacity_bytes)
    return Row(
        name=moment.during,
        remark=f"{show_bytes(whole)} of {show_bytes(moment.capacity_bytes)} ({filled})",
        is_bad=whole > moment.capacity_bytes,
        pieces=tuple(pieces),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRow:
    """Hold a row as shares of the width.

    Attributes:
        verdict: Of the measured value, in a word; empty for none.
    """

    name: str
    words: str
    verdict: str
    forecast: str
    left: str
    width: str
    measured: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Hold rows, each on a scale of its own: what is told is the ratio.

    Attributes:
        band: What the range is.
    """

    rows: tuple[RangeRow, ...]
    band: str
    template: ClassVar[str] = "ranges.html.j2"


def ranges_of_check(found: StepCheck) -> Ranges:
    """Return the stages of a step that was checked, the step last."""
    band = "normal range"
    rows = (
        _row(
            each.name,
            band,
            measured_seconds=each.measured_seconds,
            forecast_seconds=each.forecast_seconds,
            range_seconds=each.normal_seconds,
            verdict=each.verdict,
        )
        for each in (*found.stages, *((found.step,) if found.step else ()))
    )
    return Ranges(rows=tuple(rows), band=band)


def ranges_of_run(comparison: Comparison) -> Ranges:
    """Return the tasks of a run at the lengths that it had, the iteration last."""
    band = "measured p10 to p90"
    rows = (
        _row(
            row.name,
            band,
            measured_seconds=row.measured_median_seconds,
            forecast_seconds=row.forecast_seconds
            if row.as_run_seconds is None
            else row.as_run_seconds,
            range_seconds=row.measured_interval_seconds,
        )
        for row in (*comparison.rows, comparison.iteration)
        if row.forecast_seconds > 0
    )
    return Ranges(rows=tuple(rows), band=band)


def _row(
    name: str,
    band: str,
    *,
    measured_seconds: float,
    forecast_seconds: float,
    range_seconds: tuple[float, float],
    verdict: str = "",
) -> RangeRow:
    low, high = range_seconds
    end = max(forecast_seconds, high, measured_seconds) * MARGIN
    measured, forecast = show_seconds(measured_seconds), show_seconds(forecast_seconds)
    return RangeRow(
        name=name,
        words=f"measured {measured}, forecast {forecast} ({band} {interval(range_seconds)})",
        verdict=verdict,
        forecast=share(forecast_seconds, end),
        left=share(low, end),
        width=share(high - low, end),
        measured=share(measured_seconds, end),
    )
