"""Simulation of samples that are handed on one by one: generation, training, weight syncs, and the steady state."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlplan.results.forecast import OverlapForecast
from rlplan.simulator.asynchronous.generators import (
    EndlessPlans,
    EpisodeArrivals,
    GeneratingReplica,
    Generators,
)
from rlplan.simulator.asynchronous.lending import (
    HelpingReplicas,
    Lender,
    LendingTotals,
    LentGenerators,
    LentTrainers,
)
from rlplan.simulator.asynchronous.meter import GENERATION, Meter, Reading
from rlplan.simulator.asynchronous.samples import SampleQueue, batch_tokens, endless_lengths
from rlplan.simulator.asynchronous.setting import StreamSetting
from rlplan.simulator.asynchronous.training import (
    PieceWork,
    Preparation,
    Training,
    learning,
    preparing,
)
from rlplan.simulator.environments import HostShare
from rlplan.simulator.generation.batching.joining import Calls
from rlplan.simulator.generation.episodes import arriving_episodes
from rlplan.simulator.generation.playing import Arriving, arriving
from rlplan.simulator.generation.replica import Replica
from rlplan.simulator.timeline.engine import Engine, Queueing, Steps, Work
from rlplan.simulator.timeline.pool_memory import TRANSITION
from rlplan.trace import IterationSpan, Span, Trace
from rlplan.workload import Workload

# Generators that begin at most this share more than is learnt from count as being as fast as training.
FILLING_FRACTION = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Hold the parts of a stream: generators, the works of training, and the weight sync.

    Attributes:
        replica: Of the engine.
        time_factor: Calibration factor of the site on the seconds of its steps.
        generate: The work of generators.
        works: The works that each piece of an iteration passes through.
        transition: The weight sync to generators; None where it takes no time.
        transition_seconds: Its length.
        pools: All pools of devices.
        order: By pool, names of works in the order in which they get the pool when several wait.
        host: Each replica's share of the host, where responses are episodes.
        calls: In which waves go on, that new responses may join; None: the engine batches as `replica` says.
        in_step: Whether a whole batch is at the replicas, whose waves follow each other; those of episodes turn by turn.
        write_seconds: From the end of responses until works that prepare them by themselves may read them.
        call_seconds: Of the call for weights, beside preparation that goes on by itself.
        cores: Of the host, where devices are cores; infinite where they have processors of their own.
        lent_trainers: The training pool's GPUs as generators; None where they only train.
        lent_generators: The generating pool's as ranks of training; None where they only generate.
    """

    workload: Workload
    setting: StreamSetting
    replica: Replica
    time_factor: float
    generate: Work
    works: Sequence[PieceWork]
    transition: Work | None
    transition_seconds: float
    pools: Sequence[str]
    order: Mapping[str, Sequence[str]]
    host: HostShare | None = None
    calls: Calls | None = None
    in_step: bool = False
    write_seconds: float = 0.0
    call_seconds: float = 0.0
    cores: float = math.inf
    lent_trainers: LentTrainers | None = None
    lent_generators: LentGenerators | None = None

    @property
    def slots(self) -> float:
        """Return the responses with which a replica takes no others.

        Calls begin whole prompts, for which there has to be room; those of a batch in step are there together, and what is
        dealt out waits at a replica.
        This project's executor lets episodes wait at a replica for an instance; others do so before it has them.
        """
        if self.in_step or self.setting.refills:
            return math.inf
        if self.calls is not None:
            return max(1, self.replica.max_running - self.setting.samples + 1)
        instances = sum(seats.instances for seats in self.host.seats) if self.host else math.inf
        return min(self.replica.max_running, instances)


@dataclass(frozen=True, slots=True)
class Count:
    """Hold what was counted until the end of an iteration, all tokens those of the replicas that were played.

    Attributes:
        waited_seconds: In which training waited for samples.
        begun: Samples that were begun.
        held: How often all had been begun that might be, when generators got new weights.
        lent_seconds: In which the training pool belonged to generation.
        helped_seconds: By which training was shorter since generators helped.
    """

    reading: Reading
    generated: int
    restarted: int
    dropped: int
    taken: int
    ages: Mapping[int, int]
    waited_seconds: float
    begun: int
    held: int
    lent_seconds: float = 0.0
    helped_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Streamed:
    """Hold what happened, and what was counted at the end of each iteration."""

    spans: Sequence[Span]
    iterations: Sequence[IterationSpan]
    counts: Sequence[Count]


