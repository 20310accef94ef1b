"""Costs on a grid: priced at nodes, and read off straight lines between them."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator

from rlplan.estimate import Estimate

# Operators are priced at these sizes, and between them on straight lines: steps are nearly affine
# in each, and engines pad batches to sizes of this kind anyway.
EXACT_NODES = 8
NODE_RATIO = 1.25

Known = dict[tuple[int, ...], Estimate]


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


class Grid:
    """Read costs off straight lines between nodes, in as many dimensions as the cost has.

    Args:
        known: Estimates that are priced already, shared by all readers of one cost.
        note: Is given each estimate that this reader uses, once.
    """

    def __init__(
        self, cost: Callable[..., Estimate], known: Known, note: Callable[[Estimate], None]
    ) -> None:
        self._cost, self._known, self._note = cost, known, note
        self._noted: set[tuple[int, ...]] = set()
        # Places of all coordinates but the last, at nodes or between them -> values by the place
        # of the last one's node in `NODES`, NaN where not asked for yet.
        self._rows: dict[tuple[float, ...], list[float]] = {}

    def __call__(self, *at: float) -> float:
        """Return seconds at a place that need not be a node."""
        first, last = at[:-1], at[-1]
        row = self._rows.get(first)
        if row is None:
            row = self._rows[first] = [math.nan] * len(NODES)
        place = bisect_right(NODES, last) - 1
        low = NODES[place]
        seconds = row[place]
        if seconds != seconds:  # noqa: PLR0124 -- the quickest test for NaN, in the hottest place
            seconds = row[place] = self._between((), first, low)
        if last == low:
            return seconds
        upper = row[place + 1]
        if upper != upper:  # noqa: PLR0124
            upper = row[place + 1] = self._between((), first, NODES[place + 1])
        return seconds + (last - low) / (NODES[place + 1] - low) * (upper - seconds)

    def _between(self, fixed: tuple[int, ...], rest: tuple[float, ...], last: int) -> float:
        """Return seconds at a node of the last coordinate, and any place of the others."""
        if not rest:
            return self._at((*fixed, last))
        low, high, share = nodes(rest[0])
        seconds = self._between((*fixed, low), rest[1:], last)
        if share:
            seconds += share * (self._between((*fixed, high), rest[1:], last) - seconds)
        return seconds

    def _at(self, node: tuple[int, ...]) -> float:
        estimate = self._known.get(node)
        if estimate is None:
            estimate = self._known[node] = self._cost(*node)
        if node not in self._noted:
            self._noted.add(node)
            self._note(estimate)
        return estimate.seconds
