"""Say why something does not fit: what comes nearest, and what it is short of."""

import math
from dataclasses import dataclass, fields

import numpy as np

from rlplan.job import Role
from rlplan.plan import SIZES
from rlplan.planner.exact.space import Space, generates_alone
from rlplan.planner.layouts.pool_rows import roles_of
from rlplan.planner.placements.allocations import Share, devices_of, gpus_of
from rlplan.planner.placements.partitions import ColocatedSet, Placement
from rlplan.simulator.placed import Site
from rlplan.simulator.timeline.pool_memory import host_capacity_bytes
from rlplan.units import show_bytes

# Limits that are kept before any plan is looked at.
KEPT_BEFORE = frozenset({"memory_headroom_fraction", "staleness"})


@dataclass(frozen=True, slots=True)
class MemoryShortage:
    """Hold a set on a site that it does not fit, and by how much it does not.

    Attributes:
        needed_bytes: Least bytes that one GPU needs.
        capacity_bytes: What plans may fill of it.
        otherwise: What no layout has, where memory is not what is short.
    """

    members: ColocatedSet
    site: Site
    needed_bytes: int
    capacity_bytes: int
    otherwise: str = ""

    @property
    def overflow_bytes(self) -> int:
        """Return the bytes that are too many; below one where something else is missing."""
        return self.needed_bytes - self.capacity_bytes

    @property
    def words(self) -> str:
        """Return the shortage for people."""
        site = self.site
        pool = f"{{{', '.join(self.members)}}} on {site.gpus} x {site.device}"
        if self.overflow_bytes <= 0:
            return f"{pool} {self.otherwise}"
        return (
            f"{pool} needs at least {show_bytes(self.needed_bytes)} of "
            f"{show_bytes(self.capacity_bytes)} a GPU, {show_bytes(self.overflow_bytes)} too many"
        )


def infeasibility_reason(placement: Placement, space: Space) -> str:
    """Say why no plan of a placement fits: the allocation whose fullest pool overflows least."""
    choices = [_shortages(members, space) for members in placement]
    overflows = sorted({each.overflow_bytes for some in choices for each in some.values()})
    for most in overflows:
        chosen = [_smallest(some, most) for some in choices]
        found = [each for each in chosen if each is not None]
        if len(found) == len(choices) and _divides(found, space):
            shares = zip(choices, found, strict=True)
            return max(
                (some[share] for some, share in shares), key=lambda each: each.overflow_bytes
            ).words
    gpus = space.job.gpus
    for members, some in zip(placement, choices, strict=True):
        open_shares = space.open_shares(members)
        if not some and open_shares:
            return pool_infeasibility_reason(members, space.site(open_shares[-1]), space)
    if gpus < len(placement):
        return f"{len(placement)} pools are more than the cluster's {gpus} GPUs"
    return f"the cluster's {gpus} GPUs cannot be divided so that every batch and head divides"


def pool_infeasibility_reason(members: ColocatedSet, site: Site, space: Space) -> str:
    """Say why no layout of a colocated set fits a pool."""
    shortage = shortage_of(members, site, space)
    if shortage is None:
        options = space.options
        stuck = [role for role in roles_of(members) if options.least_bytes(role, site) is None]
        words = f"{', '.join(stuck)} cannot be laid out on {site.gpus} x {site.device}"
        return f"{words}: {_why_no_cut(stuck[0], site, space)}" if stuck else words
    return shortage.words


def _why_no_cut(role: Role, site: Site, space: Space) -> str:
    layouts = space.options.space
    own = [task for task in layouts.tasks if task.role == role and not task.generates]
    cuts, trains = layouts.cuts_of(own, site), any(task.trains for task in own)
    asked = cuts.asked.sizes
    names = [name for name in SIZES if getattr(asked, name) is not None]
    for sizes in cuts.train() if trains else cuts.infer():
        if all(getattr(sizes, name) == getattr(asked, name) for name in names):
            return f"no layout keeps {_pins(role, space) or 'what all its passes need'}"
    return cuts.why_none(trains=trains)


def shortage_of(members: ColocatedSet, site: Site, space: Space) -> MemoryShortage | None:
    """Return the least bytes that a set needs on a site; None if it cannot be laid out there."""
    least = [space.options.least_bytes(role, site) for role in roles_of(members)]
    known = [each for each in least if each is not None]
    if len(known) < len(least):
        return None
    resident = sum(each[0] for each in known)
    transient = max((each[1] for each in known), default=0)
    if generates_alone(members):
        copies = [
            (each.weight_bytes, each.working_bytes + int(each.least_bytes))
            for each in space.generations.replicas(site)
        ]
        if not copies:
            return None
        weights, working = min(copies, key=sum)
        resident, transient = resident + weights, max(transient, working)
    resident += space.options.space.contexts_bytes(len(known), site)
    capacity = space.options.space.capacity_bytes(site)
    otherwise = ""
    if resident + transient <= capacity:
        otherwise = _missing(members, site, space, resident) + _within_limits(space)
    return MemoryShortage(members, site, resident + transient, capacity, otherwise)


