"""Lending of idle GPUs between the training pool and the generating pool, simulated.

Replicas on the training pool join generation after a weight sync, take over their share of the responses under way, and give
them back before training begins. Generation replicas that may begin no response before new weights come compute gradients as
additional data-parallel ranks. What these switches cost and what fits in memory stands at the end.

The adaptive policy is that of verl V1's step switching (docs/advance/v1_async_trainer.md, commit 1dda039b): the sizes of its
steps, when they are taken, the least share, and the comparison of the gain of lending with its cost.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import simpy

from rlplan.errors import CapabilityError
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.profiles.analytic.efficiencies import load_switch_costs
from rlplan.profiles.catalog import load_engine
from rlplan.results.forecast import MemoryForecast
from rlplan.rules.flow import transition_for
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.rules.rule import Capability
from rlplan.simulator.asynchronous.generators import GeneratingReplica, hand_over
from rlplan.simulator.asynchronous.samples import SampleQueue
from rlplan.simulator.asynchronous.setting import StreamSetting
from rlplan.simulator.costs.syncs import transition_cost
from rlplan.simulator.costs.taskcost import host_seconds
from rlplan.simulator.generation.generating import begun, clock_of, replica_limits, replica_of
from rlplan.simulator.generation.replica import Replica
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.engine import Engine, Steps, Work
from rlplan.simulator.timeline.pool_memory import (
    kv_bytes_left,
    memory_fraction_left,
    pool_memory,
)

STEP_UP, STEP_DOWN = 0.05, 0.03
# Consecutive intervals of one kind after which the share changes.
STEADY_INTERVALS = 2
# Waiting for a smaller share of an interval counts as none. (verl: less than the 2 s between two looks at its buffer.)
WAITING_FRACTION = 0.01

LENT = "lent"
LENT_WAVES = Capability("lending GPUs to an engine that takes its sequences in waves")
LENT_EPISODES = Capability("lending GPUs to episodes in environments")
LENT_SHARDS = Capability("lending GPUs to an update whose weights are fully sharded")
ONE_BY_ONE = ("continuous", "mixed")


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
        part: Called when helpers shall begin nothing more.
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
    part: Callable[[], None]
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
        self.part()
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


# Costs and memory of lending: replicas on the training pool, data-parallel ranks on the generating pool, and
# switches.
#
# For replicas on the training pool, weight sync and cache are those of a plan that generates there: such a plan is
# made, and its costs and memory are taken. Taking an engine off its GPUs costs the seconds of
# `profiles/fits/lending.yaml`. Generators' GPUs that help training hold weights and gradients only: before each
# update they get weights over the network, and return gradients; optimizer states stay on the training pool.


def lent_layout(plan: Plan) -> TaskPlan:
    """Return the layout of replicas on the training pool of a plan that lends its GPUs to generation."""
    assert plan.lending is not None, "nothing is lent"
    lending, generate = plan.lending, plan.tasks["actor.generate"]
    pool = plan.pool_of("actor.update")
    tp, pp = lending.tp or generate.tp, lending.pp or generate.pp
    return replace(
        generate,
        pool=pool.name,
        tp=tp,
        pp=pp,
        dp=pool.gpus // (tp * pp),
        memory_fraction=lending.memory_fraction or generate.memory_fraction,
    )


def lent_fraction(placed: PlacedPlan, usable_fraction: float) -> float:
    """Return the share of each training GPU that replicas there may fill, beside the states that training keeps on it.

    Args:
        usable_fraction: Share of every GPU's memory that the plan may fill.
    """
    there = LentPlan(placed).with_fraction(None)
    return memory_fraction_left(there, there.generate, usable_fraction)


@dataclass(frozen=True, eq=False)
class LentPlan:
    """Hold a plan that lends GPUs, and the same plan with generation on its training pool."""

    placed: PlacedPlan

    @cached_property
    def layout(self) -> TaskPlan:
        """Return the layout of replicas on the training pool."""
        return lent_layout(self.placed.plan)

    @cached_property
    def there(self) -> PlacedPlan:
        """Return the plan with generation on its training pool, in the lent share of memory; by default in all that is free."""
        lending = self.placed.plan.lending
        assert lending is not None, "nothing is lent"
        if lending.memory_fraction is not None:
            return self.with_fraction(lending.memory_fraction)
        there = self.with_fraction(None)
        return self.with_fraction(memory_fraction_left(there, there.generate))

    def with_fraction(self, fraction: float | None) -> PlacedPlan:
        """Return the plan with generation on its training pool, in a share of each GPU; None is the generate task's."""
        plan, lending = self.placed.plan, self.placed.plan.lending
        assert lending is not None, "nothing is lent"
        way = lending.transition or plan.job.weight_sync.shared_pool
        way = way or transition_for(plan.tasks["actor.update"], self.layout)
        layout = self.layout
        if fraction is not None:
            layout = replace(layout, memory_fraction=fraction)
        tasks = plan.tasks.with_item("actor.generate", layout)
        return PlacedPlan(replace(plan, tasks=tasks, transition=way), self.placed.facts)

    @property
    def pool(self) -> ResourcePool:
        """Return the training pool."""
        return self.placed.plan.pool_of("actor.update")

    @cached_property
    def memory(self) -> MemoryForecast:
        """Return the training pool's fullest GPU at its peak, generation included."""
        return pool_memory(self.there, self.pool)

    def trainers(self, setting: StreamSetting) -> LentTrainers:
        """Return the training pool's GPUs as generators."""
        lending, there = self.placed.plan.lending, self.there
        assert lending is not None, "nothing is lent"
        task = there.generate
        steps, limits = replica_limits(
            begun(task, setting.staleness + 1), max(0.0, kv_bytes_left(there))
        )
        limits = replace(limits, prompt_samples=min(limits.prompt_samples, setting.bundle))
        transition = there.transition_to(task)
        assert transition is not None, "what trains the actor brings it to generation"
        name = task.task.name
        work = Work(key=f"{name} {LENT}", name=name, pool=self.pool.name, holds=(self.pool.name,))
        return LentTrainers(
            replica=replica_of(clock_of(steps), limits),
            count=self.layout.dp * setting.replicas // setting.whole_replicas,
            work=work,
            join_seconds=transition_cost(transition).total.seconds,
            leave_seconds=load_switch_costs().sleep_seconds.value,
            until=lending.until,
            adapts=lending.policy == "adaptive",
        )

    def generators(self, setting: StreamSetting) -> LentGenerators:
        """Return the generating pool's GPUs as ranks of the update."""
        update, generate = self.placed.tasks["actor.update"], self.placed.generate
        layout, played = update.layout, setting.whole_replicas / setting.replicas
        model_gpus = layout.tp * layout.pp * layout.cp
        rank_gpus = math.lcm(model_gpus, layout.expert_ranks * layout.pp)
        num_bytes = update.weight_bytes + update.trained_parameters * update.stored.gradient_bytes
        rate = min(
            update.site.inter_node_bytes_per_second, generate.site.inter_node_bytes_per_second
        )
        return LentGenerators(
            ranks=layout.dp,
            replica_gpus=generate.layout.gpus / generate.layout.dp * played,
            rank_gpus=rank_gpus,
            ranks_each=rank_gpus // model_gpus,
            pool=self.pool.name,
            update_seconds=num_bytes / rate,
            join_seconds=load_switch_costs().sleep_seconds.value,
            leave_seconds=host_seconds(generate.framework.call("transition"), generate).seconds,
        )


def lacks_of_lending(plan: Plan) -> Iterator[CapabilityError]:
    """Yield the forms of lending in a plan that are not simulated."""
    lending, who = plan.lending, "the simulator"
    if lending is None:
        return
    if plan.job.environments:
        yield LENT_EPISODES.lacked_by(who, "lending", "there", "a plan without lending")
    engine = load_engine(plan.tasks["actor.generate"].engine)
    if "generation" in lending.to and engine.batching not in ONE_BY_ONE:
        instead = f"an engine that batches {' or '.join(ONE_BY_ONE)}"
        yield LENT_WAVES.lacked_by(who, "lending.to", "generation", instead)
    if "training" in lending.to and plan.tasks["actor.update"].zero >= FULLY_SHARDED:
        yield LENT_SHARDS.lacked_by(who, "lending.to", "training", "zero below 3, or generation")
