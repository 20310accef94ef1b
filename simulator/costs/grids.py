"""Costs on a grid: priced at nodes, and read off straight lines between them."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rlplan.estimate import Estimate, Source

# Operators are priced at these sizes, and between them on straight lines: steps are nearly affine
# in each, and engines pad batches to sizes of this kind anyway.
EXACT_NODES = 8
NODE_RATIO = 1.25

Known = dict[tuple[int, ...], Estimate]


MOST_ROWS = 4096  # that a grid remembers

# Far more sequences or tokens than any step has.
LARGEST_NODE = 1e12


def _all_nodes() -> list[int]:
    found = list(range(EXACT_NODES))
    power = 0
    while found[-1] < LARGEST_NODE:
        found.append(round(EXACT_NODES * NODE_RATIO**power))
        power += 1
    return found


NODES = _all_nodes()


def nodes(value: float) -> tuple[int, int, float]:
    """Return the nodes around a value and how far it lies between them."""
    place = bisect_right(NODES, value)
    low = NODES[place - 1]
    if value == low:
        return low, low, 0.0
    high = NODES[place]
    return low, high, (value - low) / (high - low)


def nodes_around(value: float) -> tuple[int, int]:
    """Return the last node that is not above a value, and the next one."""
    place = bisect_right(NODES, value)
    return NODES[place - 1], NODES[place]


def stretches(first: float, steps: int) -> Iterator[tuple[float, int]]:
    """Yield runs of steps at first, first + 1, ... that lie between two nodes each.

    Costs on straight lines between nodes are the mean's, times the steps, in each.

    Yields:
        The mean of a run, and its number of steps.
    """
    while steps:
        end = NODES[bisect_right(NODES, first)]
        count = min(steps, math.floor(end - first) + 1)
        yield first + (count - 1) / 2, count
        first += count
        steps -= count


class Note(NamedTuple):
    """Hold how well a cost is known.

    Attributes:
        spread: Standard deviation over the seconds.
    """

    spread: float
    source: Source
    outside_range: bool


NOTHING = Note(0.0, Source.MEASURED, outside_range=False)


def note_of(estimate: Estimate) -> Note:
    """Return how well an estimate is known; one of no seconds has nothing to know."""
    if estimate.seconds <= 0:
        return NOTHING
    spread = estimate.spread_seconds / estimate.seconds
    return Note(spread, estimate.source, estimate.outside_range)


def worst_of(notes: Iterable[Note]) -> Note:
    """Return the largest spread and the weakest source of all."""
    every = (NOTHING, *notes)
    return Note(
        max(note.spread for note in every),
        max(note.source for note in every),
        any(note.outside_range for note in every),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """Hold costs by the place of the last coordinate's node in `NODES`; NaN is not asked for yet."""

    seconds: list[float] = field(default_factory=lambda: [math.nan] * len(NODES))
    notes: list[Note] = field(default_factory=lambda: [NOTHING] * len(NODES))


class Grid:
    """Read costs off straight lines between nodes, in as many dimensions as the cost has.

    Args:
        known: Estimates that are priced already.
    """

    def __init__(self, cost: Callable[..., Estimate], known: Known) -> None:
        self._cost, self._known = cost, known
        # By all coordinates but the last, which are nodes or lie between them.
        self._rows: dict[tuple[float, ...], _Row] = {}

    def __call__(self, notes: set[Note], *at: float) -> float:
        """Return seconds at a place that need not be a node.

        Args:
            notes: Gets how well the nodes around are known.
        """
        row = self._rows.get(at[:-1])
        if row is None:
            if len(self._rows) >= MOST_ROWS:
                self._rows.clear()
            row = self._rows[at[:-1]] = _Row()
        last = at[-1]
        place = bisect_right(NODES, last) - 1
        low = NODES[place]
        seconds = row.seconds[place]
        if seconds != seconds:  # noqa: PLR0124 -- the quickest test for NaN, in the hottest place
            seconds = self._fill(row, at[:-1], place)
        notes.add(row.notes[place])
        if last == low:
            return seconds
        upper = row.seconds[place + 1]
        if upper != upper:  # noqa: PLR0124
            upper = self._fill(row, at[:-1], place + 1)
        notes.add(row.notes[place + 1])
        return seconds + (last - low) / (NODES[place + 1] - low) * (upper - seconds)

    def _fill(self, row: _Row, first: tuple[float, ...], place: int) -> float:
        notes: set[Note] = set()
        seconds = row.seconds[place] = self._between(notes, (), first, NODES[place])
        row.notes[place] = worst_of(notes)
        return seconds

    def _between(
        self, notes: set[Note], fixed: tuple[int, ...], rest: tuple[float, ...], last: int
    ) -> float:
        """Return seconds at a node of the last coordinate, and any place of the others."""
        if not rest:
            return self._at(notes, (*fixed, last))
        low, high, share = nodes(rest[0])
        seconds = self._between(notes, (*fixed, low), rest[1:], last)
        if share:
            upper = self._between(notes, (*fixed, high), rest[1:], last)
            seconds += share * (upper - seconds)
        return seconds

    def _at(self, notes: set[Note], node: tuple[int, ...]) -> float:
        estimate = self._known.get(node)
        if estimate is None:
            estimate = self._known[node] = self._cost(*node)
        notes.add(note_of(estimate))
        return estimate.seconds
