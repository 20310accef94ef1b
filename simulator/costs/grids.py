"""Costs on a grid: priced at nodes, and read off straight lines between them."""

from bisect import bisect_right
from collections.abc import Callable

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
        self._seconds: dict[tuple[int, ...], float] = {}
        # Places with all coordinates but the last at nodes or between them -> values by last node.
        self._rows: dict[tuple[float, ...], dict[int, float]] = {}

    def __call__(self, *at: float) -> float:
        """Return seconds at a place that need not be a node."""
        first = at[:-1]
        row = self._rows.get(first)
        if row is None:
            row = self._rows[first] = {}
        low, high, share = nodes(at[-1])
        seconds = row.get(low)
        if seconds is None:
            seconds = row[low] = self._between((), first, low)
        if not share:
            return seconds
        upper = row.get(high)
        if upper is None:
            upper = row[high] = self._between((), first, high)
        return seconds + share * (upper - seconds)

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
        seconds = self._seconds.get(node)
        if seconds is None:
            estimate = self._known.get(node)
            if estimate is None:
                estimate = self._known[node] = self._cost(*node)
            self._note(estimate)
            seconds = self._seconds[node] = estimate.seconds
        return seconds
