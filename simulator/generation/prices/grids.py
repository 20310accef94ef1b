"""Costs on a grid: priced at nodes, and read off straight lines between them."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

from rlplan.estimate import Estimate, Source

# Operators are priced at these sizes, and between them on straight lines: steps are nearly affine
# in each, and engines pad batches to sizes of this kind anyway.
EXACT_NODES = 8
NODE_RATIO = 1.25

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


class CostQuality(NamedTuple):
    """Hold how well a cost is known.

    Attributes:
        spread: Standard deviation over the seconds.
    """

    spread: float
    source: Source
    outside_range: bool


NOTHING = CostQuality(0.0, Source.MEASURED, outside_range=False)


def note_of(estimate: Estimate) -> CostQuality:
    """Return how well an estimate is known; one of no seconds has nothing to know."""
    if estimate.seconds <= 0:
        return NOTHING
    spread = estimate.spread_seconds / estimate.seconds
    return CostQuality(spread, estimate.source, estimate.outside_range)


def worst_of(notes: Iterable[CostQuality]) -> CostQuality:
    """Return the largest spread and the weakest source of all."""
    every = (NOTHING, *notes)
    return CostQuality(
        max(note.spread for note in every),
        max(note.source for note in every),
        any(note.outside_range for note in every),
    )


class Grid:
    """Read costs off straight lines between nodes, in as many dimensions as the cost has."""

    def __init__(self, cost: Callable[..., Estimate]) -> None:
        self.at_node = cache(cost)  # what a node costs, asked once
        self._nodes: dict[tuple[int, ...], tuple[float, CostQuality]] = {}
        # By all coordinates but the last, which are nodes or lie between them.
        # Then by the place of the last coordinate's node in `NODES`.
        self._rows: dict[tuple[float, ...], dict[int, tuple[float, CostQuality]]] = {}

    def __call__(self, notes: set[CostQuality], *at: float) -> float:
        """Return seconds at a place that need not be a node.

        Args:
            notes: Gets how well the nodes around are known.
        """
        row = self._rows.get(at[:-1])
        if row is None:
            if len(self._rows) >= MOST_ROWS:
                self._rows.clear()
            row = self._rows[at[:-1]] = {}
        last = at[-1]
        place = bisect_right(NODES, last) - 1
        low = NODES[place]
        seconds, note = row.get(place) or self._fill(row, at[:-1], place)
        notes.add(note)
        if last == low:
            return seconds
        upper, note = row.get(place + 1) or self._fill(row, at[:-1], place + 1)
        notes.add(note)
        return seconds + (last - low) / (NODES[place + 1] - low) * (upper - seconds)

    def _fill(
        self, row: dict[int, tuple[float, CostQuality]], first: tuple[float, ...], place: int
    ) -> tuple[float, CostQuality]:
        notes: set[CostQuality] = set()
        seconds = self._between(notes, (), first, NODES[place])
        note = notes.pop() if len(notes) == 1 else worst_of(notes)
        found = row[place] = (seconds, note)
        return found

    def _between(
        self, notes: set[CostQuality], fixed: tuple[int, ...], rest: tuple[float, ...], last: int
    ) -> float:
        """Return seconds at a node of the last coordinate, and any place of the others."""
        if not rest:
            return self.at(notes, (*fixed, last))
        low, high, share = nodes(rest[0])
        seconds = self._between(notes, (*fixed, low), rest[1:], last)
        if share:
            upper = self._between(notes, (*fixed, high), rest[1:], last)
            seconds += share * (upper - seconds)
        return seconds

    def at(self, notes: set[CostQuality], node: tuple[int, ...]) -> float:
        """Return seconds at whole numbers, which need not be nodes."""
        found = self._nodes.get(node)
        if found is None:
            estimate = self.at_node(*node)
            found = self._nodes[node] = (estimate.seconds, note_of(estimate))
        notes.add(found[1])
        return found[0]
