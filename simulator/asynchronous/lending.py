"""Lending of idle GPUs between the training pool and the generating pool, simulated.

Replicas on the training pool join generation after a weight sync, take over their share of the responses under way, and give
them back before training begins. Generation replicas that may begin no response before new weights come compute gradients as
additional data-parallel ranks. `rlplan.simulator.asynchronous.lent` has the costs of these switches, and what fits in memory.

The adaptive policy is that of verl V1's step switching (docs/advance/v1_async_trainer.md, commit 1dda039b): the sizes of its
steps, when they are taken, the least share, and the comparison of the gain of lending with its cost.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import simpy

from rlplan.simulator.asynchronous.generators import GeneratingReplica, hand_over
from rlplan.simulator.asynchronous.samples import SampleQueue
from rlplan.simulator.asynchronous.setting import StreamSetting
from rlplan.simulator.generation.replica import Replica
from rlplan.simulator.timeline.engine import Engine, Steps, Work

STEP_UP, STEP_DOWN = 0.05, 0.03
# Consecutive intervals of one kind after which the share changes.
STEADY_INTERVALS = 2
# Waiting for a smaller share of an interval counts as none. (verl: less than the 2 s between two looks at its buffer.)
WAITING_FRACTION = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class LentTrainers:
    """Hold the training pool's GPUs as generators.

    Attributes:
        replica: Engine on them, with the cache that training leaves room for.
        count: Replicas that are simulated.
        work: The work that holds the pool while it generates.
        join_seconds: From the decision until they generate: weight sync, waking the engine.
        leave_seconds: From their last step until the pool can train.
        until: They go back once this share of the samples between two syncs is ready.
        adapts: Whether that share changes with the time that training waited.
    """

    replica: Replica
    count: int
    work: Work
    join_seconds: float
    leave_seconds: float
    until: float
    adapts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LentGenerators:
    """Hold the generating pool's replicas as ranks that compute gradients.

    Attributes:
        ranks: Data-parallel ranks of the update's layout.
        replica_gpus: GPUs of a simulated replica of the generating pool.
        rank_gpus: GPUs of one copy of the model's ranks; a whole number of copies joins.
        ranks_each: Data-parallel ranks of one copy.
        pool: The training pool, whose works they speed up.
        update_seconds: To send them weights and to return gradients, for each update.
        join_seconds: To take an engine off its GPUs.
        leave_seconds: To bring it back before new weights come.
    """

    ranks: int
    replica_gpus: float
    rank_gpus: int
    ranks_each: int
    pool: str
    update_seconds: float
    join_seconds: float
    leave_seconds: float

    def speed_up(self, idle_replicas: int) -> float:
        """Return the speed-up of training with the GPUs of `idle_replicas`."""
        copies = math.floor(idle_replicas * self.replica_gpus / self.rank_gpus + 1e-9)
        return (self.ranks + copies * self.ranks_each) / self.ranks


@dataclass(slots=True)
class LendingTotals:
    """Hold the totals of lending in a simulation.

    Attributes:
        lent_seconds: During which the training pool generated, switches included.
        helped_seconds: That updates were shorter by, for the help of idle replicas.
        switches: Number of times that the training pool switched to generation.
    """

    lent_seconds: float = 0.0
    helped_seconds: float = 0.0
    switches: int = 0


@dataclass(slots=True, eq=False)
class Lender:
    """Decide when the training pool generates, and start and stop its replicas.

    Attributes:
        note: Called with the time in seconds, the work that holds the pool, and 1 where it begins or -1 where it ends.
        until: The share at which GPUs go back now.
    """

    engine: Engine
    queue: SampleQueue
    setting: StreamSetting
    lent: LentTrainers
    own: Sequence[GeneratingReplica]
    helpers: Sequence[GeneratingReplica]
    totals: LendingTotals
    note: Callable[[float, Work, int], object]
    until: float = field(init=False)
    _joining: simpy.Process | None = None
    _since: float = 0.0
    _waited: float = 0.0
    _idle: int = 0
    _calm: int = 0

    def __post_init__(self) -> None:
        self.until = self.lent.until

    @property
    def _samples_until_return(self) -> int:
        """Return the number of ready samples at which the GPUs go back: at least those of a piece."""
        interval = self.setting.learnt * self.setting.sync_every
        return min(interval, max(self.setting.pieces[0], round(self.until * interval)))

    def decide(self, seconds: float) -> bool:
        """Tell, while all generators have stopped for new weights, whether the training pool will generate.

        Args:
            seconds: Since weights went over the time before.
        """
        waited = self.queue.waited_seconds - self._waited
        self._waited = self.queue.waited_seconds
        if self.lent.adapts:
            self._adapt(waits=waited > WAITING_FRACTION * seconds)
        missing = self._samples_until_return - self.queue.complete
        if missing <= 0:
            return False
        each = self._sample_seconds
        if each is None:
            return True
        share = len(self.helpers) / (len(self.own) + len(self.helpers))
        return missing * each * share > self.lent.join_seconds + self.lent.leave_seconds

    @property
    def _sample_seconds(self) -> float | None:
        """Return for how long training waited for a sample so far; None where it never had to."""
        waited = self.queue.waited_samples
        return self.queue.waited_seconds / waited if waited else None

    def _adapt(self, *, waits: bool) -> None:
        self._idle, self._calm = (self._idle + 1, 0) if waits else (0, self._calm + 1)
        least = 1 / self.setting.sync_every if self.setting.sync_every > 1 else STEP_DOWN
        if self._idle >= STEADY_INTERVALS:
            self.until = min(1.0, self.until + STEP_UP)
        elif self._calm >= STEADY_INTERVALS:
            self.until = max(min(least, self.lent.until), self.until - STEP_DOWN)

    def join(self) -> None:
        """Let the training pool's replicas generate once they can; they have their part of what is under way already."""
        self._joining = self.engine.environment.process(self._join())

    def _join(self) -> Steps:
        yield from self.engine.resources.take(self.lent.work.holds)
        self._since = self.engine.environment.now
        self.note(self._since, self.lent.work, 1)
        yield self.engine.environment.timeout(self.lent.join_seconds)
        for each in self.helpers:
            each.resume()

    def leave(self, iteration: int) -> Steps:
        """Wait until enough samples are there, and give the pool back to training with nothing under way."""
        if self._joining is None:
            return
        environment = self.engine.environment
        yield from self.queue.until_complete(self._samples_until_return)
        yield self._joining
        yield environment.all_of([each.stop("recompute") for each in self.helpers])
        moved = [each for helper in self.helpers for each in helper.give_up(helper.under_way)]
        hand_over(moved, self.own)
        yield environment.timeout(self.lent.leave_seconds)
        self.engine.resources.release(self.lent.work.holds)
        self.note(environment.now, self.lent.work, -1)
        self.engine.note(self.lent.work, iteration, self._since)
        self.totals.lent_seconds += environment.now - self._since
        self.totals.switches += 1
        self._joining = None