def play_stream(stream: Stream) -> Streamed:
    """Return what happens in all iterations of a stream's setting."""
    flow = _SampleFlow(stream)
    trace = flow.engine.run(flow.iterations())
    return Streamed(trace.spans, trace.iterations, flow.counts)


class _SampleFlow:
    """Run generators and training on an engine, and bring the one's weights to the other."""

    def __init__(self, stream: Stream) -> None:
        self.stream, setting = stream, stream.setting
        stages = {each.entry.work.key: each.entry.stage for each in stream.works}
        if stream.transition:
            stages[stream.transition.key] = TRANSITION
        if stream.lent_trainers:
            stages[stream.lent_trainers.work.key] = GENERATION
        self.meter = Meter(stream.pools, stream.generate.pool, setting.replicas, stages)
        self.engine = Engine(Queueing, cores=stream.cores, watch=self.meter.work)
        lengths = endless_lengths(stream.workload, setting)
        self.queue = SampleQueue(self.engine.environment, setting, lengths)
        plans = EndlessPlans(stream.workload, setting)
        replicas = [
            GeneratingReplica(self.engine, self._sequences(plans), stream.time_factor, stream.slots)
            for _ in range(setting.replicas)
        ]
        helpers = self._helpers(stream.lent_trainers) if stream.lent_trainers else []
        environment = self.engine.environment
        self.generators = Generators(environment, replicas, self.queue, self.meter, helpers)
        self.totals = LendingTotals()
        self.lender = self._lender(replicas, helpers)
        self.help = self._help(replicas)
        tokens = batch_tokens(stream.workload, setting)
        self.preparation = self._preparation(tokens) if setting.ahead else None
        self.training = Training(
            self.engine,
            learning(stream.works) if setting.ahead else stream.works,
            stream.order,
            self.queue,
            tokens,
            prepared=setting.ahead,
            helped=self.help.seconds if self.help else None,
        )
        self.counts: list[Count] = []

    def _helpers(self, lent: LentTrainers) -> list[GeneratingReplica]:
        """Return the training pool's replicas."""
        longest = self.stream.workload.longest_sequence_tokens - 1
        return [
            GeneratingReplica(
                self.engine,
                arriving(lent.replica, longest),
                self.stream.time_factor,
                lent.replica.max_running,
            )
            for _ in range(lent.count)
        ]

    def _lender(
        self, own: Sequence[GeneratingReplica], helpers: Sequence[GeneratingReplica]
    ) -> Lender | None:
        lent, setting = self.stream.lent_trainers, self.stream.setting
        if lent is None:
            return None
        return Lender(
            self.engine,
            self.queue,
            setting,
            lent,
            own,
            helpers,
            self.totals,
            self.meter.work,
            self.generators.part_from_helpers,
        )

    def _help(self, own: Sequence[GeneratingReplica]) -> HelpingReplicas | None:
        lent = self.stream.lent_generators
        return HelpingReplicas(lent, self.queue, own, self.totals) if lent else None

    def _sequences(self, plans: EndlessPlans) -> Arriving | EpisodeArrivals:
        """Return a replica's sequences before the first of them has arrived."""
        stream = self.stream
        longest = stream.workload.longest_sequence_tokens - 1
        keeps = stream.setting.in_flight == "keep"
        if stream.host is None:
            return arriving(stream.replica, longest, stream.calls, keeps=keeps)
        state = arriving_episodes(
            stream.replica,
            stream.host,
            longest,
            stream.calls,
            keeps=keeps,
            in_step=stream.in_step,
            inline=stream.workload.environments[0].inference == "inline",
            slower=stream.time_factor,
        )
        return EpisodeArrivals(self.engine.environment, state, plans)

    def _preparation(self, tokens: float) -> Preparation:
        """Return works that take responses as they end."""
        stream, setting = self.stream, self.stream.setting
        found = Preparation(
            self.engine,
            preparing(stream.works),
            batch_tokens=tokens,
            whole=setting.learnt * setting.unit,
            unit=setting.unit,
            write_seconds=stream.write_seconds,
            prepared=self.queue.hand_on,
        )
        self.queue.prepare = found.end
        return found

    def iterations(self) -> Steps:
        """Run all iterations."""
        setting, engine, began_seconds = self.stream.setting, self.engine, 0.0
        for number in range(setting.iterations):
            if self.preparation:
                self.preparation.iteration = number
            if self.lender:
                yield from self.lender.leave(number)
            yield from self.training.iteration(number, setting)
            if (number + 1) % setting.sync_every == 0:
                version = self.queue.version
                stopped = self.generators.stop(setting.in_flight)
                if setting.in_flight == "drain":  # weights are called for when nothing is under way
                    yield stopped
                if self.preparation:
                    yield from self._send_weights()
                yield stopped
                engine.note(self.stream.generate, version, began_seconds)
                yield from self._transition(number)
                if self.help and (back_seconds := self.help.leave_seconds()):
                    yield engine.environment.timeout(back_seconds)
                lends = self.lender is not None and self.lender.decide(
                    engine.environment.now - began_seconds
                )
                self.generators.resume(number + 1, helped=lends)
                if self.lender and lends:
                    self.lender.join()
                began_seconds = engine.environment.now
            engine.end_iteration()
            self.counts.append(self._count())

    def _send_weights(self) -> Steps:
        """Call for weights, which are sent behind what their pool was sent before."""
        transition = self.stream.transition
        if transition is None:
            return
        yield from self.engine.resources.take(transition.holds)
        yield self.engine.cores.work(self.stream.call_seconds)
        self.engine.resources.release(transition.holds)

    def _transition(self, iteration: int) -> Steps:
        transition = self.stream.transition
        if transition is None:
            return
        arrived = self.engine.environment.timeout(self.stream.transition_seconds)
        yield from self.engine.during(transition, iteration, arrived)

    def _count(self) -> Count:
        queue = self.queue
        return Count(
            self.meter.read(self.engine.environment.now),
            self.generators.generated,
            self.generators.restarted,
            queue.dropped_tokens,
            queue.taken_tokens,
            dict(queue.ages),
            queue.waited_seconds,
            queue.begun,
            queue.held,
            self.totals.lent_seconds,
            self.totals.helped_seconds,
        )


