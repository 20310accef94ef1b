"""Level 3 of the search: candidates by their bounds, played and simulated until none can win."""

import heapq
import math
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from planner.exact.arrangements import Arrangements
from planner.exact.candidates import Candidates
from planner.exact.generations import Part, Way
from planner.exact.placement_bounds import PlacementBounds
from planner.exact.space import Space
from planner.layouts.pareto import front_rows
from planner.placements.allocations import Share, sites_for
from planner.placements.orders import other_orders
from planner.plans.assembly import Choice
from planner.requests.specs import ROUNDING
from rlplan.plan import Plan
from rlplan.results.forecast import Forecast
from simulator.costs.layout_columns import Floats, Ints
from simulator.site import Site


@dataclass(slots=True)
class Found:
    """Hold the best plan of a placement so far, and what none of its plans can beat.

    Attributes:
        value: Of the best plan, by the objective, for a whole iteration.
        bound: No plan of the placement has a lower value.
    """

    choice: Choice | None = None
    plan: Plan | None = None
    forecast: Forecast | None = None
    value: float = math.inf
    bound: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limit what a search may spend; None is no limit.

    Attributes:
        plays: Generations that are played.
        simulations: Plans that are simulated.
        deadline: When to stop, by `time.perf_counter`.
    """

    plays: float = math.inf
    simulations: float = math.inf
    deadline: float = math.inf


class Judge(Protocol):
    """Say what candidates and choices of a placement are worth."""

    space: Space
    bounds: PlacementBounds
    found: Found

    def simulated(self, choice: Choice) -> float:
        """Simulate a choice's plan, remember it if it is the best, and return its value."""

    def straddling(
        self, allocation: tuple[Share, ...], sites: tuple[Site, ...], worth: float
    ) -> float:
        """Search an allocation some of whose pools straddle nodes; return what it cannot beat."""


