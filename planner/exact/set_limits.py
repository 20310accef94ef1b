"""How long the sets of a placement may work before no plan with them is worth anything.

Every value that a plan must stay below, the best one's so far or a limit of the job's, is linear in seconds:
of the iteration, and of each pool's work and generation. What all other sets cost at least is taken
off; the rest is what one set may spend.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rlplan.planner.exact.score import Figure
from rlplan.planner.exact.space import Space
from rlplan.planner.placements.allocations import Share
from rlplan.planner.placements.partitions import ColocatedSet
from rlplan.planner.requests.specs import ROUNDING
from rlplan.simulator.placed.site import Site

Place = tuple[Share, Site]


class LeastUse(NamedTuple):
    """Hold what every choice of a set adds to a figure at least: for every second held, and for its work on top."""

    held: float
    work: float


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
        placement: tuple[ColocatedSet, ...],
        places: tuple[list[Place], ...],
        generating: int,
        generation_seconds: dict[Site, float],
        first_seconds: float,
    ) -> None:
        self.space, self.placement, self.places = space, placement, places
        self.generating, self.generation_seconds = generating, generation_seconds
        self.first_seconds = first_seconds

    def work_seconds(self, cutoff: float, index: int, site: Site) -> float:
        """Return seconds of a set's own tasks beyond which no plan has a value below `cutoff`.

        Its own tasks are those that it prepares and trains with, generation aside.
        """
        generates = index == self.generating
        first = self.generation_seconds[site] if generates else self.first_seconds
        if math.isinf(first):
            return -math.inf
        return min(each.work_seconds(first) for each in self._budgets(cutoff, index, site))

    def pool_seconds(self, cutoff: float, site: Site, work_seconds: float) -> float:
        """Return seconds of the generating set on a site beyond which no plan is below `cutoff`.

        Args:
            work_seconds: The least of its own tasks; generation comes on top.
        """
        first = self.generation_seconds[site]
        if math.isinf(first):
            return -math.inf
        budgets = self._budgets(cutoff, self.generating, site)
        return min(each.pool_seconds(work_seconds, first) for each in budgets)

    def _budgets(self, cutoff: float, index: int, site: Site) -> Iterator[Budget]:
        """Yield what the objective and each of the limits leave to a set."""
        score = self.space.score
        yield self._budget(0, cutoff, index, site)
        for number, figure in enumerate(score.figures):
            if figure.limit is not None:
                yield self._budget(number, figure.limit * (1 + 2 * ROUNDING), index, site)

    def _budget(self, number: int, most: float, index: int, site: Site) -> Budget:
        """Return what a figure that may be `most` leaves to a set on a site."""
        figure, device = self.space.score.figures[number], self.space.devices.index(site.device)
        others = [uses[number] for place, uses in enumerate(self._least_uses) if place != index]
        generates = index == self.generating
        return Budget(
            most - sum(each.work for each in others),
            float(figure.held[device]) * site.gpus
            + figure.host_held
            + sum(each.held for each in others),
            float(figure.computing[device]) * site.gpus,
            float(figure.moving[device]) * site.gpus if generates else 0.0,
        )

    @cached_property
    def _least_uses(self) -> tuple[tuple[LeastUse, ...], ...]:
        """Return what each set adds at least to each figure, wherever it is."""
        return tuple(
            tuple(self._least_use(index, figure) for figure in self.space.score.figures)
            for index in range(len(self.placement))
        )

    def _least_use(self, index: int, figure: Figure) -> LeastUse:
        members, found = self.placement[index], []
        for share, site in self.places[index]:
            device, least = self.space.device(share), self.space.pools.least(members, site)
            work = 0.0
            if figure.counts_work:
                work = figure.computing[device] * least.whole_seconds
            if figure.counts_work and index == self.generating:
                work += figure.moving[device] * self.generation_seconds[site]
            found.append([float(rate) * share.gpus for rate in (figure.held[device], work)])
        return LeastUse(*map(min, zip(*found, strict=True))) if found else LeastUse(0.0, 0.0)


def _ratio(left: float, rate: float) -> float:
    return left / rate if rate > 0 else math.inf
