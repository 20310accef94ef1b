"""Level 2 of the search: what no plan of one placement can beat.

Stages bound iterations, and iterations bound values: see decision 7.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import parts_of_updates
from rlplan.planner.exact.candidates import BesideGeneration, CandidateTable
from rlplan.planner.exact.generations import ACTOR
from rlplan.planner.exact.score import Figure, Score
from rlplan.planner.exact.space import Space
from rlplan.planner.layouts.option_table import Places, front_rows
from rlplan.planner.placements.allocations import Share
from rlplan.planner.placements.partitions import ColocatedSet, Placement, generating_set
from rlplan.planner.requests.schedules import SYNC, Schedule
from rlplan.planner.requests.specs import ROUNDING
from rlplan.simulator.asynchronous.setting import MOST_PIECES, OWN
from rlplan.simulator.columns import Floats, Ints
from rlplan.simulator.placed import Site

# Level 2 of the search: how the pools beside the one that generates share the rest of the cluster.
#
# A choice gives every one of these sets a share and layouts. Only those choices matter that no other beats
# in the GPUs it takes and in the stages, each of which ends when its slowest pool ends.


@dataclass(frozen=True, slots=True, eq=False)
class OtherPools:
    """Hold choices of shares and layouts for some sets, one row each.

    Attributes:
        used: GPUs by device; shape (rows, devices).
        stages: Seconds until the slowest pool has prepared, has trained; and two more where iterations overlap, else
            zero: of both stages' work on the pool that sends new weights to a copy, or where responses stream, whose
            first two may be one, none and the slowest pool's training. Shape (rows, 4).
        own: Seconds of each set's work where responses stream, else zero: a pool that is not the slowest one may
            have others wait for it all the same; shape (rows, sets).
        work: Of the pools, by figure that counts it (`rlplan.planner.exact.score`); shape (rows, figures).
        sending: What each second adds to it in which new weights go to a copy. Shape as `work`.
        picks: For each set its share's place and its row; shape (rows, sets, 2).
    """

    used: Ints
    stages: Floats
    own: Floats
    work: Floats
    sending: Floats
    picks: Ints

    def __len__(self) -> int:
        return len(self.stages)

    def rows(self, chosen: Places) -> "OtherPools":
        """Return the chosen rows."""
        return OtherPools(*(getattr(self, each.name)[chosen] for each in fields(self)))


def empty(score: Score, rows: int, sets: int) -> OtherPools:
    """Return choices that take nothing, for placements without other sets."""
    figures = np.zeros((rows, score.computing.shape[1]))
    return OtherPools(
        np.zeros((rows, len(score.devices)), dtype=np.int64),
        np.zeros((rows, 4)),
        np.zeros((rows, sets)),
        figures,
        figures,
        np.zeros((rows, sets, 2), dtype=np.int64),
    )


def joined(
    left: OtherPools,
    right: OtherPools,
    limits: Ints,
    least_generation_seconds: float,
    cutoff: float,
    score: Score,
    *,
    by_share: bool = False,
) -> OtherPools:
    """Return the choices for both sides' sets that can still be worth something.

    Args:
        limits: GPUs of each device that they may take together.
        least_generation_seconds: No iteration generates faster.
        cutoff: Values that are no less are of no use.
        by_share: Whether choices on other shares are kept beside those that beat them where pools stand at their best, since
            pools that really straddle nodes may be slower.
    """
    first = np.repeat(np.arange(len(left)), len(right))
    second = np.tile(np.arange(len(right)), len(left))
    used = left.used[first] + right.used[second]
    fits = np.all(used <= limits, axis=1)
    first, second, used = first[fits], second[fits], used[fits]
    stages = np.maximum(left.stages[first], right.stages[second])
    work = left.work[first] + right.work[second]
    sending = left.sending[first] + right.sending[second]
    seconds = least_generation_seconds + stages[:, 0] + stages[:, 1]
    own = np.concatenate([left.own[first], right.own[second]], axis=1)
    kept = np.flatnonzero(score.values(seconds, used, work) < cutoff)
    keys = [used[kept], stages[kept], own[kept], work[kept], sending[kept]]
    if score.workers is not None and score.workers.least < score.workers.most:
        keys.append(-score.workers.gaining(used[kept]))  # more GPUs come with more workers
    if by_share:
        where = np.concatenate([left.picks[first[kept]], right.picks[second[kept]]], axis=1)[..., 0]
        keys += [where, -where]  # none beats what has another place
    kept = kept[front_rows(np.concatenate(keys, axis=1))]
    picks = np.concatenate([left.picks[first[kept]], right.picks[second[kept]]], axis=1)
    return OtherPools(used[kept], stages[kept], own[kept], work[kept], sending[kept], picks)


def least_beside(prepare: Floats, train: Floats, others: OtherPools) -> Floats:
    """Return the seconds of both stages by the generating pool's rows, with the best choice for the others.

    Each stage ends when the slowest pool has done it, so no iteration that follows generation is done sooner. Choices
    that another beats in both stages are not looked at. Only of iterations that do not overlap. Shape (rows,).

    Args:
        prepare, train: Of the generating pool. Shape (rows,), each.
    """
    stages = others.stages[:, :2]
    stages = stages[front_rows(stages)]
    found = np.full(len(prepare), np.inf)
    for first, second in stages:
        np.minimum(found, np.maximum(prepare, first) + np.maximum(train, second), out=found)
    return found


# How long the sets of a placement may work before no plan with them is worth anything.
#
# Every value that a plan must stay below, the best one's so far or a limit of the job's, is linear in seconds:
# of the iteration, and of each pool's work and generation. What all other sets cost at least is taken
# off; the rest is what one set may spend.

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
        generation_seconds: What no way to generate on a site of that set can beat.
        overlaps: Whether the other sets work while that one generates, so that they need not wait for it.
    """

    def __init__(
        self,
        space: Space,
        placement: tuple[ColocatedSet, ...],
        places: tuple[list[Place], ...],
        generating: int,
        generation_seconds: Callable[[Site], float],
        *,
        overlaps: bool,
    ) -> None:
        self.space, self.placement, self.places = space, placement, places
        self.generating, self.generation_seconds = generating, generation_seconds
        self.overlaps = overlaps

    @cached_property
    def first_seconds(self) -> float:
        """Return the seconds that every plan generates before its other sets begin."""
        if self.overlaps:
            return 0.0
        sites = (site for _, site in self.places[self.generating])
        return min(map(self.generation_seconds, sites), default=math.inf)

    def work_seconds(self, cutoff: float, index: int, site: Site) -> float:
        """Return seconds of a set's own tasks beyond which no plan has a value below `cutoff`.

        Its own tasks are those that it prepares and trains with, generation aside.
        """
        generates = index == self.generating
        first = self.generation_seconds(site) if generates else self.first_seconds
        return self.work_after(first, cutoff, index, site)

    def work_after(self, generation_seconds: float, cutoff: float, index: int, site: Site) -> float:
        """Return the same where so much generation comes before, in seconds."""
        if math.isinf(generation_seconds):
            return -math.inf
        budgets = self._budgets(cutoff, index, site)
        return min(each.work_seconds(generation_seconds) for each in budgets)

    def pool_seconds(self, cutoff: float, site: Site, work_seconds: float) -> float:
        """Return seconds of the generating set on a site beyond which no plan is below `cutoff`.

        Args:
            work_seconds: The least of its own tasks; generation comes on top.
        """
        first = self.generation_seconds(site)
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
                work += figure.moving[device] * self.generation_seconds(site)
            found.append([float(rate) * share.gpus for rate in (figure.held[device], work)])
        return LeastUse(*map(min, zip(*found, strict=True))) if found else LeastUse(0.0, 0.0)