class Contest:
    """Hand out candidates by their bounds, and simulate those whose generation was played."""

    def __init__(
        self,
        search: Judge,
        candidates: Candidates,
        arranged: Arrangements,
        worth: float,
    ) -> None:
        self.search, self.candidates = search, candidates
        self.arranged = {
            share: self._fitting(share, arranged)
            for share in dict.fromkeys(way.share for way in candidates.ways)
        }
        self._heap: list[tuple[float, int, int]] = []
        for share, some in self.arranged.items():
            here = [place for place, way in enumerate(candidates.ways) if way.share == share]
            places = np.flatnonzero(np.isin(candidates.way, here))
            bounds = self._bounds(places, some).min(axis=1, initial=math.inf)
            for place, bound in zip(places[bounds < worth], bounds[bounds < worth], strict=True):
                self._heap.append((float(bound), share.gpus, int(place)))
        heapq.heapify(self._heap)

    def run(self, parts: list[list[Part]], worth: float, effort: Effort) -> float:
        """Return what none of the candidates can beat once all that may win were simulated."""
        found, seen = self.search.found, math.inf
        plays = simulations = 0
        while self._heap:
            bound, gpus, place = heapq.heappop(self._heap)
            best = min(worth, found.value)
            if bound >= best:
                return min(seen, best)
            if time.perf_counter() > effort.deadline or plays >= effort.plays:
                return min(seen, bound)
            if not self.candidates.is_exact[place]:
                if not self.candidates.raise_bound(place, self.search.space):
                    plays += 1
                    self.candidates.tighten(place, self.search.space)
                some = self.arranged[self._way(place).share]
                again = float(self._bounds(np.array([place]), some).min())
                if again < best:
                    heapq.heappush(self._heap, (again, gpus, place))
                continue
            for leaf_bound, choice in self._leaves(place, parts):
                if leaf_bound >= min(worth, found.value):
                    break
                if simulations >= effort.simulations:
                    return min(seen, leaf_bound)
                simulations += 1
                seen = min(seen, self._judge(choice, leaf_bound, worth))
        return min(seen, worth, found.value)

    def try_some(self, parts: list[list[Part]], plays: int) -> None:
        """Play the most promising candidates' generation, and simulate the best of them.

        Args:
            plays: Generations that are looked at, whether other placements played them before or
                not: what is found depends on this placement alone.
        """
        played: list[tuple[float, int, int]] = []
        looked_at: set[Hashable] = set()
        while self._heap and len(looked_at) < plays:
            bound, gpus, place = heapq.heappop(self._heap)
            if played and bound >= min(played)[0]:
                break
            looked_at.add(self.candidates.play(place, self.search.space))
            some = self.arranged[self._way(place).share]
            played.append((float(self._bounds(np.array([place]), some).min()), gpus, place))
        for _, _, place in sorted(played):
            for bound, choice in self._leaves(place, parts):
                if not math.isfinite(bound):
                    break
                self._judge(choice, bound, math.inf, tries_orders=choice.mode != "sync")
                if self.search.found.choice is not None:
                    return

    def _way(self, place: int) -> Way:
        return self.candidates.ways[int(self.candidates.way[place])]

    def _judge(
        self, choice: Choice, leaf_bound: float, worth: float, *, tries_orders: bool = True
    ) -> float:
        """Simulate a choice where its pools really stand; return what its like cannot beat."""
        space = self.search.space
        sites = sites_for(space.job, choice.allocation)
        if sites is None:
            return math.inf
        if self.search.bounds.fixed is None and sites != tuple(map(space.site, choice.allocation)):
            return self.search.straddling(choice.allocation, sites, worth)
        value = self.search.simulated(choice)
        if tries_orders and leaf_bound * (1 + ROUNDING) < min(
            value, worth, self.search.found.value
        ):
            self._reorder(choice, leaf_bound)
        return leaf_bound

    def _reorder(self, choice: Choice, leaf_bound: float) -> None:
        """Simulate a choice in other orders of tasks on its pools, until one is as good as its bound."""
        space = self.search.space
        own = {each.members for each in space.fixed.pools if each.order}
        fixed = frozenset(i for i, members in enumerate(choice.placement) if members in own)
        for orders in other_orders(choice.placement, space.tasks, choice.mode, fixed):
            space.tally.consider("other orders of tasks")
            value = self.search.simulated(replace(choice, orders=orders))
            if value <= leaf_bound * (1 + ROUNDING):
                return

    def _fitting(self, share: Share, arranged: Arrangements) -> Arrangements:
        """Return the arrangements that leave a share free, without those that others beat there."""
        space = self.search.space
        used = arranged.used + self.search.bounds.used(share)
        fits = np.flatnonzero(np.all(used <= space.limits, axis=1))
        some = arranged.rows(fits)
        if not space.score.counts_only_seconds:
            return some
        stages = (some.prepare, some.train, some.sender_prepare, some.sender_train)
        keys = np.stack([*stages, some.used.sum(axis=1)], axis=1)
        order = np.lexsort(keys.T[::-1])
        some = some.rows(order)  # of equal seconds the fewest GPUs come first
        return some.rows(front_rows(keys[order][:, :-1]))

    def _bounds(self, places: Ints, some: Arrangements) -> Floats:
        each = self.candidates
        own = (each.prepare[places], each.train[places])
        move = np.array([each.ways[way].move.seconds for way in each.way[places]])
        return self.search.bounds.values(
            each.generate[places], own, each.used[places], each.work[places], move, some
        )

    def _leaves(self, place: int, parts: list[list[Part]]) -> Iterator[tuple[float, Choice]]:
        """Yield the candidate's choices in the order of their bounds, of equal ones the smallest."""
        way = self._way(place)
        some = self.arranged[way.share]
        bounds = self._bounds(np.array([place]), some)[0]
        last = None
        for row in np.lexsort((some.used.sum(axis=1), bounds)):
            if bounds[row] == last:
                continue
            last = bounds[row]
            yield float(last), self._choice(place, some.picks[row], parts)

    def _choice(self, place: int, picks: Ints, parts: list[list[Part]]) -> Choice:
        search, way = self.search.bounds, self._way(place)
        shares: dict[int, Share] = {search.generating: way.share}
        generate = search.space.generations.task.name
        own = way.rows.layouts(int(self.candidates.row[place]))
        layouts = {search.generating: {generate: way.replicas.layout, **own}}
        for index, (where, row) in zip(search.others, picks, strict=True):
            share, _, rows = parts[index][int(where)]
            shares[index], layouts[index] = share, rows.layouts(int(row))
        sets = range(len(search.placement))
        return Choice(
            search.placement,
            tuple(shares[index] for index in sets),
            tuple(layouts[index] for index in sets),
            way.move.transition,
            search.mode,
        )
