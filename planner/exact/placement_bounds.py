"""Level 2 of the search: what no plan of one placement can beat.

Stages bound iterations, and iterations bound values: see decision 7.
"""

import math
from functools import cached_property

import numpy as np

from rlplan.planner.exact.candidates import BesideGeneration, CandidateTable
from rlplan.planner.exact.generation.weight_moves import ACTOR
from rlplan.planner.exact.other_pools import OtherPools, empty, joined, stacked
from rlplan.planner.exact.set_limits import Place, SetLimits
from rlplan.planner.exact.space import Space
from rlplan.planner.placements.allocations import Share
from rlplan.planner.placements.partitions import ColocatedSet, Placement, generating_set
from rlplan.planner.requests.schedules import SYNC, Schedule
from rlplan.simulator.asynchronous.setting import MOST_PIECES
from rlplan.simulator.placed.columns import Floats, Ints

# Streams are played for as many iterations as fill the pools and for some behind them, whose samples are a little
# shorter or longer than the long run's: by 0.9 % of an iteration at most in 886 plans of random small jobs.
PLAYED_NOISE_FRACTION = 0.02

NOTHING_SENT = BesideGeneration(np.zeros(1), np.zeros(1), np.zeros(1))


class PlacementBounds:
    """Bound the plans of one placement with one schedule.

    Args:
        given: For each set its share and site, where they are given.

    Attributes:
        generating: Place of the set that generates.
        others: Places of the other sets.
    """

    def __init__(
        self,
        space: Space,
        placement: Placement,
        schedule: Schedule = SYNC,
        given: tuple[Place, ...] | None = None,
    ) -> None:
        self.space, self.placement, self.schedule, self.given = space, placement, schedule, given
        # Pieces of an iteration are prepared while those before are learnt from.
        flow = schedule.flow
        self.is_serial = not flow.by_sample or (flow.is_endless and space.job.workload.updates == 1)
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
            sender: Preparation and training of the pool that sends new weights to a copy.
        """
        if not self.schedule.flow.overlaps:
            return generate + stages[0] + stages[1]
        if self.schedule.streams:
            return self._streamed(generate, stages[0] + stages[1], sent)
        held = np.maximum(own[0], sender[0]) + np.maximum(own[1], sender[1])
        alone = np.maximum(generate + own[0] + own[1], stages[0] + stages[1])
        return np.asarray(np.maximum(alone, sent.move + held))

    def _streamed(self, generate: Floats, work: Floats, sent: BesideGeneration) -> Floats:
        """Return bounds on mean iterations whose responses stream; decision 7 says why they hold.

        Args:
            work: Of the slowest pool beside the generating one.
        """
        staleness, every = self.schedule.staleness, self.schedule.sync_every
        late, ahead = math.ceil(staleness), staleness + 1 - every
        last = work * self._last_share
        beside = np.maximum(0.0, last - ahead * (generate - sent.move)) if ahead else last
        first = 0.0 if ahead else sent.shortest
        mean = np.maximum(generate + beside / every, sent.move + work + first / every)
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
        """Return the least share of an iteration's work that waits for its last responses."""
        if self.is_serial:
            return 1.0
        updates = self.space.job.workload.updates
        pieces = updates if self.schedule.flow.is_endless else updates * MOST_PIECES
        return self.space.streams.last_share(pieces)

    @cached_property
    def limits(self) -> SetLimits:
        """Return how long the sets may work."""
        return SetLimits(
            self.space,
            self.placement,
            self.places,
            self.generating,
            {site: self.table.least_seconds(site) for _, site in self.places[self.generating]},
            self.least_generation,
        )

    @cached_property
    def least_generation(self) -> float:
        """Return the seconds that every plan generates before its other sets begin."""
        if self.schedule.flow.overlaps:
            return 0.0
        sites = (site for _, site in self.places[self.generating])
        return min(map(self.table.least_seconds, sites), default=math.inf)

    @property
    def least_value(self) -> float:
        """Return a bound on all plans: every role at its best, each by itself."""
        return min((value for value, _ in self._least_values), default=math.inf)

    def promising(self, most: int) -> tuple[list[Place], ...]:
        """Return for each set where it is in the choices of the lowest bounds.

        Args:
            most: How many places of the generating set, each with the best choice for the others, are looked at.
        """
        ranked = sorted(self._least_values, key=lambda each: each[0])[:most]
        chosen = [sorted(set(column)) for column in zip(*(each for _, each in ranked), strict=True)]
        return tuple(
            [places[number] for number in numbers]
            for places, numbers in zip(self.places, chosen, strict=True)
        )

    @cached_property
    def _least_values(self) -> list[tuple[float, tuple[int, ...]]]:
        """Return for each place of the generating set a bound, and where all sets are who reach it."""
        pools, rest = self.space.pools, self._least_of_others()
        found: list[tuple[float, tuple[int, ...]]] = []
        members = self.placement[self.generating]
        for number, (share, site) in enumerate(self.places[self.generating]):
            least = pools.least(members, site)
            own = (np.array([least.prepare_seconds]), np.array([least.train_seconds]))
            generate = np.array([self.table.least_seconds(site)])
            work = self._work(share, least.whole_seconds, float(generate[0]))
            used = self.used(share)[None]
            values = self.values(generate, own, used, work, NOTHING_SENT, rest)[0]
            if not len(values):
                continue
            best = int(np.argmin(values))
            where = dict(zip(self.others, rest.picks[best, :, 0].tolist(), strict=True))
            where[self.generating] = number
            places = tuple(where[index] for index in range(len(self.placement)))
            if math.isfinite(values[best]):
                found.append((float(values[best]), places))
        return found

    def _least_of_others(self) -> OtherPools:
        """Return how the other sets can share the cluster, every role at its best."""
        pools, score = self.space.pools, self.space.score
        rest = empty(score, 1, 0)
        for index in self.others:
            members, rows = self.placement[index], []
            for place, (share, site) in enumerate(self.places[index]):
                least = pools.least(members, site)
                seconds = np.array([[least.prepare_seconds, least.train_seconds]])
                rows.append(self.rows_of(members, share, seconds, place))
            rest = joined(
                rest,
                stacked(rows, score),
                self.space.limits,
                self.least_generation,
                math.inf,
                score,
            )
        return rest

    def rows_of(
        self, members: ColocatedSet, share: Share, seconds: Floats, place: int
    ) -> OtherPools:
        """Return one set's rows on a share, its work from when its data may have arrived."""
        count = len(seconds)
        used = np.repeat(self.used(share)[None], count, axis=0)
        prepares = seconds[:, 0] > 0
        arrival = np.where(prepares, self._arrival(self.space.arrival_seconds(members)), 0.0)
        score, device, sends = self.space.score, self.space.device(share), ACTOR in members
        sender = seconds if sends and self.schedule.flow.overlaps else np.zeros_like(seconds)
        rates = score.computing[device] * share.gpus
        sending = np.repeat(score.moving[device][None] * (share.gpus * sends), count, axis=0)
        picks = np.stack([np.full(count, place), np.arange(count)], axis=1)[:, None]
        own = seconds.sum(axis=1)[:, None]
        stages = np.column_stack([*self._stages(seconds[:, 0] + arrival, seconds[:, 1]), sender])
        apart = own * self.schedule.streams
        return OtherPools(used, stages, apart, own * rates, sending, picks)

    def _stages(self, prepare: Floats, train: Floats) -> tuple[Floats, Floats]:
        """Return a pool's stages that follow on those of others: where they overlap, all its work is one."""
        if self.is_serial:
            return prepare, train
        return np.zeros_like(prepare), prepare + train

    def _work(self, share: Share, work_seconds: float, generation_seconds: float) -> Floats:
        """Return the generating set's work on a share, by figure. Shape (1, figures)."""
        score, device = self.space.score, self.space.device(share)
        rates = score.computing[device], score.moving[device]
        both = rates[0] * work_seconds + rates[1] * generation_seconds
        return np.asarray(both * share.gpus)[None]

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
        values = self.space.score.values(seconds, both, worked)
        return np.where(np.all(both <= self.space.limits, axis=-1), values, np.inf)
