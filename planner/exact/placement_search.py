"""Levels 2 and 3 of the search for one placement: branch and bound, then simulation.

The generating pool's candidates are taken in the order of their bounds, each with the best arrangement
of the other sets on the GPUs that it leaves. A candidate whose turn comes has its generation played; one
that is first even then is simulated with its arrangements, until no bound is below the best plan.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from planner.exact.arrangements import Arrangements, empty, joined, stacked
from planner.exact.best_first import Contest, Effort, Found
from planner.exact.generations import Part
from planner.exact.placement_bounds import PlacementBounds
from planner.exact.set_limits import Place
from planner.exact.space import Space
from planner.layouts.pool_rows import PoolRows
from planner.placements.allocations import Share
from planner.placements.partitions import UnitPlacement, UnitSet
from planner.plans.assembly import Choice, plan_of
from planner.requests.specs import violations
from rlplan.plan import Mode
from simulator.simulate import simulate
from simulator.site import Site

MADE_BY = "exact search"

# Generations that are looked at for a placement's first plan.
QUICK_PLAYS = 10

# Places of the generating set on which a first plan is looked for, each with the best of the others'.
QUICK_PLACES = 2

# Ways to generate on each share that it is chosen from.
QUICK_WAYS = 12

RowsOf = Callable[[UnitSet, Site], PoolRows]


class PlacementSearch:
    """Search the plans of one placement in one mode.

    Args:
        fixed: For each set its share and site, where they are given.
    """

    def __init__(
        self,
        space: Space,
        placement: UnitPlacement,
        mode: Mode = "sync",
        fixed: tuple[Place, ...] | None = None,
    ) -> None:
        self.bounds = PlacementBounds(space, placement, mode, fixed)
        self.space, self.placement, self.mode = space, placement, mode
        self.found = Found()
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

    def exact(self, worth: float, effort: Effort) -> None:
        """Find the best of all plans of a lower value than `worth`, or show that there is none."""
        worth = min(worth, self.found.value)
        limits, pools = self.bounds.limits, self.space.pools

        def rows(members: UnitSet, site: Site) -> PoolRows:
            index = self.placement.index(members)
            return pools.exact(members, site, limits.work_seconds(worth, index, site))

        parts = self._parts(rows, self.bounds.places)
        queue = self._queue(parts, worth)
        bound = queue.run(parts, worth, effort) if queue else math.inf
        self.found.bound = max(self.found.bound, min(bound, worth, self.found.value))

    def _parts(self, rows_of: RowsOf, places: Sequence[list[Place]]) -> list[list[Part]]:
        """Return for each set where it may be with its rows."""
        return [
            [(share, site, rows_of(members, site)) for share, site in own]
            for members, own in zip(self.placement, places, strict=True)
        ]

    def _arrangements(self, parts: list[list[Part]], worth: float) -> Arrangements:
        """Return how the other sets can share what is left, as far as it can be worth something."""
        bounds, score = self.bounds, self.space.score
        arranged = empty(score, 1, 0)
        for index in bounds.others:
            some = []
            for place, (share, _, rows) in enumerate(parts[index]):
                seconds = np.stack([rows.prepare, rows.train], axis=1)
                some.append(bounds.arranged(self.placement[index], share, seconds, place))
            right = stacked(some, score)
            first = bounds.least_generation
            arranged = joined(arranged, right, self.space.limits, first, worth, score)
        self.space.tally.consider("arrangements of pools", len(arranged))
        return arranged

    def _queue(
        self, parts: list[list[Part]], worth: float, most_ways: float = math.inf
    ) -> Contest | None:
        """Return the candidates of a lower value than `worth` by their bounds; None if there are none."""
        arranged = self._arrangements(parts, worth)
        own = parts[self.bounds.generating]
        limits = [self._most_seconds(worth, site, rows) for _, site, rows in own]
        candidates = self.bounds.table.candidates(own, limits, most_ways)
        self.space.tally.consider("ways to generate", len(candidates))
        if not len(candidates) or not len(arranged):
            return None
        return Contest(self, candidates, arranged, worth)

    def _most_seconds(self, worth: float, site: Site, rows: PoolRows) -> float:
        """Return the seconds that one of the generating pool's rows may take, generation included."""
        if math.isinf(worth) or not len(rows):
            return worth
        least = float((rows.prepare + rows.train).min())
        return self.bounds.limits.pool_seconds(worth, site, least)

    def simulated(self, choice: Choice) -> float:
        """Simulate a choice's plan, remember it if it is the best, and return its value."""
        space = self.space
        plan = plan_of(choice, space.job, MADE_BY, space.fixed)
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
        self, allocation: tuple[Share, ...], sites: tuple[Site, ...], worth: float
    ) -> float:
        """Search an allocation some of whose pools straddle nodes; return what it cannot beat."""
        if allocation not in self._straddling:
            places = tuple(zip(allocation, sites, strict=True))
            search = PlacementSearch(self.space, self.placement, self.mode, places)
            self._straddling[allocation] = search
            search.exact(worth, Effort())
            if search.found.value < self.found.value:
                self.found.choice, self.found.plan = search.found.choice, search.found.plan
                self.found.forecast = search.found.forecast
                self.found.value = search.found.value
        return self._straddling[allocation].found.bound
