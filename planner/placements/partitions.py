"""Placements: partitions of a job's models into colocated sets, and how many GPUs of which device each set gets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.job import Job, NodeGroup, Role
from rlplan.rules.layouts import divisors
from rlplan.simulator.placed.site import Site, site_at

RoleSet = tuple[Role, ...]
RolePlacement = tuple[RoleSet, ...]

# What a search places: roles, and the copy of the actor that generates where it has another pool.
PlacedModel = Role | Literal["actor.generate"]
ColocatedSet = tuple[PlacedModel, ...]
Placement = tuple[ColocatedSet, ...]

GENERATION: Final = "actor.generate"


def placed_roles(job: Job) -> tuple[Role, ...]:
    """Return the roles that need GPUs, in the order in which the dataflow first uses them."""
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    return tuple(dict.fromkeys(task.role for task in tasks if task.has_model))


def placements(roles: tuple[Role, ...]) -> Iterator[RolePlacement]:
    """Yield every partition of the roles: Bell(k) of them, the colocated one first.

    Sets are ordered by their first role, and roles inside a set keep their order, so every
    partition appears once and in one form.
    """
    if not roles:
        yield ()
        return
    first, rest = roles[0], roles[1:]
    for smaller in placements(rest):
        for index, members in enumerate(smaller):
            joined = ((first, *members), *smaller[:index], *smaller[index + 1 :])
            yield joined
        yield ((first,), *smaller)


def all_placements(job: Job) -> Iterator[Placement]:
    """Yield every partition of a job's models: first those in which the actor generates where it trains.

    A set that holds the actor and generates says the actor alone.
    """
    together = list(placements(placed_roles(job)))
    yield from together
    for placement in together:
        for index, members in enumerate(placement):
            if "actor" not in members:
                joined: ColocatedSet = (GENERATION, *members)
                yield (joined, *placement[:index], *placement[index + 1 :])
        yield ((GENERATION,), *placement)


def generating_set(placement: Placement) -> int:
    """Return the place of the set that generates."""
    copies = [place for place, members in enumerate(placement) if GENERATION in members]
    trained = [place for place, members in enumerate(placement) if "actor" in members]
    return (copies or trained)[0]


def show_placement(placement: Placement) -> str:
    """Return a placement for people, such as `{actor, reference} {critic, reward}`."""
    shown = (
        ", ".join("generation" if model == GENERATION else model for model in members)
        for members in placement
    )
    return " ".join("{" + members + "}" for members in shown)


def in_role_order(members: RoleSet, roles: tuple[Role, ...]) -> RoleSet:
    """Return a set's roles in the order of `roles`."""
    return tuple(role for role in roles if role in members)


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
    """Return the sizes that a pool may have: divisors of a node, and whole nodes.

    Where a link joins several nodes, a pool of more nodes than it joins has whole domains of it.
    """
    inside = divisors(group.gpus_per_node)
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
    )


def packing_order(allocation: Sequence[Share]) -> tuple[int, ...]:
    """Return the order in which pools take GPUs: by device, then the largest first.

    From the largest to the smallest, pools that fit into a node do not straddle two.
    """
    return tuple(
        sorted(range(len(allocation)), key=lambda i: (allocation[i].group, -allocation[i].gpus, i))
    )


def sites_for(job: Job, allocation: Sequence[Share]) -> tuple[Site, ...] | None:
    """Return the sites of pools that take GPUs one after another; None if a device has too few."""
    taken: dict[str, int] = {}
    sites: dict[int, Site] = {}
    for index in packing_order(allocation):
        share = allocation[index]
        device = job.cluster[share.group].gpu
        site = site_at(job, device, taken.get(device, 0), share.gpus)
        if site is None:
            return None
        taken[device] = taken.get(device, 0) + share.gpus
        sites[index] = site
    return tuple(sites[index] for index in range(len(allocation)))
