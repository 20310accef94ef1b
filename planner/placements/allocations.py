"""Allocations: how many GPUs, of which device, each colocated set gets, and where they stand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from rlplan.job import Job, NodeGroup
from rlplan.plan import pieces_at
from rlplan.simulator.placed import Site, site_at


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """Hold the part of the cluster that one set gets: GPUs of one device.

    Attributes:
        group: Place in the cluster of the first node group with the device.
    """

    group: int
    gpus: int


Allocation = tuple[Share, ...]


def devices_of(job: Job) -> tuple[str, ...]:
    """Return the devices of a job's cluster, in the order of its node groups."""
    return tuple(dict.fromkeys(group.gpu for group in job.cluster))


def gpus_of(job: Job) -> tuple[int, ...]:
    """Return how many GPUs of each device the cluster has."""
    return tuple(
        sum(group.gpus for group in job.cluster if group.gpu == device)
        for device in devices_of(job)
    )


def rented_cores(job: Job, gpus: Mapping[str, int]) -> int:
    """Return the host cores of the nodes on which so many GPUs of each device stand, from its first node on.

    A cluster may be a catalogue, of which a plan rents a part.
    """
    cores, left = 0, dict(gpus)
    for group in job.cluster:
        taken = min(left.get(group.gpu, 0), group.gpus)
        cores += (group.cpu_cores or 0) * -(-taken // group.gpus_per_node)
        left[group.gpu] = left.get(group.gpu, 0) - taken
    return cores


def pool_sizes(group: NodeGroup) -> tuple[int, ...]:
    """Return the sizes that a pool may have: any part of a node, since seven GPUs may train beside one that generates, and whole nodes.

    Where a link joins several nodes, a pool of more nodes than it joins has whole domains of it.
    """
    inside = range(1, group.gpus_per_node + 1)
    joined = range(group.gpus_per_node, group.linked_gpus + 1, group.gpus_per_node)
    domains = range(2 * group.linked_gpus, group.gpus + 1, group.linked_gpus)
    sizes = {*inside, *joined, *domains, group.gpus}
    return tuple(sorted(size for size in sizes if size <= group.gpus))


def shares_of(job: Job) -> tuple[Share, ...]:
    """Return every share that a set may get, small ones first; of equal groups one after another."""
    found: list[Share] = []
    for device in devices_of(job):
        groups = [group for group in job.cluster if group.gpu == device]
        sizes = {size for group in groups for size in pool_sizes(group)}
        if len({group.gpus_per_node for group in groups}) == 1:
            joined = replace(groups[0], nodes=sum(group.nodes for group in groups))
            sizes.update(pool_sizes(joined))
        first = job.cluster.index(groups[0])
        found += [Share(first, size) for size in sorted(sizes)]
    return tuple(found)


def ideal_site(job: Job, share: Share) -> Site:
    """Return the site of a share at its best: from the start of the fastest of its device's nodes."""
    device = job.cluster[share.group].gpu
    groups = [group for group in job.cluster if group.gpu == device]
    return Site(
        device=device,
        gpus=share.gpus,
        gpus_per_node=max(group.linked_gpus for group in groups),
        inter_node_bytes_per_second=max(group.network_bytes_per_second for group in groups),
        network=groups[0].network,
    )


def packing_order(job: Job, allocation: Sequence[Share]) -> tuple[int, ...]:
    """Return the order in which pools take GPUs: by device, the largest first, or so that fewer of them straddle nodes.

    No GPU is left out for a pool's sake: where all that are left straddle nodes, the largest comes first.
    """
    order: list[int] = []
    for group in sorted({share.group for share in allocation}):
        here = [index for index, share in enumerate(allocation) if share.group == group]
        sizes = [allocation[index].gpus for index in here]
        order += [here[place] for place in _packed(job, job.cluster[group].gpu, sizes)]
    return tuple(order)


def _packed(job: Job, device: str, sizes: Sequence[int]) -> Sequence[int]:
    """Return the order in which pools of such sizes take GPUs of a device."""
    most = max(group.linked_gpus for group in job.cluster if group.gpu == device)

    def straddles(place: int, first: int) -> bool:
        """Tell whether a pool touches more nodes, or domains of nodes on one link, than its size asks for."""
        return len(pieces_at(job, device, first, sizes[place])) > -(-sizes[place] // most)

    def straddling(order: Sequence[int]) -> int:
        firsts = accumulate((sizes[place] for place in order), initial=0)
        return sum(map(straddles, order, firsts))

    by_size = sorted(range(len(sizes)), key=lambda place: -sizes[place])
    if not straddling(by_size):
        return by_size
    filling: list[int] = []
    waiting, first = list(by_size), 0
    while waiting:
        whole = (place for place in waiting if not straddles(place, first))
        chosen = next(whole, waiting[0])
        waiting.remove(chosen)
        filling.append(chosen)
        first += sizes[chosen]
    return min(by_size, filling, key=straddling)


def sites_for(job: Job, allocation: Sequence[Share]) -> tuple[Site, ...] | None:
    """Return the sites of pools that take GPUs one after another; None if a device has too few."""
    taken: dict[str, int] = {}
    sites: dict[int, Site] = {}
    for index in packing_order(job, allocation):
        share = allocation[index]
        device = job.cluster[share.group].gpu
        site = site_at(job, device, taken.get(device, 0), share.gpus)
        if site is None:
            return None
        taken[device] = taken.get(device, 0) + share.gpus
        sites[index] = site
    return tuple(sites[index] for index in range(len(allocation)))