def _ratio(left: float, rate: float) -> float:
    return left / rate if rate > 0 else math.inf


# Streams are played for as many iterations as fill the pools and for some behind them, whose samples are a little
# shorter or longer than the long run's: by 0.9 % of an iteration at most in 886 plans of random small jobs.
PLAYED_NOISE_FRACTION = 0.02

# Places of the generating set on which a placement's first plan is looked for, each with the best of the others'.
PROMISING_PLACES = 2

NOTHING_SENT = BesideGeneration(np.zeros(1), np.zeros(1), np.zeros(1))


class PlacementBounds:
    """Bound the plans of one placement with one schedule.

    Args:
        given: For each set its share and site, where they are given.

    Attributes:
        generating: Place of the set that generates.
        others: Places of the other sets.
        least_factor: What the objective's figure of its plans is multiplied with at least.
    """

    def __init__(
        self,
        space: Space,
        placement: Placement,
        schedule: Schedule = SYNC,
        given: tuple[Place, ...] | None = None,
    ) -> None:
        self.space, self.placement, self.schedule, self.given = space, placement, schedule, given
        # Pieces of an iteration are prepared while those before are learnt from. Where an iteration is one piece, nothing is,
        # unless responses are prepared as they end.
        flow = schedule.flow
        is_one_piece = flow.is_endless and space.job.workload.updates == 1
        self.is_serial = not flow.by_sample or (is_one_piece and not self._prepares_ahead)
        self.least_factor = space.score.least_factor(schedule)
        self.generating = generating_set(placement)
        self.others = tuple(place for place in range(len(placement)) if place != self.generating)
        self.table = CandidateTable(space, placement[self.generating], schedule)

    @cached_property
    def places(self) -> tuple[list[Place], ...]:
        """Return for each set where it may be."""
        if self.given is not None:
            return tuple([place] for place in self.given)
        space = self.space
        return tuple(
            [(share, space.site(share)) for share in space.set_shares(members)]
            for members in self.placement
        )

    def _iteration(
        self,
        generate: Floats,
        own: tuple[Floats, Floats],
        stages: tuple[Floats, Floats],
        sent: BesideGeneration,
        sender: tuple[Floats, Floats],
    ) -> Floats:
        """Return bounds on the seconds of iterations.

        Args:
            generate: Transition and generation.
            own: Preparation and training of the generating pool.
            stages: Until the slowest pool has prepared, has trained.
            sent: Transition, part of `generate`, which holds two pools if it is between two; and the longest
                response.
            sender: Preparation and training of the pool that sends new weights to a copy; where responses stream, none
                and the slowest pool's training.
        """
        if not self.schedule.flow.overlaps:
            return generate + stages[0] + stages[1]
        if self.schedule.streams:
            return self._streamed(generate, stages[0] + stages[1], sender[1], sent)
        held = np.maximum(own[0], sender[0]) + np.maximum(own[1], sender[1])
        alone = np.maximum(generate + own[0] + own[1], stages[0] + stages[1])
        return np.asarray(np.maximum(alone, sent.move + held))

    def _streamed(
        self, generate: Floats, work: Floats, train: Floats, sent: BesideGeneration
    ) -> Floats:
        """Return bounds on mean iterations whose responses stream; decision 7 says why they hold.

        Args:
            work: Of the slowest pool beside the generating one.
            train: Of the pool that trains for longest.
        """
        staleness, every = self.schedule.staleness, self.schedule.sync_every
        late = math.ceil(staleness)
        # Part of a batch may have most of its tokens, so it counts as a whole one.
        ahead = late + 1 - every if staleness + 1 > every else 0
        last = train * self._last_trained_share
        if not self._prepares_ahead:
            last = np.maximum(last, work * self._last_share)
        beside = np.maximum(0.0, last - ahead * (generate - sent.move)) if ahead else last
        first = 0.0 if ahead else sent.shortest
        trained = sent.move + work + first / every
        if ahead and self._prepares_ahead:  # and while weights are on their way
            trained = np.maximum(work, sent.move + train)
        mean = np.maximum(generate + beside / every, trained)
        longest = sent.longest + sent.move * every * ((late + 1) // every) + last
        waiting = np.maximum(longest, (late + 1) * mean)
        apart = (
            (2 * late + 1) // every * every
        )  # iterations from one long response to another behind it
        others = apart - late - 1
        bound = (waiting + (others * mean if others else 0.0)) / apart  # a mean may be infinite
        least = np.where(sent.longest > 0, np.maximum(mean, bound), mean)
        return np.asarray(least * (1 - PLAYED_NOISE_FRACTION))

    @cached_property
    def _last_share(self) -> float:
        """Return the least share of an iteration's work that waits for its last responses.

        Unless responses are prepared as they end: then all but the last may be prepared before.
        """
        if self.is_serial:
            return 1.0
        updates = self.space.job.workload.updates
        pieces = updates if self.schedule.flow.is_endless else updates * MOST_PIECES
        return self.space.streams.last_share(pieces)

    @cached_property
    def _last_trained_share(self) -> float:
        """Return the least share of an iteration's training that waits for its last responses.

        This project's executor learns from whole parts of a batch, from all of it at once where an update needs more
        than its own rows. The last part has the last response, so none of its training is done before that ends.
        """
        job = self.space.job
        if job.framework != OWN:
            return self._last_share
        parts = parts_of_updates(load_algorithm(job.algorithm), job)
        return self.space.streams.last_part_share(parts)

    @property
    def _prepares_ahead(self) -> bool:
        """Tell whether responses are prepared as they end, beside training (`StreamSetting.ahead`)."""
        job = self.space.job
        in_order = not (self.schedule.flow.is_endless or job.workload.drops_responses)
        return job.framework == OWN and not in_order

    def limits(self, cutoff: float) -> SetLimits:
        """Return how long the sets may work, at the places where a plan of a lower value than `cutoff` may have them.

        No such plan has a set where its least work alone is beyond what the other sets' least leave of the value, nor
        where their fewest GPUs are not left: that holds for the sets' places of all such plans, so again for those that
        are left.
        """
        places = self.places
        while True:
            limits = self._limits(places)
            own = range(len(self.placement))
            lasting = tuple(
                [each for each in places[index] if self._may_work(limits, cutoff, index, each)]
                for index in own
            )
            left = self._leaving_others(lasting)
            if list(map(len, left)) == list(map(len, places)):
                return limits
            places = left

    def _limits(self, places: tuple[list[Place], ...]) -> SetLimits:
        return SetLimits(
            self.space,
            self.placement,
            places,
            self.generating,
            self.table.least_seconds,
            overlaps=self.schedule.flow.overlaps,
        )

    def _may_work(self, limits: SetLimits, cutoff: float, index: int, place: Place) -> bool:
        """Tell whether a set's least work at a place is within its limit, asking for generation's least last."""
        _, site = place
        least = self.space.pools.least(self.placement[index], site).whole_seconds
        if least >= limits.work_after(0.0, cutoff, index, site):
            return False
        return least < limits.work_seconds(cutoff, index, site)

    def _leaving_others(self, places: tuple[list[Place], ...]) -> tuple[list[Place], ...]:
        """Return the places that leave each other set the fewest GPUs that it has at any of its own."""
        if not all(places):
            return tuple([] for _ in places)
        least = [np.min([self.used(share) for share, _ in own], axis=0) for own in places]
        left = self.space.limits - np.sum(least, axis=0)
        return tuple(
            [each for each in own if np.all(self.used(each[0]) - fewest <= left)]
            for own, fewest in zip(places, least, strict=True)
        )

    @property
    def least_value(self) -> float:
        """Return a bound on all plans: every role at its best, each by itself."""
        return min((value for value, _ in self._least_values), default=math.inf)

    def promising(self) -> tuple[list[Place], ...]:
        """Return for each set where it is in the choices of the lowest bounds.

        Those are the best two places of the generating set, each with the best choice for the others.
        """
        ranked = sorted(self._least_values, key=lambda each: each[0])[:PROMISING_PLACES]
        chosen = [sorted(set(column)) for column in zip(*(each for _, each in ranked), strict=True)]
        return tuple(
            [places[number] for number in numbers]
            for places, numbers in zip(self.places, chosen, strict=True)
        )

    @cached_property
    def _least_values(self) -> list[tuple[float, tuple[int, ...]]]:
        """Return for places of the generating set a bound, and where all sets are who reach it.

        Those of the lowest bounds are among them: generation's least is asked for in the order of what a place is worth
        without generation, until that is above as many bounds as are looked at. Bounds of iterations that stream need not
        rise with generation, so that there all are asked.
        """
        rest, places = self._least_of_others(), self.places[self.generating]
        if not (places and len(rest)):
            return []
        bare = self._least_at(places, np.zeros(len(places)), rest).min(axis=1)
        found: list[tuple[float, int, int]] = []
        for number in np.argsort(bare, kind="stable").tolist():
            ranked = sorted(found)[:PROMISING_PLACES]
            is_enough = len(ranked) == PROMISING_PLACES and not self.schedule.streams
            if is_enough and bare[number] > ranked[-1][0]:
                break
            place = places[number]
            generate = np.array([self.table.least_seconds(place[1])])
            values = self._least_at([place], generate, rest)[0]
            best = int(np.argmin(values))
            if math.isfinite(values[best]):
                found.append((float(values[best]), number, best))
        return [
            (value, self._picked(number, rest.picks[best, :, 0]))
            for value, number, best in sorted(found, key=lambda each: each[1])
        ]

    def _least_at(self, places: list[Place], generate: Floats, rest: OtherPools) -> Floats:
        """Return bounds on plans by where the generating set is, each role at its best. Shape (places, choices).

        Args:
            generate: Seconds of generation, by place.
        """
        pools, members = self.space.pools, self.placement[self.generating]
        least = [pools.least(members, site) for _, site in places]
        own = (
            np.array([each.prepare_seconds for each in least]),
            np.array([each.train_seconds for each in least]),
        )
        whole = [each.whole_seconds for each in least]
        work = np.stack(
            [
                self._work(share, *seconds)
                for (share, _), *seconds in zip(places, whole, generate.tolist(), strict=True)
            ]
        )
        used = np.stack([self.used(share) for share, _ in places])
        return self.values(generate, own, used, work, NOTHING_SENT, rest)

    def _picked(self, generating: int, others: Ints) -> tuple[int, ...]:
        """Return for each set the number of its place."""
        where = dict(zip(self.others, others.tolist(), strict=True))
        where[self.generating] = generating
        return tuple(where[index] for index in range(len(self.placement)))

    def _least_of_others(self) -> OtherPools:
        """Return how the other sets can share the cluster, every role at its best.

        Placements that have some of their first sets in common share what these can do.
        """
        rest, known = empty(self.space.score, 1, 0), self.space.rests
        sets: tuple[ColocatedSet, ...] = ()
        for index in self.others:
            sets = (*sets, self.placement[index])
            asked = (self.schedule, sets)
            found = known.get(asked) if self.given is None else None
            if found is None:
                found = self._joined_least(rest, index)
            if self.given is None:
                known[asked] = found
            rest = found
        return rest

    def _joined_least(self, rest: OtherPools, index: int) -> OtherPools:
        """Return how some sets can share the cluster with another one, every role at its best."""
        members, places = self.placement[index], self.places[index]
        every = [self.space.pools.least(members, site) for _, site in places]
        seconds = [(each.prepare_seconds, each.train_seconds) for each in every]
        shares = [share for share, _ in places]
        right = self.rows_of(members, shares, np.array(seconds).reshape(-1, 2), [1] * len(shares))
        return joined(rest, right, self.space.limits, 0.0, math.inf, self.space.score)

    def rows_of(
        self,
        members: ColocatedSet,
        shares: Sequence[Share],
        seconds: Floats,
        counts: Sequence[int],
    ) -> OtherPools:
        """Return one set's rows on its shares, its work from when its data may have arrived.

        Args:
            seconds: Of preparation and training, those of one share after another. Shape (rows, 2).
            counts: How many of the rows are on each share.
        """
        places = np.repeat(np.arange(len(shares)), counts)
        gpus = np.array([share.gpus for share in shares], dtype=np.int64)[places]
        device = np.array([self.space.device(share) for share in shares], dtype=np.int64)[places]
        used = np.zeros((len(places), len(self.space.devices)), dtype=np.int64)
        used[np.arange(len(places)), device] = gpus
        prepares = seconds[:, 0] > 0
        arrival = np.where(prepares, self._arrival(self.space.arrival_seconds(members)), 0.0)
        score, sends = self.space.score, ACTOR in members
        sender = seconds if sends and self.schedule.flow.overlaps else np.zeros_like(seconds)
        if self.schedule.streams:
            sender = np.column_stack([np.zeros(len(seconds)), seconds[:, 1]])
        rates = score.computing[device] * gpus[:, None]
        sending: Floats = score.moving[device] * (gpus[:, None] * float(sends))
        rows = [np.arange(count) for count in counts]
        own_rows = np.concatenate(rows) if rows else places
        picks = np.stack([places, own_rows], axis=1)[:, None]
        own = seconds.sum(axis=1)[:, None]
        stages = np.column_stack([*self._stages(seconds[:, 0] + arrival, seconds[:, 1]), sender])
        # What fits nowhere takes for ever, and no time of it is no number.
        apart = own if self.schedule.streams else np.zeros_like(own)
        return OtherPools(used, stages, apart, own * rates, sending, picks)

    def _stages(self, prepare: Floats, train: Floats) -> tuple[Floats, Floats]:
        """Return a pool's stages that follow on those of others: where they overlap, all its work is one."""
        if self.is_serial:
            return prepare, train
        return np.zeros_like(prepare), prepare + train

    def _work(self, share: Share, work_seconds: float, generation_seconds: float) -> Floats:
        """Return the generating set's work on a share, by figure. Shape (figures,)."""
        score, device = self.space.score, self.space.device(share)
        rates = score.computing[device], score.moving[device]
        both = rates[0] * work_seconds + rates[1] * generation_seconds
        return np.asarray(both * share.gpus)

    def _arrival(self, seconds: float) -> float:
        """Return what data's way takes of preparation, in seconds.

        Where generation runs ahead, the data may be there long before the last training ends.
        """
        return 0.0 if self.schedule.flow.overlaps else seconds

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
        work: Floats,
        sent: BesideGeneration,
        others: OtherPools,
    ) -> Floats:
        """Return bounds on the values of candidates with choices for the others: (candidates, choices)."""
        host = self.space.judging_seconds + self._arrival(self.space.judging_arrival_seconds)
        own_stages = self._stages(*own)
        judged = self._stages(np.full(1, host), np.zeros(1))
        prepare, train = (
            np.maximum(np.maximum(mine, judging)[:, None], theirs)
            for mine, judging, theirs in zip(own_stages, judged, others.stages.T[:2], strict=True)
        )
        alone = (own[0][:, None], own[1][:, None])
        sender = (others.stages[:, 2], others.stages[:, 3])
        held = BesideGeneration(*(each[:, None] for each in sent))
        seconds = self._iteration(generate[:, None], alone, (prepare, train), held, sender)
        both = used[:, None] + others.used
        # Weights on their way to another pool are work of both.
        worked = work[:, None] + others.work + held.move[..., None] * others.sending
        values = self.space.score.values(seconds, both, worked, self.least_factor)
        return np.where(np.all(both <= self.space.limits, axis=-1), values, np.inf)
