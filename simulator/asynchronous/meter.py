"""Where the time of overlapping generation and training goes: sums by stage and pool, kept during the simulation."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from rlplan.simulator.timeline.engine import Work
from rlplan.simulator.timeline.pool_memory import TRANSITION

K = TypeVar("K")
# An instant belongs to the first of these that is under way; else to generation, for which training waits.
FIRST = (TRANSITION, "training", "preparation")
GENERATION = "generation"


@dataclass(frozen=True, slots=True)
class Reading:
    """Hold the sums at an instant.

    Attributes:
        stage_seconds: By stage, seconds in which the iteration waited for it.
        busy_seconds: By pool, seconds in which it computed; of generators, of the mean replica.
        idle_seconds: By pool and stage, seconds of that stage in which the pool was idle.
    """

    at_seconds: float
    stage_seconds: Mapping[str, float]
    busy_seconds: Mapping[str, float]
    idle_seconds: Mapping[tuple[str, str], float]

    def since(self, earlier: "Reading") -> "Reading":
        """Return the difference to an earlier reading."""
        return Reading(
            self.at_seconds - earlier.at_seconds,
            _less(self.stage_seconds, earlier.stage_seconds),
            _less(self.busy_seconds, earlier.busy_seconds),
            _less(self.idle_seconds, earlier.idle_seconds),
        )


def _less(later: Mapping[K, float], earlier: Mapping[K, float]) -> dict[K, float]:
    return {key: seconds - earlier.get(key, 0.0) for key, seconds in later.items()}


class Meter:
    """Sum up the busy and idle seconds of pools.

    Args:
        generating: Pool of the generators.
        replicas: Generation replicas that are simulated.
        stages: Of works, by key.
    """

    def __init__(
        self, pools: Iterable[str], generating: str, replicas: int, stages: Mapping[str, str]
    ) -> None:
        self._pools = tuple(pool for pool in pools if pool != generating)
        self._generating, self._replicas = generating, replicas
        self._stage_of = stages
        self._active: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._running = 0
        self._now = 0.0
        self._stages: dict[str, float] = defaultdict(float)
        self._busy: dict[str, float] = defaultdict(float)
        self._idle: dict[tuple[str, str], float] = defaultdict(float)

    def work(self, now: float, work: Work, change: int) -> None:
        """Note that a work begins (1) or ends (-1)."""
        self._advance(now)
        self._active[self._stage_of[work.key]] += change
        if work.activity != "transfer":  # which holds links, and pools go on with their work
            for pool in work.holds:
                self._held[pool] += change

    def generate(self, now: float, change: int) -> None:
        """Note that a replica gets its first response under way (1), or ends its last (-1)."""
        self._advance(now)
        self._running += change

    def read(self, now: float) -> Reading:
        """Return the sums until now."""
        self._advance(now)
        return Reading(now, dict(self._stages), dict(self._busy), dict(self._idle))

    def _advance(self, now: float) -> None:
        seconds, self._now = now - self._now, now
        if not seconds:
            return
        stage = GENERATION
        for each in FIRST:
            if self._active[each]:
                stage = each
                break
        self._stages[stage] += seconds
        for pool in self._pools:
            if self._held[pool]:
                self._busy[pool] += seconds
            else:
                self._idle[pool, stage] += seconds
        share = self._running / self._replicas
        self._busy[self._generating] += share * seconds
        if not self._held[self._generating]:
            self._idle[self._generating, stage] += (1 - share) * seconds
