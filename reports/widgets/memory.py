"""Memory of each pool's fullest GPU by term, task by task, against its capacity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rlplan.reports.pictures.stacked_bars import Bar as Stack
from rlplan.reports.pictures.stacked_bars import piece_looks, pieces_in_order
from rlplan.reports.tables.wording import percent
from rlplan.reports.widgets import share
from rlplan.results.plan_details import MemoryMoment
from rlplan.units import show_bytes

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
        rows=tuple(_row(each, colours, end) for each in moments),
        capacity=share(capacity, end) if capacity <= end else "",
        usual=share(usual, end) if usual <= end else "",
        measured=share(measured, end) if measured is not None else "",
    )


def _row(moment: MemoryMoment, colours: Mapping[str, str], end: float) -> Row:
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
