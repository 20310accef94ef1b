"""Level 3 of the search: candidates by their bounds, played and simulated until none can win."""

import heapq
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from rlplan.collecting import collect_young
from rlplan.plan import Plan
from rlplan.planner.exact.candidates import AskedRows, Candidates
from rlplan.planner.exact.deadlines import is_past
from rlplan.planner.exact.generations import ACTOR, GenerationOption, ShareRows
from rlplan.planner.exact.placement_bounds import (
    PLAYED_NOISE_FRACTION,
    OtherPools,
    Place,
    PlacementBounds,
    SetLimits,
    empty,
    joined,
    least_beside,
)
from rlplan.planner.exact.space import Space, generates_alone
from rlplan.planner.layouts.option_table import front_rows
from rlplan.planner.layouts.pool_rows import PoolRows
from rlplan.planner.placements.allocations import Share, sites_for
from rlplan.planner.placements.orders import other_orders
from rlplan.planner.placements.partitions import ColocatedSet, Placement
from rlplan.planner.plans.assembly import Choice, plan_of, with_largest_share
from rlplan.planner.requests.schedules import SYNC, Schedule
from rlplan.planner.requests.specs import ROUNDING, violations
from rlplan.results.forecast import Forecast
from rlplan.simulator.columns import Floats, Ints
from rlplan.simulator.placed import Site
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.spot import stopping_parts


@dataclass(slots=True)
class Incumbent:
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


@dataclass(frozen=True, slots=True)
class Simulated:
    """Hold what a simulated plan is worth, and what plans of its schedule are that last as long at least.

    Attributes:
        value: By the objective; infinite where it does not fit, or breaks a limit.
        as_long: The least that iterations of its length are worth, with samples as fresh as its schedule can have them.
    """

    value: float = math.inf
    as_long: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBudget:
    """Limit what a search may spend; None is no limit.

    Attributes:
        plays: Generations that are played.
        simulations: Plans that are simulated.
        gap: What may be left between the best plan and what none can beat.
        deadline: When to stop, as `deadline_in` has it.
    """

    plays: float = math.inf
    simulations: float = math.inf
    gap: float = 0.0
    deadline: float = math.inf

    def is_spent(self, plays: int) -> bool:
        """Tell whether no generation is to be played any more, nor anything be simulated."""
        return is_past(self.deadline) or plays >= self.plays


class PlacementEvaluator(Protocol):
    """Say what candidates and choices of a placement are worth."""

    space: Space
    bounds: PlacementBounds
    found: Incumbent
    straddled_bound: float

    def simulated(self, choice: Choice) -> Simulated:
        """Simulate a choice's plan, remember it if it is the best, and return what it is worth."""

    def straddling(
        self, allocation: tuple[Share, ...], sites: tuple[Site, ...], cutoff: float
    ) -> float:
        """Search an allocation some of whose pools straddle nodes; return what it cannot beat."""

    def is_in_vain(self, allocation: tuple[Share, ...]) -> bool:
        """Tell whether an allocation some of whose pools straddle nodes was searched, and nothing fits there."""


