"""Levels 2 and 3 of the search for one placement: branch and bound, then simulation.

The generating pool's candidates are taken in the order of their bounds, each with the best arrangement
of the other sets on the GPUs that it leaves. A candidate whose turn comes has its generation played; one
that is first even then is simulated with its arrangements, until no bound is below the best plan.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.allocations import Share
from planner.arrangements import Arrangements, joined, no_sets, stacked
from planner.candidates import CandidateTable, Part
from planner.contest import Contest
from planner.effort import Effort, Found
from planner.mappings import Mapping, plan_of
from planner.placements import UnitPlacement, UnitSet, generating_set
from planner.pool_rows import PoolRows
from planner.space import Space
from planner.specs import violations
from rlplan.plan import Mode
from simulator.costs.layout_columns import Floats, Ints
from simulator.simulate import simulate
from simulator.site import Site

MADE_BY = "exact search"

# Generations that are played for a placement's first plan.
QUICK_PLAYS = 6

# Ways to generate on each share that it is chosen from.
QUICK_WAYS = 12

Place = tuple[Share, Site]
RowsOf = Callable[[UnitSet, Site], PoolRows]


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
        self.space, self.placement, self.mode, self.fixed = space, placement, mode, fixed
        self.generating = generating_set(placement)
        self.others = tuple(place for place in range(len(placement)) if place != self.generating)
        self.table = CandidateTable(space, placement[self.generating])
        self.found = Found()
        self._straddling: dict[tuple[Share, ...], PlacementSearch] = {}
        self.found.bound = self.least_value = self._least_value()

    def quick(self) -> None:
        """Find a good plan, if any fits at all."""
        parts = self._parts(self.space.pools.quick)
        queue = self._queue(parts, math.inf, QUICK_WAYS)
        if queue is not None:
            queue.try_some(parts, QUICK_PLAYS)

    def exact(self, worth: float, effort: Effort) -> None:
        """Find the best of all plans of a lower value than `worth`, or show that there is none."""
        worth = min(worth, self.found.value)
        least, pools = self._least_generation(), self.space.pools

        def rows(members: UnitSet, site: Site) -> PoolRows:
            index = self.placement.index(members)
            return pools.exact(members, site, self._limit_seconds(worth, index, site) - least)

        parts = self._parts(rows)
        queue = self._queue(parts, worth)
        bound = queue.run(parts, worth, effort) if queue else math.inf
        self.found.bound = max(self.found.bound, min(bound, worth, self.found.value))

    @property
    def is_fixed(self) -> bool:
        """Tell whether every set's site is given."""
        return self.fixed is not None

    def _places(self, index: int) -> list[Place]:
        """Return where a set may be."""
        if self.fixed is not None:
            return [self.fixed[index]]
        shares = self.space.set_shares(self.placement[index])
        return [(share, self.space.site(share)) for share in shares]

    def _parts(self, rows_of: RowsOf) -> list[list[Part]]:
        """Return for each set where it may be with its rows."""
        return [
            [(share, site, rows_of(members, site)) for share, site in self._places(index)]
            for index, members in enumerate(self.placement)
        ]

    def _iteration(
        self,
        generate: Floats,
        own: tuple[Floats, Floats],
        stages: tuple[Floats, Floats],
        move: Floats,
        sender: tuple[Floats, Floats],
    ) -> Floats:
        """Return bounds on the seconds of iterations.

        Args:
            generate: Transition and generation.
            own: Preparation and training of the generating pool.
            stages: Until the slowest pool has prepared, has trained.
            move: Transition, part of `generate`; between two pools it holds both.
            sender: Preparation and training of the pool that sends new weights to a copy.
        """
        if self.mode == "sync":
            return generate + stages[0] + stages[1]
        held = np.maximum(own[0], sender[0]) + np.maximum(own[1], sender[1])
        alone = np.maximum(generate + own[0] + own[1], stages[0] + stages[1])
        return np.asarray(np.maximum(alone, move + held))

    def _limit_seconds(self, worth: float, index: int, site: Site) -> float:
        """Return the seconds of a pool's work beyond which no plan with it has a value below `worth`.

        The work is what the pool prepares and trains with the least generation; on the pool that
        generates, with its own.
        """
        score, name = self.space.score, self.space.score.objective.name
        if name == "throughput":
            return worth
        device = self.space.devices.index(site.device)
        others = [least for place, least in enumerate(self._least_uses) if place != index]
        if name == "cost":
            rate = float(score.usd_per_second[device]) * site.gpus + sum(o.usd for o in others)
            return worth / rate if rate > 0 else math.inf
        idle = float(score.idle_watts[device]) * site.gpus + score.host_watts
        idle += sum(least.idle_watts for least in others)
        left = worth - score.host_joules - sum(least.joules for least in others)
        working = float(score.computing_watts[device]) * site.gpus
        least_generation = 0.0
        if index == self.generating:
            working = min(working, float(score.moving_watts[device]) * site.gpus)
        else:
            least_generation = self._least_generation()
        rate = idle + working
        if rate <= 0:
            return math.inf
        return least_generation + (left - idle * least_generation) / rate

    @cached_property
    def _least_uses(self) -> tuple[LeastUse, ...]:
        """Return what each set costs at least, wherever it is."""
        return tuple(self._least_use(index) for index in range(len(self.placement)))

    def _least_use(self, index: int) -> LeastUse:
        score, members = self.space.score, self.placement[index]
        found = []
        for share, site in self._places(index):
            device, least = self.space.device(share), self.space.pools.least(members, site)
            joules = score.computing_watts[device] * (least.prepare_seconds + least.train_seconds)
            if index == self.generating:
                joules += score.moving_watts[device] * self.table.least_seconds(site)
            rates = (score.usd_per_second[device], score.idle_watts[device], joules)
            found.append([float(rate) * share.gpus for rate in rates])
        return LeastUse(*map(min, zip(*found, strict=True))) if found else LeastUse(0.0, 0.0, 0.0)

    def _least_generation(self) -> float:
        if self.mode != "sync":
            return 0.0
        return min(map(self.table.least_seconds, self._sites(self.generating)), default=math.inf)

    def _sites(self, index: int) -> list[Site]:
        return [site for _, site in self._places(index)]

    def _least_value(self) -> float:
        """Return a bound on all plans: every role at its best, each by itself."""
        pools, least_generation = self.space.pools, self._least_generation()
        arranged = no_sets(len(self.space.devices))
        for index in self.others:
            members, rows = self.placement[index], []
            for place, (share, site) in enumerate(self._places(index)):
                least = pools.least(members, site)
                seconds = np.array([[least.prepare_seconds, least.train_seconds]])
                rows.append(self._arranged(members, share, seconds, place))
            some = stacked(rows, len(self.space.devices), 1)
            arranged = joined(
                arranged, some, self.space.limits, least_generation, math.inf, self.space.score
            )
        best = math.inf
        members = self.placement[self.generating]
        for share, site in self._places(self.generating):
            least = pools.least(members, site)
            own = (np.array([least.prepare_seconds]), np.array([least.train_seconds]))
            generate = np.array([self.table.least_seconds(site)])
            used = self.used(share)[None]
            values = self.values(generate, own, used, np.zeros(1), np.zeros(1), arranged)
            best = min(best, float(values.min(initial=math.inf)))
        return best

    def _arranged(
        self, members: UnitSet, share: Share, seconds: Floats, place: int
    ) -> Arrangements:
        """Return one set's rows on a share as arrangements, from when its data may have arrived."""
        count = len(seconds)
        used = np.repeat(self.used(share)[None], count, axis=0)
        prepares = seconds[:, 0] > 0
        arrival = np.where(prepares, self._arrival(self.space.arrival_seconds(members)), 0.0)
        sends = self.mode != "sync" and "actor" in members
        sender = seconds if sends else np.zeros_like(seconds)
        watts = self.space.score.computing_watts[self.space.device(share)] * share.gpus
        picks = np.stack([np.full(count, place), np.arange(count)], axis=1)[:, None]
        joules = watts * seconds.sum(axis=1)
        prepare = seconds[:, 0] + arrival
        return Arrangements(used, prepare, seconds[:, 1], sender[:, 0], sender[:, 1], joules, picks)

    def _arrival(self, seconds: float) -> float:
        """Return what data's way takes of preparation, in seconds.

        Where generation runs ahead, the data may be there long before the last training ends.
        """
        return seconds if self.mode == "sync" else 0.0

    def used(self, share: Share) -> Ints:
        """Return the GPUs of a share by device."""
        used = np.zeros(len(self.space.devices), dtype=np.int64)
        used[self.space.device(share)] = share.gpus
        return used

    def values(
        self,
        generate: Floats,
        own: tuple[Floats, Floats],
        used: Ints,
        joules: Floats,
        move: Floats,
        others: Arrangements,
    ) -> Floats:
        """Return bounds on the values of candidates with arrangements: (candidates, arrangements)."""
        rule = self.space.rule_seconds + self._arrival(self.space.rule_arrival_seconds)
        prepare = np.maximum(np.maximum(own[0], rule)[:, None], others.prepare)
        train = np.maximum(own[1][:, None], others.train)
        alone = (own[0][:, None], own[1][:, None])
        sender = (others.sender_prepare, others.sender_train)
        stages = (prepare, train)
        seconds = self._iteration(generate[:, None], alone, stages, move[:, None], sender)
        both = used[:, None] + others.used
        values = self.space.score.values(seconds, both, joules[:, None] + others.joules)
        return np.where(np.all(both <= self.space.limits, axis=-1), values, np.inf)

    def _arrangements(self, parts: list[list[Part]], worth: float) -> Arrangements:
        """Return how the other sets can share what is left, as far as it can be worth something."""
        devices, least_generation = len(self.space.devices), self._least_generation()
        arranged = no_sets(devices)
        for index in self.others:
            some = []
            for place, (share, _, rows) in enumerate(parts[index]):
                seconds = np.stack([rows.prepare, rows.train], axis=1)
                some.append(self._arranged(self.placement[index], share, seconds, place))
            right = stacked(some, devices, 1)
            arranged = joined(
                arranged, right, self.space.limits, least_generation, worth, self.space.score
            )
        self.space.tally.consider("arrangements of pools", len(arranged))
        return arranged

    def _queue(
        self, parts: list[list[Part]], worth: float, most_ways: float = math.inf
    ) -> "Contest | None":
        """Return the candidates of a lower value than `worth` by their bounds; None if there are none."""
        arranged = self._arrangements(parts, worth)
        index = self.generating
        limits = [self._limit_seconds(worth, index, site) for _, site, _ in parts[index]]
        candidates = self.table.candidates(parts[self.generating], limits, most_ways)
        self.space.tally.consider("ways to generate", len(candidates))
        if not len(candidates) or not len(arranged):
            return None
        return Contest(self, candidates, arranged, worth)

    def simulated(self, mapping: Mapping) -> float:
        """Simulate a mapping's plan, remember it if it is the best, and return its value."""
        space = self.space
        names = tuple(task.name for task in space.tasks)
        plan = plan_of(mapping, space.job, names, MADE_BY)
        forecast = simulate(plan, space.facts)
        space.tally.consider("simulated plans")
        if not forecast.feasible:
            space.tally.prune("simulated memory does not fit")
            return math.inf
        broken = violations(plan, forecast, space.specs)
        if broken:
            space.tally.prune(f"beyond the limit of {broken[0].spec}")
            return math.inf
        value = space.score.objective.per_iteration(forecast)
        if value < self.found.value:
            self.found.mapping, self.found.plan = mapping, plan
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
                self.found.mapping, self.found.plan = search.found.mapping, search.found.plan
                self.found.forecast = search.found.forecast
                self.found.value = search.found.value
        return self._straddling[allocation].found.bound
