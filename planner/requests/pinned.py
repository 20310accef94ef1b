"""What a user pinned of a plan, and how its iterations may follow each other: modes, how old weights may be, when they are synced."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil

from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import (
    BATCH_AHEAD_MODE,
    FLOWS,
    USUAL_MODE,
    Flow,
    InFlight,
    Mode,
    Plan,
    ResourcePool,
    TaskDraft,
)
from rlplan.planner.placements.allocations import Share, devices_of, gpus_of
from rlplan.planner.placements.arrangements import Arranged
from rlplan.planner.placements.partitions import GENERATION, ColocatedSet, Placement
from rlplan.profiles.sheets import load_framework
from rlplan.rules.order import STALENESS
from rlplan.simulator.capabilities import over_samples_streams
from rlplan.specs import Specs
from rlplan.transfers import TRANSFERS, TransitionName

# Iterations between two syncs of weights that a search looks at, as far as the staleness lets it.
SYNC_INTERVALS = (1, 2, 4)

# Responses under way go on with new weights, their context prefilled anew: so AReaL (Fu et al. 2025,
# arXiv:2505.24298, section 4.1) and verl's partial rollouts have it.
IN_FLIGHT: InFlight = "recompute"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Say how iterations follow each other, as `rlplan.plan.Plan` has it."""

    mode: Mode = USUAL_MODE
    staleness: float = 0
    sync_every: int = 1
    in_flight: InFlight = "drain"

    @property
    def flow(self) -> Flow:
        """Return how generation and training follow each other."""
        return FLOWS[self.mode]

    @property
    def streams(self) -> bool:
        """Tell whether responses go on to training as they end."""
        return self.flow.by_sample

    @property
    def words(self) -> str:
        """Return it for people."""
        if not self.flow.is_endless:
            return f"mode {self.mode}"
        each = "each iteration" if self.sync_every == 1 else f"every {self.sync_every} iterations"
        return (
            f"mode {self.mode}, weights synced {each}, at most {ceil(self.staleness)} updates old"
        )


SYNC = Schedule()
ONE_STEP_OFF = Schedule(BATCH_AHEAD_MODE, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSchedules:
    """Hold what a user says of how iterations follow each other.

    Attributes:
        modes: Those in which plans may run; empty allows all.
        staleness: Of plans in mode async; None takes what the specs allow.
    """

    modes: tuple[Mode, ...] = ()
    staleness: float | None = None
    sync_every: int | None = None
    in_flight: InFlight | None = None


@dataclass(frozen=True, slots=True)
class ScheduleSpace:
    """List the schedules that a search looks at.

    Without a limit of staleness, and without a mode that the user names, those are synchronous ones alone.
    """

    job: Job
    specs: Specs
    asked: AskedSchedules = field(default_factory=AskedSchedules)

    @property
    def in_flight(self) -> InFlight:
        """Return what becomes of responses under way: as asked, as the job's framework does it, else the usual."""
        sheet = load_framework(self.job.framework)
        return self.asked.in_flight or (IN_FLIGHT if sheet.runs else sheet.in_flight)

    def __iter__(self) -> Iterator[Schedule]:
        """Yield them, synchronous ones first."""
        named = self.asked.modes
        for mode in named or FLOWS:
            if mode not in named and over_samples_streams(self.job.workload, mode):
                continue  # which samples of a prompt are dropped is played of whole batches alone
            if FLOWS[mode].is_endless:
                yield from self._endless(mode)
            elif mode in named or self._allows(mode):
                yield Schedule(mode, STALENESS[mode])

    def _allows(self, mode: Mode) -> bool:
        limit = self.specs.staleness
        if not FLOWS[mode].overlaps:
            return True
        return limit is not None and STALENESS[mode] <= limit

    def _endless(self, mode: Mode) -> Iterator[Schedule]:
        asked, limit = self.asked, self.specs.staleness
        if limit is None and asked.modes:
            limit = 1.0 if asked.sync_every is None else max(1.0, asked.sync_every - 1.0)
        staleness = limit if asked.staleness is None else asked.staleness
        if not staleness:
            return
        for every in SYNC_INTERVALS if asked.sync_every is None else (asked.sync_every,):
            if every - 1 <= staleness:
                yield Schedule(mode, staleness, every, self.in_flight)


def schedule_of(plan: Plan) -> Schedule:
    """Return the schedule of a plan."""
    return Schedule(plan.mode, plan.staleness, plan.sync_every, plan.in_flight)


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
    """

    tasks: FrozenDict[str, TaskDraft] = field(default_factory=FrozenDict)
    pools: tuple[PinnedPool, ...] = ()
    host: ResourcePool | None = None
    asked: AskedSchedules = field(default_factory=AskedSchedules)
    transition: TransitionName | None = None
    arranged: Arranged | None = None

    @property
    def given(self) -> bool:
        """Tell whether a user pinned more than a mode; what a framework fixes aside."""
        if self.arranged is not None:
            return bool(self.pools)
        return replace(self, asked=AskedSchedules()) != NOTHING_PINNED

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
