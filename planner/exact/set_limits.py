"""How long the sets of a placement may work before no plan with them is worth anything.

Every value that a plan must stay below, the best one's so far or a limit of the job's, is linear in seconds:
of the iteration, and of each pool's work and generation. What all other sets cost at least is taken
off; the rest is what one set may spend.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from planner.exact.space import Space
from planner.placements.allocations import Share
from planner.placements.partitions import UnitSet
from planner.requests.specs import ROUNDING
from simulator.site import Site

Place = tuple[Share, Site]


@dataclass(frozen=True, slots=True)
class LeastUse:
    """Hold what no choice of a set can be below.

    Attributes:
        usd: For a second of its GPUs.
        idle_watts: Of its GPUs, whether they work or not.
        joules: Of its work in an iteration, idle power aside.
    """

    usd: float
    idle_watts: float
    joules: float


@dataclass(frozen=True, slots=True)
class Budget:
    """Hold what one set may spend, and what its seconds cost.

    Attributes:
        left: What the others leave of a value that the plan must be below.
        waiting: For every second of the iteration.
        working: On top, for every second of the set's own tasks.
        generating: On top, for every second in which the set generates.
    """

    left: float
    waiting: float
    working: float
    generating: float

    def work_seconds(self, generation_seconds: float) -> float:
        """Return the longest work of the set's own tasks after so much generation, in seconds."""
        left = self.left - (self.waiting + self.generating) * generation_seconds
        return _ratio(left, self.waiting + self.working)

    def pool_seconds(self, work_seconds: float, generation_seconds: float) -> float:
        """Return the longest work and generation together, each at least so long, in seconds."""
        least = min(self.working, self.generating)
        left = self.left - (self.working - least) * work_seconds
        left -= (self.generating - least) * generation_seconds
        return _ratio(left, self.waiting + least)


class SetLimits:
    """Bound the seconds of the sets of one placement.

    Args:
        places: For each set where it may be.
        generating: Place of the set that generates.
        generation_seconds: By site of that set, what no way to generate there can beat.
        first_seconds: What no plan can beat before its other sets begin.
    """

    def __init__(
        self,
        space: Space,
        placement: tuple[UnitSet, ...],
        places: tuple[list[Place], ...],
        generating: int,
        generation_seconds: dict[Site, float],
        first_seconds: float,
    ) -> None:
        self.space, self.placement, self.places = space, placement, places
        self.generating, self.generation_seconds = generating, generation_seconds
        self.first_seconds = first_seconds

    def work_seconds(self, worth: float, index: int, site: Site) -> float:
        """Return seconds of a set's own tasks beyond which no plan has a value below `worth`.

        Its own tasks are those that it prepares and trains with, generation aside.
        """
        generates = index == self.generating
        first = self.generation_seconds[site] if generates else self.first_seconds
        if math.isinf(first):
            return -math.inf
        return min(each.work_seconds(first) for each in self._budgets(worth, index, site))

    def pool_seconds(self, worth: float, site: Site, work_seconds: float) -> float:
        """Return seconds of the generating set on a site beyond which no plan is below `worth`.

        Args:
            work_seconds: The least of its own tasks; generation comes on top.
        """
        first = self.generation_seconds[site]
        if math.isinf(first):
            return -math.inf
        budgets = self._budgets(worth, self.generating, site)
        return min(each.pool_seconds(work_seconds, first) for each in budgets)

    def _budgets(self, worth: float, index: int, site: Site) -> Iterator[Budget]:
        """Yield what the objective and each of the limits leave to a set."""
        specs = self.space.specs
        kinds = {"throughput": self._seconds, "cost": self._usd, "energy": self._joules}
        yield kinds[self.space.score.objective.name](worth, index, site)
        for kind, most in (
            (self._seconds, specs.iteration_seconds),
            (self._usd, specs.cost_usd),
            (self._joules, specs.energy_joules),
        ):
            if most is not None:
                yield kind(most * (1 + 2 * ROUNDING), index, site)

    def _seconds(self, most: float, index: int, site: Site) -> Budget:
        del index, site
        return Budget(most, 1.0, 0.0, 0.0)

    def _usd(self, most: float, index: int, site: Site) -> Budget:
        device = self.space.devices.index(site.device)
        rate = float(self.space.score.usd_per_second[device]) * site.gpus
        return Budget(most, rate + sum(each.usd for each in self._others(index)), 0.0, 0.0)

    def _joules(self, most: float, index: int, site: Site) -> Budget:
        score, device = self.space.score, self.space.devices.index(site.device)
        others = self._others(index)
        idle = float(score.idle_watts[device]) * site.gpus + score.host_watts
        generates = index == self.generating
        return Budget(
            most - score.host_joules - sum(each.joules for each in others),
            idle + sum(each.idle_watts for each in others),
            float(score.computing_watts[device]) * site.gpus,
            float(score.moving_watts[device]) * site.gpus if generates else 0.0,
        )

    def _others(self, index: int) -> list[LeastUse]:
        return [least for place, least in enumerate(self._least_uses) if place != index]

    @cached_property
    def _least_uses(self) -> tuple[LeastUse, ...]:
        """Return what each set costs at least, wherever it is."""
        return tuple(self._least_use(index) for index in range(len(self.placement)))

    def _least_use(self, index: int) -> LeastUse:
        score, members = self.space.score, self.placement[index]
        found = []
        for share, site in self.places[index]:
            device, least = self.space.device(share), self.space.pools.least(members, site)
            joules = score.computing_watts[device] * least.whole_seconds
            if index == self.generating:
                joules += score.moving_watts[device] * self.generation_seconds[site]
            rates = (score.usd_per_second[device], score.idle_watts[device], joules)
            found.append([float(rate) * share.gpus for rate in rates])
        return LeastUse(*map(min, zip(*found, strict=True))) if found else LeastUse(0.0, 0.0, 0.0)


def _ratio(left: float, rate: float) -> float:
    return left / rate if rate > 0 else math.inf