def _missing(members: ColocatedSet, site: Site, space: Space, resident_bytes: int) -> str:
    """Say what a set lacks whose leanest layouts fit: layouts of a role that go together, an engine, or its cache."""
    for role in roles_of(members):
        if not space.options.role_options(role, site):
            pins = _pins(role, space)
            return f"has no layout of {role} that keeps {pins or 'what all its passes need'}"
    generates = generates_alone(members) or space.options.space.generate_task().role in members
    replicas = space.generations.replicas(site) if generates else []
    is_pinned = space.pinned.given or bool(space.options.space.drafts)
    if not generates:
        return "has no layouts of its roles that fit together"
    if not replicas:
        return f"has no layout of generation{' that keeps what is pinned' if is_pinned else ''}"
    rooms = space.generations.cache_bytes
    if any(
        rooms(each, np.array([float(resident_bytes)]), 0)[0] >= each.least_bytes
        for each in replicas
    ):
        short = _host_cache_shortage(site, space, resident_bytes)
        if short:
            return short
        kept = "keep what is pinned and " if is_pinned else ""
        return f"has no layouts of training and generation that {kept}go together"
    return "leaves no room for the KV cache of one sequence"


def _host_cache_shortage(site: Site, space: Space, resident_bytes: int) -> str:
    """Say that hosts have less memory than `kv_offload` takes in every layout; empty where they have it.

    A share of the cache on the GPUs is of what the leanest layouts leave it.

    Args:
        resident_bytes: Of the set's leanest layouts, on a GPU.
    """
    said = space.job.kv_offload
    if said is None:
        return ""
    replicas = space.generations.replicas(site)
    use = space.facts.framework(space.job.framework).host
    held = host_capacity_bytes(space.job, site.device, use)
    has = f"a GPU's share of its node is {show_bytes(held)}"
    if said.replica_bytes is not None:
        needed = min(said.replica_bytes / (each.layout.tp * each.layout.pp) for each in replicas)
        words = f"replica_bytes: that is at least {show_bytes(round(needed))} a GPU, and {has}"
    else:
        ratio, resident = said.cache_ratio or 0.0, np.array([float(resident_bytes)])
        rooms = (space.generations.left_bytes(each, resident, 0)[0] for each in replicas)
        room = min((each for each in rooms if each > 0), default=0.0)
        if not room:
            return ""
        needed = ratio * room
        words = (
            f"cache_ratio {ratio:g}: beside the leanest layouts the cache has {show_bytes(round(room))} a GPU, of which that is "
            f"{show_bytes(round(needed))}, and {has}; a ratio of {math.floor(100 * held / room) / 100:g} fits there"
        )
    if not held or needed <= held:
        return ""
    return f"lacks host memory for kv_offload.{words}"


def _within_limits(space: Space) -> str:
    """Return the limits under which plans were looked for, which may be what is not kept where memory suffices."""
    names = [name for name in space.specs.given if name not in KEPT_BEFORE]
    within = f" within the limit of {', '.join(names)}" if names else ""
    stays = space.job.has_spot and space.job.failures is None
    return f"{within} and trains on nodes that stay (job.failures is missing)" if stays else within


def _pins(role: Role, space: Space) -> str:
    """Return what a user pinned of a role's passes, for people."""
    said = []
    for task in space.options.space.tasks:
        draft = space.options.space.drafts.get(task.name)
        if task.role != role or task.generates or draft is None:
            continue
        names = (item.name for item in fields(draft) if item.name not in ("pool", "engine"))
        given = {name: getattr(draft, name) for name in names}
        words = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
        said += [f"{task.name}: {words}"] if words else []
    return "; ".join(said)


def _shortages(members: ColocatedSet, space: Space) -> dict[Share, MemoryShortage]:
    """Return what a set is short of on every share on which it can be laid out."""
    found = {
        share: shortage_of(members, space.site(share), space)
        for share in space.open_shares(members)
    }
    return {share: shortage for share, shortage in found.items() if shortage is not None}


def _smallest(shortages: dict[Share, MemoryShortage], most_bytes: int) -> Share | None:
    """Return the smallest share on which a set overflows by no more."""
    enough = (share for share, each in shortages.items() if each.overflow_bytes <= most_bytes)
    return min(enough, key=lambda share: (share.gpus, share.group), default=None)


def _divides(shares: list[Share], space: Space) -> bool:
    """Tell whether the cluster has these shares."""
    limits = dict(zip(devices_of(space.job), gpus_of(space.job), strict=True))
    for share in shares:
        limits[space.job.cluster[share.group].gpu] -= share.gpus
    return min(limits.values()) >= 0
