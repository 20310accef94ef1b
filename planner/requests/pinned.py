"""What a user pinned of a plan, as a search reads it: pools, parts of layouts, mode and transition."""

from dataclasses import dataclass, field, replace

from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import ResourcePool, TaskDraft
from rlplan.planner.placements.allocations import Share, devices_of, gpus_of
from rlplan.planner.placements.arrangements import Arranged
from rlplan.planner.placements.partitions import GENERATION, ColocatedSet, Placement
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.transfers import TRANSFERS, TransitionName

POOL_NAME = "p{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedPool:
    """Hold a set that has a pool of its own, and what is pinned of the pool.

    Attributes:
        members: The whole colocated set.
        order: Its tasks in the order in which they get the pool.
    """

    members: ColocatedSet
    name: str | None = None
    device: str | None = None
    gpus: int | None = None
    order: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Hold what a user pinned; everything else is searched.

    Attributes:
        asked: What is said of how iterations follow each other.
        arranged: How a framework arranges its roles, where plans are for one.
        tasks: Parts of layouts by task.
        pools: Sets that every placement has.
        host: The pool of reward functions.
        framework_version: The one of the job's framework that is to run plans, where a script of it says so; None for the newest.
        bucket_bytes: Weights that are under way at a time, as plans have them; None where nothing says it.
    """

    tasks: FrozenDict[str, TaskDraft] = field(default_factory=FrozenDict)
    pools: tuple[PinnedPool, ...] = ()
    host: ResourcePool | None = None
    asked: AskedSchedules = field(default_factory=AskedSchedules)
    transition: TransitionName | None = None
    arranged: Arranged | None = None
    framework_version: str | None = None
    bucket_bytes: int | None = None

    @property
    def given(self) -> bool:
        """Tell whether a user pinned more than a mode; what a framework or its script fixes aside."""
        if self.arranged is not None:
            return bool(self.pools)
        mode = AskedSchedules()
        free = replace(self, asked=mode, framework_version=None, bucket_bytes=None)
        return free != NOTHING_PINNED

    @property
    def pool_gpus(self) -> frozenset[int]:
        """Return the numbers of GPUs that are pinned of any pool."""
        return frozenset(pool.gpus for pool in self.pools if pool.gpus is not None)

    def allows(self, placement: Placement) -> bool:
        """Tell whether a placement has the pinned sets, and generates where it is pinned to."""
        if any(pool.members not in placement for pool in self.pools):
            return False
        if self.arranged is not None and not self.arranged.arrangement.allows(placement):
            return False
        apart = any(GENERATION in members for members in placement)
        trained = [pool for pool in self.pools if "actor" in pool.members]
        copies = [pool for pool in self.pools if GENERATION in pool.members]
        if apart and trained and not copies:
            return False
        if self.transition is None:
            return True
        chosen = TRANSFERS.load(self.transition)
        return chosen.between_pools if apart else chosen.on_one_pool

    def pool(self, members: ColocatedSet) -> PinnedPool | None:
        """Return what is pinned of a set's pool; None if it is no set that the user named."""
        return next((pool for pool in self.pools if pool.members == members), None)

    def shares(
        self, members: ColocatedSet, shares: tuple[Share, ...], job: Job
    ) -> tuple[Share, ...]:
        """Return the shares that a set may get, of those that any set may get."""
        pool = self.pool(members)
        if self.arranged is not None and self.arranged.arrangement.whole_nodes:
            shares = tuple(share for share in shares if _is_whole(share, job))
        if pool is None:
            return shares
        found = [share for share in shares if pool.device in {None, job.cluster[share.group].gpu}]
        if pool.gpus is None:
            return tuple(found)
        limits = dict(zip(devices_of(job), gpus_of(job), strict=True))
        groups = dict.fromkeys(share.group for share in found)
        return tuple(
            Share(group, pool.gpus)
            for group in groups
            if pool.gpus <= limits[job.cluster[group].gpu]
        )

    def names(self, sets: tuple[ColocatedSet, ...]) -> list[str]:
        """Return the names of pools: the user's own, and free numbers for the others."""
        given = [pool.name if (pool := self.pool(members)) else None for members in sets]
        free = (
            name
            for number in range(len(sets) + len(self.pools))
            if (name := POOL_NAME.format(number)) not in {pool.name for pool in self.pools}
        )
        return [name or next(free) for name in given]


def _is_whole(share: Share, job: Job) -> bool:
    """Tell whether a share is of whole nodes, or the cluster is one node."""
    group = job.cluster[share.group]
    return job.gpus == group.gpus_per_node or share.gpus % group.gpus_per_node == 0


NOTHING_PINNED = Pinned()
