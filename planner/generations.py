"""How a pool can generate: in which layout, after which transition, with how much KV cache."""

import bisect
import math
from dataclasses import dataclass, replace

from planner.options import OptionTable, TaskOption
from rlplan.plan import TaskPlan, TransitionName
from simulator.costs import task_cost, transition_cost
from simulator.memory import generation_kv_bytes, transition_terms
from simulator.site import Site
from simulator.task_memory import least_kv_bytes, useful_kv_bytes

ACTOR = "actor"


@dataclass(frozen=True, slots=True)
class Move:
    """Hold what one training and one generation layout of the actor need together.

    Attributes:
        seconds: The transition between them.
        peak_bytes: What the transition takes of each GPU beside the pool's residents.
        room_bytes: The KV cache of a GPU without residents.
        least_bytes: With less cache, not one sequence runs.
        useful_bytes: More cache is of no use.
        generate_seconds: What generation takes with all the cache that it can use.
    """

    option: TaskOption
    transition: TransitionName
    seconds: float
    peak_bytes: int
    room_bytes: float
    least_bytes: float
    useful_bytes: float
    generate_seconds: float

    def kv_bytes(self, resident_bytes: int, capacity_bytes: int) -> float | None:
        """Return the KV cache that residents leave on each GPU; None if it is not enough."""
        left = self.room_bytes - resident_bytes
        if left < self.least_bytes or resident_bytes + self.peak_bytes > capacity_bytes:
            return None
        return min(left, self.useful_bytes)


@dataclass(frozen=True, slots=True)
class Generation:
    """Hold how a pool generates, and with how much memory.

    Attributes:
        kv_bytes: What all residents of the pool leave to the KV cache on each GPU, as far as its
            sequences can fill it.
        seconds: What it takes with `costed_bytes` of KV cache, which is a lower bound while these
            are more than it has: a larger cache never makes generation slower.
    """

    move: Move
    kv_bytes: float
    seconds: float
    costed_bytes: float

    @property
    def is_exact(self) -> bool:
        """Tell whether the seconds are those of the cache that it has."""
        return self.costed_bytes <= self.kv_bytes

    @property
    def next_bytes(self) -> float:
        """Return the cache to cost next: a power of two below the useful size, then its own.

        Few different sizes share the first, and most options are out of the race after it.
        """
        halvings = math.floor(math.log2(self.move.useful_bytes / self.kv_bytes))
        rough = self.move.useful_bytes / 2**halvings
        return rough if rough < self.costed_bytes else self.kv_bytes


class GenerationTable:
    """Cost generation on sites, each layout and size of cache once."""

    def __init__(self, options: OptionTable) -> None:
        self.options = options
        self._seconds: dict[tuple[TaskPlan, Site, float], float] = {}
        self._sizes: dict[tuple[TaskPlan, Site], list[float]] = {}

    def move(self, train: TaskPlan, generate: TaskOption, site: Site) -> Move:
        """Return what it takes to train in one layout and to generate in another."""
        job, facts, layout = self.options.job, self.options.facts, generate.layout
        transition = transition_for(train, layout)
        cost = transition_cost(
            transition,
            job.architecture(ACTOR),
            train,
            layout,
            site,
            site,
            same_pool=True,
            job=job,
            facts=facts,
        )
        peak = transition_terms(ACTOR, transition, train, layout, site, job, facts)
        # An engine without a cache has use for none; a byte keeps ratios of sizes defined.
        useful = max(1.0, useful_kv_bytes(ACTOR, layout, job, facts))
        return Move(
            option=generate,
            transition=transition,
            seconds=cost.total.seconds,
            peak_bytes=sum(peak.values()),
            room_bytes=generation_kv_bytes(0, train, layout, transition, site, job, facts),
            least_bytes=max(1.0, least_kv_bytes(ACTOR, layout, job, facts)),
            useful_bytes=useful,
            generate_seconds=self._seconds_of(generate, site, useful),
        )

    def refined(self, chosen: Generation, site: Site) -> Generation:
        """Return generation with a tighter bound on its seconds, exact after a few calls."""
        if chosen.is_exact:
            return chosen
        option = chosen.move.option
        sizes = self._sizes[option.layout, site]
        costed = sizes[bisect.bisect_left(sizes, chosen.kv_bytes)]  # the smallest that is enough
        if costed >= chosen.costed_bytes:
            costed = chosen.next_bytes
        seconds = self._seconds_of(option, site, costed)
        return replace(chosen, seconds=max(chosen.seconds, seconds), costed_bytes=costed)

    def _seconds_of(self, generate: TaskOption, site: Site, kv_bytes: float) -> float:
        key = (generate.layout, site, kv_bytes)
        if key not in self._seconds:
            job, facts = self.options.job, self.options.facts
            cost = task_cost(generate.task, generate.layout, site, job, facts, kv_bytes=kv_bytes)
            self._seconds[key] = cost.total.seconds
            bisect.insort(self._sizes.setdefault((generate.layout, site), []), kv_bytes)
        return self._seconds[key]


def transition_for(train: TaskPlan, generate: TaskPlan) -> TransitionName:
    """Return the cheapest transition that brings one layout of a pool to another."""
    if (train.tp, train.pp) == (generate.tp, generate.pp):
        return "none"
    if train.tp % generate.tp == 0 and train.pp % generate.pp == 0:
        return "hybridflow"
    return "all-gather"