@dataclass(slots=True, eq=False)
class HelpingReplicas:
    """Let generation replicas that may not start new responses train with the training pool.

    Attributes:
        used: Whether any has trained since the last weight sync.
    """

    lent: LentGenerators
    queue: SampleQueue
    own: Sequence[GeneratingReplica]
    totals: LendingTotals
    used: bool = False

    def seconds(self, pool: str, samples_seconds: float, updates: int) -> float:
        """Return the seconds by which a piece of a work is shorter, what switches and weights take counted.

        Args:
            samples_seconds: Of the piece on the training pool alone, without optimizer steps.
            updates: Optimizer steps that the piece ends with.
        """
        if pool != self.lent.pool or not self.queue.exhausted:
            return 0.0
        idle = sum(not each.under_way for each in self.own)
        saved = samples_seconds * (1 - 1 / self.lent.speed_up(idle))
        saved -= self.lent.update_seconds * max(1, updates)
        switch = 0.0 if self.used else self.lent.join_seconds
        back = 0.0 if self.used else self.lent.leave_seconds
        if saved <= switch + back:
            return 0.0
        self.used = True
        self.totals.helped_seconds += saved - switch
        return saved - switch

    def leave_seconds(self) -> float:
        """Return what it takes until engines are there again; nothing where none was used."""
        used, self.used = self.used, False
        return self.lent.leave_seconds if used else 0.0