class BestFirst:
    """Hand out candidates by their bounds, and simulate those whose generation was played."""

    def __init__(
        self,
        search: PlacementEvaluator,
        candidates: Candidates,
        others: OtherPools,
        cutoff: float,
        *,
        by_share: bool = False,
    ) -> None:
        self.search, self.candidates, self.by_share = search, candidates, by_share
        self.others = {
            share: self._fitting(share, others)
            for share in dict.fromkeys(way.share for way in candidates.ways)
        }
        self._heap: list[tuple[float, float, int]] = []
        for share, some in self.others.items():
            here = np.array([way.share == share for way in candidates.ways])
            places = np.flatnonzero(here[candidates.way])
            bounds = self._bounds(places, some).min(axis=1, initial=math.inf)
            for place, bound in zip(places[bounds < cutoff], bounds[bounds < cutoff], strict=True):
                self._heap.append((float(bound), self._rank(place, share), int(place)))
        heapq.heapify(self._heap)

    def run(self, parts: list[list[ShareRows]], cutoff: float, budget: SearchBudget) -> float:
        """Return what none of the candidates can beat once all that may win were simulated."""
        found, seen = self.search.found, math.inf
        plays = simulated = 0
        while self._heap:
            bound, rank, place = heapq.heappop(self._heap)
            best = min(cutoff, found.value)
            if bound >= best:
                return min(seen, best)
            if budget.is_spent(plays) or bound >= best * (1 - budget.gap):
                return min(seen, bound)
            if self.candidates.is_exact[place]:
                if simulated >= budget.simulations:
                    return min(seen, bound)
                least, count = self._simulate(place, parts, cutoff, budget.simulations - simulated)
                seen, simulated = min(seen, least), simulated + count
                continue
            if not self.candidates.raise_bound(place, self.search.space):
                plays += 1
                self.candidates.tighten(place, self.search.space)
            some = self.others[self._way(place).share]
            again = float(self._bounds(np.array([place]), some).min())
            if again < best:
                heapq.heappush(self._heap, (again, rank, place))
        return min(seen, cutoff, found.value)

    def _simulate(
        self, place: int, parts: list[list[ShareRows]], cutoff: float, most: float
    ) -> tuple[float, int]:
        """Simulate a candidate's choices that may win, `most` of them; return what none beats, and how many."""
        found, seen, count = self.search.found, math.inf, 0
        spoken: list[tuple[Floats, float]] = []
        for leaf_bound, work, choice in self._leaves(place, parts):
            if leaf_bound >= min(cutoff, found.value):
                break
            like = max((least for less, least in spoken if np.all(less <= work)), default=0.0)
            if like > leaf_bound:  # one with no more work on any pool says more than the bound
                seen = min(seen, like)
                continue
            if count >= most:
                return min(seen, leaf_bound), count
            count += 1
            like = self._evaluated(choice, leaf_bound, cutoff)
            seen = min(seen, like)
            if self._speaks_of_more_work:
                spoken.append((work, like))
        return seen, count

    def try_some(self, parts: list[list[ShareRows]], plays: int) -> None:
        """Play the most promising candidates' generation, and simulate the best of them.

        Where pools straddle nodes on which nothing of theirs fits, those follow that stand otherwise.

        Args:
            plays: Generations that are looked at at a time, whether other placements played them before or
                not: what is found depends on this placement alone.
        """
        goes_on = True
        while goes_on:
            goes_on = False
            for place in self._promising(plays, parts):
                for bound, _, choice in self._leaves(place, parts):
                    if not math.isfinite(bound):
                        break
                    if self.search.is_in_vain(choice.allocation):
                        continue
                    orders = choice.schedule.flow.overlaps
                    self._evaluated(choice, bound, math.inf, tries_orders=orders)
                    if self.search.found.choice is not None:
                        return
                    goes_on = goes_on or self.search.is_in_vain(choice.allocation)

    def _promising(self, plays: int, parts: list[list[ShareRows]]) -> list[int]:
        """Return candidates whose generation was played, those of the least bounds, of the next ones that may fit somewhere."""
        played: list[tuple[float, float, int]] = []
        looked_at: set[Hashable] = set()
        while self._heap and len(looked_at) < plays:
            bound, rank, place = heapq.heappop(self._heap)
            if played and bound >= min(played)[0]:
                heapq.heappush(self._heap, (bound, rank, place))
                break
            if self._is_in_vain(place, parts):
                continue
            looked_at.add(self.candidates.play(place, self.search.space))
            some = self.others[self._way(place).share]
            played.append((float(self._bounds(np.array([place]), some).min()), rank, place))
        return [place for _, _, place in sorted(played)]

    def _is_in_vain(self, place: int, parts: list[list[ShareRows]]) -> bool:
        """Tell whether all choices of a candidate are known to straddle nodes on which nothing of theirs fits."""
        for bound, _, choice in self._leaves(place, parts):
            if not self.search.is_in_vain(choice.allocation):
                return not math.isfinite(bound)
        return True

    @property
    def _streams(self) -> bool:
        return self.search.bounds.schedule.streams

    @property
    def _speaks_of_more_work(self) -> bool:
        """Tell whether a simulation speaks of all choices with no less work on any of the pools.

        Streams are played whole, and with more work they last longer: no such choice is worth another playing.
        Where responses are dropped, the least work is known of the shortest of them alone.
        """
        space = self.search.space
        drops = space.job.workload.drops_responses
        return self._streams and space.score.minimises_seconds and not drops

    def _rank(self, place: int, share: Share) -> float:
        """Return what says who of equal bounds is first: fewer GPUs; of streams the faster generation."""
        return float(self.candidates.generate[place]) if self._streams else share.gpus

    def _way(self, place: int) -> GenerationOption:
        return self.candidates.ways[int(self.candidates.way[place])]

    def _evaluated(
        self, choice: Choice, leaf_bound: float, cutoff: float, *, tries_orders: bool = True
    ) -> float:
        """Simulate a choice where its pools really stand; return what its like cannot beat."""
        space = self.search.space
        sites = sites_for(space.job, choice.allocation)
        if sites is None:
            return math.inf
        if self.search.bounds.given is None and sites != tuple(map(space.site, choice.allocation)):
            self.search.straddled_bound = min(self.search.straddled_bound, leaf_bound)
            return self.search.straddling(choice.allocation, sites, cutoff)
        simulated = self.search.simulated(choice)
        value = simulated.value
        # Pieces of an iteration are taken as they come: no order of tasks makes up for what bounds leave out.
        tries_orders = tries_orders and not choice.schedule.streams and space.is_priced
        if tries_orders and leaf_bound * (1 + ROUNDING) < min(
            value, cutoff, self.search.found.value
        ):
            self._reorder(choice, leaf_bound)
        if self._speaks_of_more_work and math.isfinite(value):
            return max(leaf_bound, simulated.as_long * (1 - PLAYED_NOISE_FRACTION))
        return leaf_bound

    def _reorder(self, choice: Choice, leaf_bound: float) -> None:
        """Simulate a choice in other orders of tasks on its pools, until one is as good as its bound."""
        space = self.search.space
        own = {each.members for each in space.pinned.pools if each.order}
        arranged = space.pinned.arranged is not None  # a framework has its own order
        pinned = frozenset(
            i for i, members in enumerate(choice.placement) if arranged or members in own
        )
        for orders in other_orders(choice.placement, space.tasks, choice.schedule.mode, pinned):
            space.tally.consider("other orders of tasks")
            value = self.search.simulated(replace(choice, orders=orders)).value
            if value <= leaf_bound * (1 + ROUNDING):
                return

    def _fitting(self, share: Share, others: OtherPools) -> OtherPools:
        """Return the choices for the other pools that leave a share free and that none beats there."""
        space = self.search.space
        used = others.used + self.search.bounds.used(share)
        fits = np.flatnonzero(np.all(used <= space.limits, axis=1))
        some = others.rows(fits)
        if self.by_share or not space.score.counts_only_seconds:
            return some
        seconds = np.concatenate([some.stages, some.own], axis=1)
        order = np.lexsort((some.used.sum(axis=1), *seconds.T[::-1]))
        # Of equal seconds the fewest GPUs come first.
        return some.rows(order).rows(front_rows(seconds[order]))

    def _bounds(self, places: Ints, some: OtherPools) -> Floats:
        each = self.candidates
        own = (each.prepare[places], each.train[places])
        return self.search.bounds.values(
            each.generate[places],
            own,
            each.used[places],
            each.work[places],
            each.sent(places),
            some,
        )

    def _leaves(
        self, place: int, parts: list[list[ShareRows]]
    ) -> Iterator[tuple[float, Floats, Choice]]:
        """Yield the candidate's choices in the order of their bounds, of equal ones the smallest; with bounds and work.

        Of streams those of the least work, which decides where bounds do not; and each of those that differ in which
        of several pools has more of it, or in which stage. Work is in seconds, by stage and pool.
        """
        way = self._way(place)
        some = self.others[way.share]
        bounds = self._bounds(np.array([place]), some)[0]
        last, gpus = None, some.used.sum(axis=1)
        slowest = some.stages[:, :2].sum(axis=1) if self._streams else gpus
        each_counts = self._speaks_of_more_work or self.by_share
        work = np.concatenate([some.stages, some.own], axis=1)
        for row in np.lexsort((gpus, some.own.sum(axis=1), slowest, bounds)):
            if bounds[row] == last and not each_counts:
                continue
            last = bounds[row]
            yield float(last), work[row], self._choice(place, some.picks[row], parts)

    def _choice(self, place: int, picks: Ints, parts: list[list[ShareRows]]) -> Choice:
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
            search.schedule,
        )


