"""Placement groups of a plan's nodes in a joined cluster: each node's workers strictly together."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from rlplan.errors import NodesMissingError, WorkerLostError
from rlplan.executor.workers.cluster.nodes import (
    CPU,
    PlanNode,
    RayNode,
    Worker,
    kinds_of,
    matched,
    plan_nodes,
    ray_nodes,
    shortage,
)
from rlplan.plan import Plan

NODE_ID = "ray.io/node-id"
# A node that is lost counts as there until Ray has missed its answers for a while.
READY_SECONDS = 20.0
LOOK_SECONDS = 0.5
# What was given back counts as taken until all of Ray has heard of it.
SETTLE_SECONDS = 5.0

Options = Mapping[str, Any]
"""With what an actor starts: what it takes of which placement group's bundle, or of which node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Hold where a plan's workers start.

    Attributes:
        nodes: Of the cluster, one for each of the plan's.
        options: By pool and rank.
        addresses: Of their nodes, by pool and rank.
    """

    nodes: tuple[RayNode, ...]
    options: Mapping[Worker, Options]
    addresses: Mapping[Worker, str]

    def of_pool(self, pool: str, ranks: int) -> list[Options]:
        """Return with what options a pool's workers start, by rank."""
        return [self.options[pool, rank] for rank in range(ranks)]


@contextmanager
def placed_workers(
    plan: Plan, wait_seconds: float, tell: Callable[[str], object] = lambda _: None
) -> Iterator[Placed]:
    """Yield where each worker of a plan starts; give the places back afterwards.

    Args:
        wait_seconds: For nodes that are not there.
        tell: Called once where that is waited for.

    Raises:
        NodesMissingError: They have not come; says what is missing and what is there.
    """
    nodes = plan_nodes(plan)
    groups: list[PlacementGroup] = []
    try:
        there = _ready_groups(nodes, groups, wait_seconds, tell)
        yield _placed(nodes, there, groups)
    finally:
        _remove(groups)


@contextmanager
def placed_on(nodes: Sequence[PlanNode], there: Sequence[RayNode]) -> Iterator[Placed]:
    """Yield where workers start on given nodes of a cluster, one for each; give the places back afterwards.

    Raises:
        WorkerLostError: Others have taken the places meanwhile.
    """
    kinds, groups = kinds_of(nodes, there), list[PlacementGroup]()
    try:
        for node, place in zip(nodes, there, strict=True):
            groups.append(_group(node, place, kinds.get(node.device)))
            if not groups[-1].wait(READY_SECONDS):
                raise WorkerLostError(f"node {place.address} takes no workers: {place.words()}")
        yield _placed(nodes, there, groups)
    finally:
        _remove(groups)


def _placed(
    nodes: Sequence[PlanNode], there: Sequence[RayNode], groups: Sequence[PlacementGroup]
) -> Placed:
    addresses = {
        worker: place.address
        for node, place in zip(nodes, there, strict=True)
        for worker in (*node.workers, *node.hosts)
    }
    options = _options_by_worker(nodes, there, groups)
    return Placed(nodes=tuple(there), options=options, addresses=addresses)


def _ready_groups(
    nodes: Sequence[PlanNode],
    groups: list[PlacementGroup],
    wait_seconds: float,
    tell: Callable[[str], object],
) -> tuple[RayNode, ...]:
    """Make the placement groups of a plan's nodes, of which nothing is left where one was not ready in time."""
    begin, told = time.monotonic(), ""
    while True:
        all_there = ray_nodes()
        lacking, kinds = shortage(nodes, all_there), kinds_of(nodes, all_there)
        if not lacking:
            there = tuple(node for node in matched(nodes, all_there) if node is not None)
            groups += [
                _group(node, place, kinds.get(node.device))
                for node, place in zip(nodes, there, strict=True)
            ]
            if all(group.wait(READY_SECONDS) for group in groups):
                return there
            _remove(groups)
            lacking, settles = _why_not_ready(nodes), False
        else:
            settles = None not in matched(nodes, all_there, whole=True)
        most_seconds = max(wait_seconds, SETTLE_SECONDS if settles else 0.0)
        left = most_seconds - (time.monotonic() - begin)
        if left <= 0:
            raise NodesMissingError(f"{lacking} (--node-wait {wait_seconds:g})")
        if not settles and lacking != told:
            told = lacking
            tell(f"{lacking}; waits up to {left:.0f} s")
        time.sleep(min(LOOK_SECONDS, left))


def _why_not_ready(nodes: Sequence[PlanNode]) -> str:
    """Return why a plan's nodes take no workers, whom all of them seemed to have room for."""
    if None in matched(nodes, ray_nodes(), whole=True):  # Ray has found out which is lost
        return shortage(nodes, settled_nodes(nodes))
    return "a node that counts as there takes no workers"


def settled_nodes(nodes: Sequence[PlanNode]) -> tuple[RayNode, ...]:
    """Return the nodes of the cluster, once Ray has heard of what a plan's nodes gave back; soon, whether it has or not."""
    begin = time.monotonic()
    while True:
        there = ray_nodes()
        free, whole = (matched(nodes, there, whole=whole).count(None) for whole in (False, True))
        if free == whole or time.monotonic() - begin > SETTLE_SECONDS:
            return there
        time.sleep(LOOK_SECONDS)


def _group(node: PlanNode, place: RayNode, kind: str | None) -> PlacementGroup:
    bundles = [node.worker_bundle(kind) for _ in node.workers]
    if node.has_gpus:
        bundles += [{CPU: 1.0} for _ in node.hosts]
    group: PlacementGroup = placement_group(
        bundles, strategy="STRICT_PACK", bundle_label_selector=[{NODE_ID: place.id}] * len(bundles)
    )
    return group


def _options_by_worker(
    nodes: Sequence[PlanNode],
    there: Sequence[RayNode],
    groups: Sequence[PlacementGroup],
) -> dict[Worker, Options]:
    found: dict[Worker, Options] = {}
    for node, place, group in zip(nodes, there, groups, strict=True):
        for number, worker in enumerate((*node.workers, *node.hosts)):
            is_host = number >= len(node.workers)
            takes_gpu = node.has_gpus and not is_host
            if is_host and not node.has_gpus:
                strategy: Any = NodeAffinitySchedulingStrategy(place.id, soft=False)
            else:
                strategy = PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=number
                )
            found[worker] = {
                "num_gpus": 1 if takes_gpu else 0,
                "num_cpus": 1 if is_host == node.has_gpus else 0,
                "scheduling_strategy": strategy,
            }
    return found


def _remove(groups: list[PlacementGroup]) -> None:
    for group in groups:
        ray.util.remove_placement_group(group)
    groups.clear()
