"""Where pools stand in the cluster: which links their GPUs have to each other."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rlplan.job import Job, NodeGroup
from rlplan.plan import HOST_DEVICE, Plan, ResourcePool
from rlplan.profiles.facts import Facts


@dataclass(frozen=True, slots=True)
class Site:
    """Describe the GPUs of one pool by what decides the speed of their collectives.

    Attributes:
        device: Device sheet's name; `host` for CPU workers.
        gpus: GPUs of the pool.
        gpus_per_node: Largest group of consecutive ranks that never straddles two nodes, or two domains
            where the link inside a node reaches over several nodes.
        inter_node_bytes_per_second: Each GPU's share of its node's network cards, one direction.
    """

    device: str
    gpus: int
    gpus_per_node: int
    inter_node_bytes_per_second: float

    def ranks_per_node(self, ranks: int, stride: int = 1) -> int:
        """Return how many of a group's ranks, `stride` apart, share one node at the worst place."""
        return max(1, min(ranks, self.gpus_per_node // stride))

    @property
    def spans_nodes(self) -> bool:
        """Tell whether the pool has GPUs on several nodes."""
        return self.gpus > self.gpus_per_node


def first_gpus(plan: Plan) -> Iterator[tuple[ResourcePool, int]]:
    """Yield each pool with the place of its first GPU among all of its device.

    Pools take the GPUs of the node groups that have their device, one pool after another in the
    plan's order, node by node.
    """
    taken: Counter[str] = Counter()
    for pool in plan.pools:
        yield pool, taken[pool.device]
        taken[pool.device] += pool.gpus


def sites_of(plan: Plan, facts: Facts) -> dict[str, Site]:
    """Return each pool's site by the pool's name."""
    sites: dict[str, Site] = {}
    for pool, first in first_gpus(plan):
        if pool.is_host:
            sites[pool.name] = host_site(plan.job, pool.gpus)
            continue
        facts.device(pool.device)  # an unknown device is named here, not deep inside a cost
        site = site_at(plan.job, pool.device, first, pool.gpus)
        assert site is not None, "the rules of a plan let pools want what the cluster has"
        sites[pool.name] = site
    return sites


def nodes_of(plan: Plan) -> int:
    """Return the nodes that have a GPU of any of the plan's pools."""
    count = 0
    for device in {pool.device for pool in plan.pools if not pool.is_host}:
        left = sum(pool.gpus for pool in plan.pools if pool.device == device)
        for group in (group for group in plan.job.cluster if group.gpu == device):
            here = min(left, group.gpus)
            count += -(-here // group.gpus_per_node)
            left -= here
    return count


def host_site(job: Job, workers: int) -> Site:
    """Return the site of CPU worker processes, which reach GPUs over the first nodes' network."""
    first = job.cluster[0]
    network = first.network_bytes_per_second * first.gpus_per_node
    return Site(HOST_DEVICE, workers, workers, network)


def site_at(job: Job, device: str, first: int, gpus: int) -> Site | None:
    """Return the site of `gpus` GPUs of a device from the `first`-th on; None if there are too few."""
    pieces = pieces_at(job, device, first, gpus)
    if sum(size for _, size in pieces) < gpus:
        return None
    if len(pieces) == 1:
        unbroken = pieces[0][0].linked_gpus
    else:
        unbroken = math.gcd(*(size for _, size in pieces))
    network = min(group.network_bytes_per_second for group, _ in pieces)
    return Site(device, gpus, unbroken, network)


def pieces_at(job: Job, device: str, first: int, gpus: int) -> list[tuple[NodeGroup, int]]:
    """Return the pool's share of every node, or domain of nodes on one link, that it touches."""
    pieces: list[tuple[NodeGroup, int]] = []
    position, end = 0, first + gpus
    for group in (group for group in job.cluster if group.gpu == device):
        low, high = max(first, position), min(end, position + group.gpus)
        at = low
        while at < high:
            link_end = position + ((at - position) // group.linked_gpus + 1) * group.linked_gpus
            size = min(link_end, high) - at
            pieces.append((group, size))
            at += size
        position += group.gpus
    return pieces
