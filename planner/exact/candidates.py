"""Ways to generate with what else the generating pool does: the rows that level 2 chooses from."""

import heapq
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlplan.planner.exact.generations import (
    GenerationOption,
    GenerationTable,
    OptionRows,
    Replicas,
    ShareRows,
    WeightMove,
)
from rlplan.planner.exact.space import Space, generates_alone
from rlplan.planner.layouts.option_table import Rows
from rlplan.planner.layouts.pool_rows import PoolRows
from rlplan.planner.placements.partitions import ColocatedSet
from rlplan.planner.requests.schedules import SYNC, Schedule
from rlplan.planner.requests.specs import ROUNDING
from rlplan.profiles.analytic.ordered import distinct
from rlplan.simulator.columns import Flags, Floats, Ints
from rlplan.simulator.placed import Site


class BesideGeneration(NamedTuple):
    """Hold seconds of candidates that iterations wait for beside a batch's generation. Shape (candidates,), each.

    Attributes:
        move: An iteration's share of bringing weights to generation, a part of what a candidate generates.
        longest: Of the longest response, where several iterations may wait for it.
        shortest: Of the shortest one, for which the first piece of an iteration waits.
    """

    move: Floats
    longest: Floats
    shortest: Floats


@dataclass(slots=True, eq=False)
class Candidates:
    """Hold choices of a way to generate and of layouts for the rest of the pool, one row each.

    Attributes:
        generations: How pools can generate.
        way: Places in `ways`.
        row: Rows of the way's `PoolRows`.
        cache: Bytes of KV cache on each GPU.
        generate: Seconds of transition and generation, or a bound on them.
        is_exact: Whether generation was played.
        prepare, train: Seconds of the pool's own tasks.
        used: GPUs by device; shape (rows, devices).
        work: Of the pool, generation included, by figure that counts it; shape (rows, figures).
    """

    generations: GenerationTable
    ways: list[GenerationOption]
    way: Ints
    row: Ints
    cache: Floats
    generate: Floats
    is_exact: Flags
    prepare: Floats
    train: Floats
    used: Ints
    work: Floats

    def __len__(self) -> int:
        return len(self.way)

    def sent(self, places: Ints) -> BesideGeneration:
        """Return what candidates take beside their batch's generation."""
        ways = [self.ways[way] for way in self.way[places]]
        return BesideGeneration(
            np.array([way.move.seconds for way in ways]),
            *np.array([self.generations.alone_seconds(way.replicas) for way in ways]).T,
        )

    def raise_bound(self, place: int, space: Space) -> bool:
        """Raise a candidate's bound by what was played already; tell whether it was raised."""
        way = self.ways[self.way[place]]
        seconds = self.generations.known_bound(way.replicas, float(self.cache[place]))
        if way.move.seconds + seconds <= self.generate[place]:
            return False
        self._set_generate(place, way.move.seconds + seconds, space)
        return True

    def tighten(self, place: int, space: Space) -> None:
        """Raise a candidate's bound by playing its generation, exactly or with a larger cache."""
        way = self.ways[self.way[place]]
        seconds, exact = self.generations.tighter(way.replicas, float(self.cache[place]))
        if exact:
            self._set_generate(place, way.move.seconds + seconds, space)
            self.is_exact[place] = True
        else:
            raised = max(float(self.generate[place]), way.move.seconds + seconds)
            self._set_generate(place, raised, space)

    def play(self, place: int, space: Space) -> Hashable:
        """Make a candidate's generation exact; return what candidates with the same one share."""
        way, generations = self.ways[self.way[place]], self.generations
        cache = float(self.cache[place])
        seconds = generations.seconds(way.replicas, cache)
        self._set_generate(place, way.move.seconds + seconds, space)
        self.is_exact[place] = True
        return generations.key(way.replicas, cache)

    def _set_generate(self, place: int, seconds: float, space: Space) -> None:
        way = self.ways[self.way[place]]
        rates = space.score.moving[space.device(way.share)] * way.share.gpus
        self.work[place] += rates * (seconds - self.generate[place])
        self.generate[place] = seconds


