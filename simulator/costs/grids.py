"""Costs on a grid: priced at nodes, and read off straight lines between them."""

import math
from collections.abc import Callable

from rlplan.estimate import Estimate

# Operators are priced at these sizes, and between them on straight lines: steps are nearly affine
# in each, and engines pad batches to sizes of this kind anyway.
EXACT_NODES = 8
NODE_RATIO = 1.25

Known = dict[tuple[int, ...], Estimate]


def nodes(value: float) -> tuple[int, int, float]:
    """Return the nodes around a value and how far it lies between them."""
    if value <= EXACT_NODES:
        low = max(0, math.floor(value))
        share = value - low
        return low, low + 1 if share else low, share
    power = math.floor(math.log(value / EXACT_NODES) / math.log(NODE_RATIO) + 1e-9)
    low, high = (round(EXACT_NODES * NODE_RATIO ** (power + step)) for step in (0, 1))
    if value == low:
        return low, low, 0.0
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
        self._nodes: dict[float, tuple[int, int, float]] = {}
        self._lines: dict[tuple[float, ...], float] = {}

    def __call__(self, *at: float) -> float:
        """Return seconds at a place that need not be a node."""
        seconds = self._lines.get(at)
        if seconds is None:
            seconds = self._lines[at] = self._between((), at)
        return seconds

    def _between(self, fixed: tuple[int, ...], rest: tuple[float, ...]) -> float:
        if not rest:
            return self._at(fixed)
        value = rest[0]
        around = self._nodes.get(value)
        if around is None:
            around = self._nodes[value] = nodes(value)
        low, high, share = around
        seconds = self._between((*fixed, low), rest[1:])
        if share:
            seconds += share * (self._between((*fixed, high), rest[1:]) - seconds)
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