# Levels 2 and 3 of the search for one placement: branch and bound, then simulation.
#
# The generating pool's candidates are taken in the order of their bounds, each with the best choice
# for the other sets on the GPUs that it leaves. A candidate whose turn comes has its generation played; one
# that is first even then is simulated with the choices for the others, until no bound is below the best plan.

MADE_BY = "exact search"
# What plans train on nodes that may be lost of whose failures the job does not speak.
STOPS_UNKNOWN = "trains on spot nodes without job.failures"

# Simulations whose cycles are freed together: of a stream's playing there are 40 MB or more.
COLLECTED_SIMULATIONS = 16

# Generations that are looked at for a placement's first plan.
QUICK_PLAYS = 10
# Arrays of more choices for the sets beside the generating one are not made to hold them apart by their shares.
MOST_BY_SHARE = 10**6

# Ways to generate on each share that it is chosen from.
QUICK_WAYS = 12

RowsOf = Callable[[ColocatedSet, Site], PoolRows]


def planned(choice: Choice, space: Space) -> Plan:
    """Return the plan of a choice, its engine's share of memory as large as a space lets it be."""
    plan, layouts = plan_of(choice, space.job, MADE_BY, space.pinned), space.options.space
    return with_largest_share(plan, space.asked_before, layouts.usable_fraction, layouts.drafts)


