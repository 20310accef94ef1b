"""Levels 2 and 3 of the search for one placement: branch and bound, then simulation.

The generating pool's candidates are taken in the order of their bounds, each with the best choice
for the other sets on the GPUs that it leaves. A candidate whose turn comes has its generation played; one
that is first even then is simulated with the choices for the others, until no bound is below the best plan.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from rlplan.planner.exact.best_first import BestFirst, Incumbent, SearchBudget
from rlplan.planner.exact.generation.options import ShareRows
from rlplan.planner.exact.other_pools import OtherPools, empty, joined, stacked
from rlplan.planner.exact.placement_bounds import PlacementBounds
from rlplan.planner.exact.set_limits import Place
from rlplan.planner.exact.space import Space
from rlplan.planner.layouts.pool_rows import PoolRows
from rlplan.planner.placements.allocations import Share
from rlplan.planner.placements.partitions import ColocatedSet, Placement
from rlplan.planner.plans.assembly import Choice, plan_of, with_largest_share
from rlplan.planner.requests.schedules import SYNC, Schedule
from rlplan.planner.requests.specs import violations
from rlplan.simulator.placed.site import Site
from rlplan.simulator.simulate import simulate

MADE_BY = "exact search"

# Generations that are looked at for a placement's first plan.
QUICK_PLAYS = 10

# Places of the generating set on which a first plan is looked for, each with the best of the others'.
QUICK_PLACES = 2

# Ways to generate on each share that it is chosen from.
QUICK_WAYS = 12

RowsOf = Callable[[ColocatedSet, Site], PoolRows]


class PlacementSearch:
    """Search the plans of one placement with one schedule.

    Args:
        given: For each set its share and site, where they are given.
    """

    def __init__(
        self,
        space: Space,
        placement: Placement,
        schedule: Schedule = SYNC,
        given: tuple[Place, ...] | None = None,
    ) -> None:
        self.bounds = PlacementBounds(space, placement, schedule, given)
        self.space, self.placement, self.schedule = space, placement, schedule
        self.found = Incumbent()
        self._straddling: dict[tuple[Share, ...], PlacementSearch] = {}
        self.found.bound = self.least_value = self.bounds.least_value

    def quick(self) -> None:
        """Find a good plan, if any fits at all."""
        if math.isinf(self.least_value):
            return
        for places in (self.bounds.promising(QUICK_PLACES), self.bounds.places):
            parts = self._parts(self.space.pools.quick, places)
            queue = self._queue(parts, math.inf, QUICK_WAYS)
            if queue is not None:
                queue.try_some(parts, QUICK_PLAYS)
            if self.found.plan is not None:
                return

    def exact(self, cutoff: float, budget: SearchBudget) -> None:
        """Find the best of all plans of a lower value than `cutoff`, or show that there is none."""
        cutoff = min(cutoff, self.found.value)
        limits, pools = self.bounds.limits, self.space.pools

        def rows(members: ColocatedSet, site: Site) -> PoolRows:
            index = self.placement.index(members)
            return pools.exact(members, site, limits.work_seconds(cutoff, index, site))

        parts = self._parts(rows, self.bounds.places)
        queue = self._queue(parts, cutoff)
        bound = queue.run(parts, cutoff, budget) if queue else math.inf
        self.found.bound = max(self.found.bound, min(bound, cutoff, self.found.value))

    def _parts(self, rows_of: RowsOf, places: Sequence[list[Place]]) -> list[list[ShareRows]]:
        """Return for each set where it may be with its rows."""
        return [
            [(share, site, rows_of(members, site)) for share, site in own]
            for members, own in zip(self.placement, places, strict=True)
        ]

    def _other_pools(self, parts: list[list[ShareRows]], cutoff: float) -> OtherPools:
        """Return how the other sets can share what is left, as far as it can be worth something."""
        bounds, score = self.bounds, self.space.score
        others = empty(score, 1, 0)
        for index in bounds.others:
            some = []
            for place, (share, _, rows) in enumerate(parts[index]):
                seconds = np.stack([rows.prepare, rows.train], axis=1)
                some.append(bounds.rows_of(self.placement[index], share, seconds, place))
            right = stacked(some, score)
            first = bounds.least_generation
            others = joined(others, right, self.space.limits, first, cutoff, score)
        self.space.tally.consider("arrangements of pools", len(others))
        return others

    def _queue(
        self, parts: list[list[ShareRows]], cutoff: float, most_ways: float = math.inf
    ) -> BestFirst | None:
        """Return the candidates of a lower value than `cutoff` by their bounds; None if there are none."""
        others = self._other_pools(parts, cutoff)
        own = parts[self.bounds.generating]
        limits = [self._most_seconds(cutoff, site, rows) for _, site, rows in own]
        candidates = self.bounds.table.candidates(own, limits, most_ways)
        self.space.tally.consider("ways to generate", len(candidates))
        if not len(candidates) or not len(others):
            return None
        return BestFirst(self, candidates, others, cutoff)

    def _most_seconds(self, cutoff: float, site: Site, rows: PoolRows) -> float:
        """Return the seconds that one of the generating pool's rows may take, generation included."""
        if math.isinf(cutoff) or not len(rows):
            return cutoff
        least = float((rows.prepare + rows.train).min())
        return self.bounds.limits.pool_seconds(cutoff, site, least)

    def simulated(self, choice: Choice) -> float:
        """Simulate a choice's plan, remember it if it is the best, and return its value."""
        space = self.space
        plan = plan_of(choice, space.job, MADE_BY, space.pinned)
        layouts = space.options.space
        plan = with_largest_share(plan, space.facts, layouts.usable_fraction, layouts.drafts)
        forecast = simulate(plan, space.facts)
        space.tally.consider("simulated plans")
        if not forecast.feasible:
            space.tally.prune("simulated memory does not fit")
            return math.inf
        broken = violations(plan, forecast, space.specs)
        if broken:
            space.tally.prune(f"beyond the limit of {broken[0].spec}")
            return math.inf
        value = space.score.objective.figure(forecast)
        if value < self.found.value:
            self.found.choice, self.found.plan = choice, plan
            self.found.forecast, self.found.value = forecast, value
        return value

    def straddling(
        self, allocation: tuple[Share, ...], sites: tuple[Site, ...], cutoff: float
    ) -> float:
        """Search an allocation some of whose pools straddle nodes; return what it cannot beat."""
        if allocation not in self._straddling:
            places = tuple(zip(allocation, sites, strict=True))
            search = PlacementSearch(self.space, self.placement, self.schedule, places)
            self._straddling[allocation] = search
            search.exact(cutoff, SearchBudget())
            if search.found.value < self.found.value:
                self.found.choice, self.found.plan = search.found.choice, search.found.plan
                self.found.forecast = search.found.forecast
                self.found.value = search.found.value
        return self._straddling[allocation].found.bound
