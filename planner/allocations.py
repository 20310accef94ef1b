"""Allocations: how many GPUs, of which device, each colocated set gets."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from rlplan.job import Job, NodeGroup


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """Hold the part of the cluster that one set gets: GPUs of one group of equal nodes."""

    group: int
    gpus: int


Allocation = tuple[Share, ...]


def pool_sizes(group: NodeGroup) -> tuple[int, ...]:
    """Return the sizes that a pool may have: divisors of a node, and whole nodes.

    Whole nodes come in numbers that divide the group or double, which keeps layouts even.
    """
    inside = [size for size in range(1, group.gpus_per_node + 1) if group.gpus_per_node % size == 0]
    whole = range(2, group.nodes + 1)
    return tuple(sorted({*inside, *(nodes * group.gpus_per_node for nodes in whole)}))


def allocations(job: Job, sets: int) -> Iterator[Allocation]:
    """Yield every way to give each of `sets` colocated sets a share, within each group's GPUs."""
    choices = [
        Share(index, size) for index, group in enumerate(job.cluster) for size in pool_sizes(group)
    ]
    limits = [group.gpus for group in job.cluster]
    for shares in itertools.product(choices, repeat=sets):
        used = [0] * len(limits)
        for share in shares:
            used[share.group] += share.gpus
        if all(count <= limit for count, limit in zip(used, limits, strict=True)):
            yield shares