@dataclass(frozen=True, slots=True)
class LongRun:
    """Hold an iteration of the long run.

    Attributes:
        learnt_share: Tokens that it learns from, as a share of those of a batch; below 1 where the last
            responses are dropped.
        stage_seconds: Seconds in which each stage is what it waits for; they sum to the whole.
        busy_seconds: By pool, seconds in which it computes; of generators, of the mean replica.
        idle_seconds: By stage, pool-seconds in which pools have nothing to do.
        waited_fraction: Share of the time in which training waits for samples.
        held: Whether generators begin all that the bound lets them whenever they get weights.
        filling: Whether they do, or begin more than is learnt from.
    """

    learnt_share: float
    stage_seconds: Mapping[str, float]
    busy_seconds: Mapping[str, float]
    idle_seconds: Mapping[str, float]
    overlap: OverlapForecast
    waited_fraction: float
    held: bool
    filling: bool

    @property
    def seconds(self) -> float:
        """Return how long it lasts."""
        return sum(self.stage_seconds.values())

    def as_old_as(self, bound: int) -> "LongRun":
        """Return the same steady state with a larger staleness bound, in updates.

        Generators that are faster than training fill any bound: they begin a batch whenever one is learnt from. A larger
        bound only makes samples wait longer.
        """
        ages = self.overlap
        mean = ages.staleness_mean + bound - ages.staleness_max
        return replace(self, overlap=replace(ages, staleness_mean=mean, staleness_max=float(bound)))


