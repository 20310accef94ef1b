"""How a plan's iterations may follow each other: modes, how old weights may be, when they are synced."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

from rlplan.job import Job, Specs
from rlplan.plan import BATCH_AHEAD_MODE, FLOWS, USUAL_MODE, Flow, InFlight, Mode, Plan
from rlplan.profiles.sheets import load_framework
from rlplan.rules.flow import STALENESS
from rlplan.simulator.simulate import over_samples_streams, streams_texts

# Iterations between two syncs of weights that a search looks at, as far as the staleness lets it.
SYNC_INTERVALS = (1, 2, 4)

# Bounds of staleness that a search looks at up to the limit where the age of samples counts. The limit itself is none of them: so all
# that is looked at under a limit is looked at under a larger one, which is then no worse.
AGE_BOUNDS = (1, 2, 4, 8, 16, 32)

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

    Attributes:
        weighs_age: Whether fresher samples are better, so that several bounds up to the limit are looked at.
        least_staleness: Below which no bound is that a framework cannot be told.
    """

    job: Job
    specs: Specs
    asked: AskedSchedules = field(default_factory=AskedSchedules)
    weighs_age: bool = False
    least_staleness: float = 0.0

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
            if mode not in named and streams_texts(self.job.workload, mode):
                continue
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
        bounds: tuple[float, ...] = (staleness,)
        if self.weighs_age and asked.staleness is None:
            bounds = self._bounds(staleness)
        for bound in bounds:
            for every in SYNC_INTERVALS if asked.sync_every is None else (asked.sync_every,):
                if every - 1 <= bound:
                    yield Schedule(mode, bound, every, self.in_flight)

    def _bounds(self, limit: float) -> tuple[float, ...]:
        """Return the bounds that are looked at up to a limit where age counts; below 1 the limit itself."""
        least = max(self.least_staleness, (self.asked.sync_every or 1) - 1)
        every = {*AGE_BOUNDS, least} if least else AGE_BOUNDS
        return tuple(each for each in sorted(every) if least <= each <= limit) or (limit,)


def schedule_of(plan: Plan) -> Schedule:
    """Return the schedule of a plan."""
    return Schedule(plan.mode, plan.staleness, plan.sync_every, plan.in_flight)