class PlacementSearch:
    """Search the plans of one placement with one schedule.

    Args:
        given: For each set its share and site, where they are given.
        deadline: When to stop looking through allocations some of whose pools straddle nodes, as `deadline_in` has it.
    """

    def __init__(
        self,
        space: Space,
        placement: Placement,
        schedule: Schedule = SYNC,
        given: tuple[Place, ...] | None = None,
        deadline: float = math.inf,
    ) -> None:
        self.bounds = PlacementBounds(space, placement, schedule, given)
        self.space, self.placement, self.schedule = space, placement, schedule
        self.deadline, self.found = deadline, Incumbent()
        self._straddling: dict[tuple[Share, ...], PlacementSearch] = {}
        # The least bound of choices that proved to straddle nodes, where their pools stand at their best.
        self.straddled_bound = math.inf
        self._streamed: list[tuple[Choice, Simulated]] = []  # thousands of responses each
        self.found.bound = self.least_value = self.bounds.least_value

    def quick(self) -> None:
        """Find a good plan, if any fits at all."""
        if math.isinf(self.least_value):
            return
        parts: list[list[ShareRows]] = []
        for places in (self.bounds.promising(), self.bounds.places):
            parts = self._parts(self.space.pools.quick, places)
            queue = self._queue(parts, math.inf, QUICK_WAYS)
            if queue is not None:
                queue.try_some(parts, QUICK_PLAYS)
            if self.found.plan is not None:
                return
        if self._straddling and self._are_few(
            parts
        ):  # what they beat where pools stand at their best may be all that fits
            queue = self._queue(parts, math.inf, QUICK_WAYS, by_share=True)
            if queue is not None:
                queue.try_some(parts, QUICK_PLAYS)

    def exact(self, cutoff: float, budget: SearchBudget) -> None:
        """Find the best of all plans of a lower value than `cutoff`, or show that there is none."""
        cutoff = min(cutoff, self.found.value)
        within = cutoff / self.bounds.least_factor  # of what seconds add
        limits, pools = self.bounds.limits(within), self.space.pools

        def rows(members: ColocatedSet, site: Site) -> PoolRows:
            index = self.placement.index(members)
            return pools.exact(members, site, limits.work_seconds(within, index, site))

        parts = self._parts(rows, limits.places)
        queue = self._queue(parts, cutoff, limits=limits)
        bound = queue.run(parts, cutoff, budget) if queue else math.inf
        cutoff = min(cutoff, self.found.value)
        bound = min(bound, self._beaten_bound(parts, cutoff, budget, limits))
        self.found.bound = max(self.found.bound, min(bound, cutoff, self.found.value))

    def _beaten_bound(
        self, parts: list[list[ShareRows]], cutoff: float, budget: SearchBudget, limits: SetLimits
    ) -> float:
        """Search what was left out for choices that proved to straddle nodes; return what it cannot beat.

        Choices are compared where their pools stand at their best. What a straddling one beats there may be better in truth.
        """
        if self.straddled_bound >= cutoff * (1 - budget.gap):
            return math.inf
        if self.schedule.streams or budget.is_spent(0):
            return self.straddled_bound
        if not self._are_few(parts):
            return self.straddled_bound
        queue = self._queue(parts, cutoff, limits=limits, by_share=True)
        return queue.run(parts, cutoff, budget) if queue else math.inf

    def _are_few(self, parts: list[list[ShareRows]]) -> bool:
        """Tell whether all choices for the sets beside the generating one can be held apart by their shares."""
        sizes = [sum(len(rows) for _, _, rows in parts[index]) for index in self.bounds.others]
        return math.prod(sizes) <= MOST_BY_SHARE

    def _parts(self, rows_of: RowsOf, places: Sequence[list[Place]]) -> list[list[ShareRows]]:
        """Return for each set where it may be with its rows."""
        return [
            [
                (share, site, self._sending(members, site, rows_of(members, site)))
                for share, site in own
            ]
            for members, own in zip(self.placement, places, strict=True)
        ]

    def _sending(self, members: ColocatedSet, site: Site, rows: PoolRows) -> PoolRows:
        """Return the rows of a set that leave room for weights under way, where it sends them to another pool.

        Sets beside the generating one are chosen by their seconds alone.
        """
        if ACTOR not in members or not any(map(generates_alone, self.placement)) or not len(rows):
            return rows
        ways, capacity = self.space.generations.ways, self.space.options.space.capacity_bytes(site)
        sent = np.array([ways.sent_bytes(each, site) for each in rows.shardings], dtype=np.int64)
        fits = rows.staying + sent[rows.sharding] <= capacity
        return rows if fits.all() else rows.rows(np.flatnonzero(fits))

    def _other_pools(
        self,
        parts: list[list[ShareRows]],
        cutoff: float,
        first_seconds: float,
        *,
        by_share: bool = False,
    ) -> OtherPools:
        """Return how the other sets can share what is left, as far as it can be worth something.

        Args:
            first_seconds: What every plan generates before they begin.
        """
        bounds, score = self.bounds, self.space.score
        others = empty(score, 1, 0)
        within = cutoff / bounds.least_factor
        for index in bounds.others:
            own = parts[index]
            every = [np.stack([rows.prepare, rows.train], axis=1) for _, _, rows in own]
            right = bounds.rows_of(
                self.placement[index],
                [share for share, _, _ in own],
                np.concatenate(every) if every else np.zeros((0, 2)),
                [len(each) for each in every],
            )
            others = joined(
                others,
                right,
                self.space.limits,
                first_seconds,
                within,
                score,
                by_share=by_share,
            )
        self.space.tally.consider("arrangements of pools", len(others))
        return others

    def _queue(
        self,
        parts: list[list[ShareRows]],
        cutoff: float,
        most_ways: float = math.inf,
        *,
        limits: SetLimits | None = None,
        by_share: bool = False,
    ) -> BestFirst | None:
        """Return the candidates of a lower value than `cutoff` by their bounds; None if there are none.

        Args:
            limits: How long the sets may work in plans of such values; None where there is no cutoff.
        """
        first = 0.0 if limits is None else limits.first_seconds
        others = self._other_pools(parts, cutoff, first, by_share=by_share)
        if not len(others):
            return None
        asked = [self._asked(own, others, cutoff, limits) for own in parts[self.bounds.generating]]
        candidates = self.bounds.table.candidates(
            [each for each in asked if each is not None], most_ways
        )
        self.space.tally.consider("ways to generate", len(candidates))
        if not len(candidates):
            return None
        return BestFirst(self, candidates, others, cutoff, by_share=by_share)

    def _asked(
        self,
        own: ShareRows,
        others: OtherPools,
        cutoff: float,
        limits: SetLimits | None,
    ) -> AskedRows | None:
        """Return which of a share's rows may be worth something with how much generation; None where none may."""
        share, site, rows = own
        if limits is None:
            return AskedRows(own)
        bounds, score = self.bounds, self.space.score
        fits = np.flatnonzero(np.all(others.used + bounds.used(share) <= self.space.limits, axis=1))
        if not len(fits) or not len(rows):
            return None
        within = cutoff / bounds.least_factor
        whole = rows.prepare + rows.train
        most = limits.pool_seconds(within, site, float(whole.min()))
        if not (self.schedule.flow.overlaps or any(each.counts_work for each in score.figures)):
            whole = least_beside(rows.prepare, rows.train, others.rows(fits))
        return AskedRows(own, whole, most)

    def simulated(self, choice: Choice) -> Simulated:
        """Simulate a choice's plan, remember it if it is the best, and return what it is worth."""
        known = next((found for one, found in self._streamed if one == choice), None)
        if known is not None:
            return known
        found = self._newly_simulated(choice)
        if self.schedule.streams:
            self._streamed.append((choice, found))
        return found

    @property
    def streamed(self) -> int:
        """Return how many choices of streams were simulated."""
        return len(self._streamed)

    def _newly_simulated(self, choice: Choice) -> Simulated:
        space = self.space
        plan, facts = planned(choice, space), space.asked_before
        if space.job.has_spot and space.job.failures is None and stopping_parts(plan):
            space.tally.prune(STOPS_UNKNOWN)
            return Simulated()
        forecast = simulate(plan, facts)
        space.tally.consider("simulated plans")
        if space.tally.considered["simulated plans"] % COLLECTED_SIMULATIONS == 0:
            collect_young()
        if not forecast.feasible:
            space.tally.prune("simulated memory does not fit")
            return Simulated()
        broken = violations(plan, forecast, space.specs)
        if broken:
            space.tally.prune(f"beyond the limit of {broken[0].spec}")
            return Simulated()
        value = space.score.objective.figure(forecast)
        if value < self.found.value:
            self.found.choice, self.found.plan = choice, plan
            self.found.forecast, self.found.value = forecast, value
        if not space.score.objective.weighs_age:
            return Simulated(value, value)
        return Simulated(value, forecast.iteration_seconds * self.bounds.least_factor)

    def straddling(
        self, allocation: tuple[Share, ...], sites: tuple[Site, ...], cutoff: float
    ) -> float:
        """Search an allocation some of whose pools straddle nodes; return what it cannot beat."""
        if allocation not in self._straddling:
            places = tuple(zip(allocation, sites, strict=True))
            search = type(self)(self.space, self.placement, self.schedule, places)
            self._straddling[allocation] = search
            search.exact(cutoff, SearchBudget(deadline=self.deadline))
            if search.found.plan is None and math.isinf(cutoff):
                search.quick()  # without a plan so far, one is wanted, however late
            if search.found.value < self.found.value:
                self.found.choice, self.found.plan = search.found.choice, search.found.plan
                self.found.forecast = search.found.forecast
                self.found.value = search.found.value
        return self._straddling[allocation].found.bound

    def is_in_vain(self, allocation: tuple[Share, ...]) -> bool:
        """Tell whether an allocation some of whose pools straddle nodes was searched, and nothing fits there."""
        known = self._straddling.get(allocation)
        return known is not None and known.found.plan is None and math.isinf(known.found.bound)