def long_run(stream: Stream, streamed: Streamed) -> LongRun:
    """Return the mean of the counted iterations.

    While finished responses pile up before training, the longest responses end: iterations then learn from more tokens
    than in steady state. Their seconds, weight syncs apart, are scaled down in proportion.
    """
    setting = stream.setting
    first, last = streamed.counts[setting.warm_up - 1], streamed.counts[-1]
    spent, count = last.reading.since(first.reading), setting.counted
    mean = batch_tokens(stream.workload, setting)
    share = (last.taken - first.taken) / (count * mean)
    drops = setting.begun > setting.learnt
    each = 1 / count if drops else 1 / (count * share)
    held = last.held - first.held == count // setting.sync_every
    idle: dict[str, float] = {}
    for (_, stage), seconds in spent.idle_seconds.items():
        idle[stage] = idle.get(stage, 0.0) + seconds * each
    stages = {
        stage: seconds * (1 / count if stage == TRANSITION else each)
        for stage, seconds in spent.stage_seconds.items()
    }
    return LongRun(
        share if drops else 1.0,
        stages,
        {pool: seconds * each for pool, seconds in spent.busy_seconds.items()},
        idle,
        _overlap(stream, first, last),
        waited_fraction=(last.waited_seconds - first.waited_seconds) / spent.at_seconds,
        held=held,
        filling=held or last.begun - first.begun > (1 + FILLING_FRACTION) * count * setting.begun,
    )


def shown(streamed: Streamed, setting: StreamSetting, iterations: int) -> Trace:
    """Return the simulated trace, extended by repeating the counted iterations.

    The counted iterations are the steady state: simulating further would show the same lengths in other orders. So an
    iteration after the last simulated one repeats the works of a counted one, shifted by whole rounds of all counted
    iterations. Works that end in the next round are left out.

    Args:
        iterations: Least number of iterations, besides those of the warm-up.
    """
    spans, ends = list(streamed.spans), list(streamed.iterations)
    counted, since = ends[setting.warm_up :], ends[setting.warm_up].start_seconds
    again = [span for span in spans if span.start_seconds >= since]
    round_seconds = counted[-1].end_seconds - since
    for number in range(setting.counted, iterations):
        rounds, place = divmod(number, setting.counted)
        each = counted[place]
        ends.append(
            IterationSpan(
                iteration=each.iteration + rounds * setting.counted,
                start_seconds=each.start_seconds + rounds * round_seconds,
                end_seconds=each.end_seconds + rounds * round_seconds,
            )
        )
    until = ends[-1].end_seconds
    for rounds in range(1, -(-iterations // setting.counted)):
        later_seconds = rounds * round_seconds
        spans += [
            Span(
                name=span.name,
                pool=span.pool,
                iteration=span.iteration + rounds * setting.counted,
                start_seconds=span.start_seconds + later_seconds,
                end_seconds=span.end_seconds + later_seconds,
                activity=span.activity,
            )
            for span in again
            if span.end_seconds + later_seconds <= until
        ]
    return Trace(origin="simulated", spans=tuple(spans), iterations=tuple(ends))


def _overlap(stream: Stream, first: Count, last: Count) -> OverlapForecast:
    spent = last.reading.since(first.reading)
    learning = next(work.entry.work.pool for work in stream.works if work.learns)
    ages = Counter(last.ages)
    ages.subtract(first.ages)
    generated = last.generated - first.generated
    restarted = last.restarted - first.restarted
    dropped = last.dropped - first.dropped
    return OverlapForecast(
        staleness_mean=sum(age * number for age, number in ages.items()) / sum(ages.values()),
        staleness_max=float(max(age for age, number in ages.items() if number)),
        trainer_waits_fraction=_waiting(spent.busy_seconds.get(learning, 0.0), spent.at_seconds),
        generator_waits_fraction=_waiting(
            spent.busy_seconds.get(stream.generate.pool, 0.0), spent.at_seconds
        ),
        dropped_fraction=dropped / max(1, generated),
        recomputed_fraction=restarted / max(1, restarted + dropped + last.taken - first.taken),
        lent_fraction=(last.lent_seconds - first.lent_seconds) / spent.at_seconds,
        helped_fraction=(last.helped_seconds - first.helped_seconds) / spent.at_seconds,
    )


def _waiting(busy_seconds: float, seconds: float) -> float:
    return max(0.0, 1 - busy_seconds / seconds)