class AskedRows(NamedTuple):
    """Hold a share's rows for which ways to generate are asked.

    Attributes:
        part: The share, its site and the rows.
        whole: Seconds that follow generation with each row, by the best choice for the other sets; None takes the row's
            own work. Shape (rows,).
        limit_seconds: What those may take with generation, at most.
    """

    part: ShareRows
    whole: Floats | None = None
    limit_seconds: float = np.inf


class CandidateTable:
    """Make the candidates of one generating set, its weights synced as a schedule has it."""

    def __init__(self, space: Space, members: ColocatedSet, schedule: Schedule = SYNC) -> None:
        self.space, self.members = space, members
        self.generations = space.generations_in(schedule)
        self.apart = generates_alone(members)
        self.sync_every = schedule.sync_every
        self._kind = (self.apart, schedule.streams and schedule)

    def least_seconds(self, site: Site) -> float:
        """Return what no way to generate on a site can beat, transition included."""
        known, key = self.space.known.least_generations, (self._kind, site)
        if key not in known:
            known[key] = self._least_seconds(site)
        return known[key]

    def _least_seconds(self, site: Site) -> float:
        generations, best = self.generations, np.inf
        every = generations.replicas(site)
        syncs = [self._sync_seconds(each, site) if self.apart else 0.0 for each in every]
        cuts = [
            generations.least_bound(each) + sync for each, sync in zip(every, syncs, strict=True)
        ]
        # Of a cut's layouts what none of them beats comes first.
        for place in np.argsort(cuts, kind="stable"):
            if cuts[place] >= best:
                break
            best = min(best, generations.bound_alone(every[place]) + syncs[place])
        return best

    def candidates(self, asked: Sequence[AskedRows], most_ways: float = np.inf) -> Candidates:
        """Return all candidates of shares' rows that take less than their limit with generation.

        Args:
            most_ways: Ways to generate on each share after which the others, whose bounds are
                higher, are left out.
        """
        found = [self._known_ways(each, most_ways) for each in asked]
        return self._stacked([each for of_part in found for each in of_part])

    def _known_ways(self, asked: AskedRows, most_ways: float) -> list[OptionRows]:
        """Return the ways of one share, which placements that differ in their other sets ask for too."""
        if asked.limit_seconds < np.inf:
            return list(self._ways(asked, most_ways))
        known, key = self.space.known.ways, (self._kind, most_ways, asked.part)
        if key not in known:
            known[key] = list(self._ways(asked, most_ways))
        return known[key]

    def _ways(self, asked: AskedRows, most_ways: float) -> Iterator[OptionRows]:
        """Yield ways to generate on a share with the rows that leave room for them."""
        share, site, rows = asked.part
        limit, count = asked.limit_seconds, 0
        whole = rows.prepare + rows.train if asked.whole is None else asked.whole
        for bound, replicas, sharding, places in self._promising(rows, whole, site, limit):
            if count >= most_ways:
                return
            for move in self._moves(sharding, replicas, asked.part, places):
                if bound + move.seconds >= limit:
                    continue
                way = GenerationOption(share, site, rows, replicas, move)
                found = self._of_way(way, places, whole, limit)
                if found is not None:
                    yield way, *found
                    count += 1

    def _promising(
        self, rows: PoolRows, whole: Floats, site: Site, cutoff: float
    ) -> Iterator[tuple[float, Replicas, int, Ints]]:
        """Yield bounds with layouts of generation and rows of one sharding, the lowest bound first.

        A pair's bound has the cache that the row of the sharding with the fewest residents leaves.
        """
        generations = self.generations
        numbers = distinct(rows.sharding)
        places = {int(each): np.flatnonzero(rows.sharding == each) for each in numbers}
        least = np.array([whole[each].min() for each in places.values()])
        if not len(least):
            return
        resident = np.array([rows.staying[each].min() for each in places.values()], dtype=float)
        every, lowest = generations.replicas(site), float(least.min())
        limit = min(cutoff, float(np.finfo(float).max))
        # A cut's bound stands for its layouts until they may be next: most of them never are.
        cuts = [(generations.least_bound(each) + lowest) * (1 - ROUNDING) for each in every]
        left = [(bound, False, number, 0) for number, bound in enumerate(cuts)]
        heapq.heapify(left)
        while left and left[0][0] < limit:
            bound, is_pair, number, sharding = heapq.heappop(left)
            if is_pair:
                own = places[sharding]
                generating = bound - float(whole[own].min())
                yield bound, every[number], sharding, own[whole[own] + generating < cutoff]
                continue
            bounds = least + generations.bounds_beside(every[number], resident, apart=self.apart)
            for place in np.flatnonzero(bounds < limit):
                heapq.heappush(left, (float(bounds[place]), True, number, int(numbers[place])))

    def _moves(
        self, sharding: int, replicas: Replicas, part: ShareRows, places: Ints
    ) -> list[WeightMove]:
        """Return the transitions that leave room beside the leanest of some rows of a sharding."""
        _, site, rows = part
        if self.apart:
            copy = replicas.weight_bytes
            name = self.generations.ways.copied
            peak = self.generations.ways.copied_peak_bytes(replicas)
            synced = self.generations.ways.copied_synced_bytes(replicas)
            alone = not rows.staying.max(initial=0) and not rows.peak.max(initial=0)
            spared = self.generations.ways.spared_bytes(replicas) if alone else 0
            seconds = self._sync_seconds(replicas, site)
            return [WeightMove(name, seconds, copy, peak - spared, synced, spared)]
        resident = float(rows.staying[places].min(initial=rows.staying.max()))
        return self.generations.moves(rows.shardings[sharding], replicas, resident)

    def _sync_seconds(self, replicas: Replicas, site: Site) -> float:
        """Return the least seconds of bringing weights from any layout on any of the pools.

        More ranks may send faster than fewer, and slower. Of iterations that sync now and then, each has its share.
        """
        if not self.space.is_priced:
            return 0.0
        layout = replicas.layout
        key = (layout.tp, layout.pp, layout.dp, layout.ep, layout.expert_tp, site)
        known = self.space.known.syncs
        if key not in known:
            known[key] = self._least_sync(replicas, site)
        return known[key] / self.sync_every

    def _least_sync(self, replicas: Replicas, site: Site) -> float:
        device = self.space.facts.device(site.device)
        if device.profile is not None:
            return 0.0
        ways, sources = self.generations.ways, self.space.senders
        each = (ways.sync_seconds(replicas.layout, source, site) for source in sources)
        return min(each, default=0.0)

    def _of_way(
        self, way: GenerationOption, places: Ints, whole: Floats, cutoff: float
    ) -> tuple[Ints, Floats, Floats] | None:
        generations = self.generations
        resident = way.rows.staying[places].astype(np.float64)
        passing = way.rows.transient[places].astype(np.float64)
        fits, cache = generations.fitting(
            way.replicas, resident, way.move, passing, apart=self.apart
        )
        beside = generations.beside_bytes(way.replicas) + generations.kept_bytes(
            way.replicas, resident, way.move, passing, apart=self.apart
        )
        fits &= way.rows.peak[places] + beside <= self.space.options.space.capacity_bytes(way.site)
        places, cache = places[fits], cache[fits]
        if not len(places):
            return None
        bounds = generations.bounds(way.replicas, cache) + way.move.seconds
        kept = bounds + whole[places] < cutoff
        if not kept.any():
            return None
        return places[kept], cache[kept], bounds[kept]

    def _stacked(self, listed: list[OptionRows]) -> Candidates:
        devices, score = len(self.space.devices), self.space.score
        ways = [way for way, *_ in listed]
        counts = [len(rows) for _, rows, _, _ in listed]
        way = np.repeat(np.arange(len(ways)), counts)
        table = np.zeros((len(ways), devices), dtype=np.int64)
        for place, each in enumerate(ways):
            table[place, self.space.device(each.share)] = each.share.gpus
        used = table[way]
        prepare = _joined([way.rows.prepare[rows] for way, rows, _, _ in listed])
        train = _joined([way.rows.train[rows] for way, rows, _, _ in listed])
        generate = _joined([bounds for _, _, _, bounds in listed])
        work = (used @ score.computing) * (prepare + train)[:, None]
        return Candidates(
            self.generations,
            ways,
            way,
            _joined([rows for _, rows, _, _ in listed]).astype(np.int64),
            _joined([cache for _, _, cache, _ in listed]),
            generate,
            np.zeros(len(way), dtype=bool),
            prepare,
            train,
            used,
            work + (used @ score.moving) * generate[:, None],
        )


def _joined(columns: list[Rows]) -> Rows:
    return np.concatenate(columns) if columns else np.zeros(0)
