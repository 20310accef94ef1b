"""Sizes at which operators of a generation step are priced, and straight lines between them."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator

# Operators are priced at these sizes, and on straight lines between them: steps are nearly affine in each.
EXACT_NODES = 8
NODE_RATIO = 1.25
LARGEST_NODE = 1e12  # far more sequences or tokens than any step has


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


def corners(at: Iterable[float]) -> list[tuple[tuple[int, ...], float]]:
    """Return the nodes around a place, with what each of them counts on straight lines between them."""
    found: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for low, high, share in map(nodes, at):
        beyond = [((*node, high), weight * share) for node, weight in found] if share else []
        found = [((*node, low), weight * (1 - share)) for node, weight in found] + beyond
    return found


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
