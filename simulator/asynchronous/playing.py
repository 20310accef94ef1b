"""The playing of streaming and asynchronous iterations: generators, training, and weights between them."""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import simpy

from rlplan.simulator.asynchronous.cores import Cores
from rlplan.simulator.asynchronous.episodes import EndlessPlans, EpisodeArrivals
from rlplan.simulator.asynchronous.generators import GeneratingReplica, Generators
from rlplan.simulator.asynchronous.meter import Meter, Reading
from rlplan.simulator.asynchronous.pools import PieceWork, Pools, learning, preparing
from rlplan.simulator.asynchronous.preparation import Preparation
from rlplan.simulator.asynchronous.samples import SampleQueue, batch_tokens, endless_lengths
from rlplan.simulator.asynchronous.setting import StreamSetting
from rlplan.simulator.asynchronous.training import Training
from rlplan.simulator.environments.host import HostShare
from rlplan.simulator.generation.arrivals import Arriving, arriving
from rlplan.simulator.generation.batching.joining import Calls
from rlplan.simulator.generation.episodes.waves import arriving_episodes
from rlplan.simulator.generation.replica import Replica
from rlplan.simulator.timeline.engine import Work
from rlplan.trace import IterationSpan, Span
from rlplan.workload.work import Workload

Steps = Generator[simpy.Event, object, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Hold what streams: generators, what learns from them, and how weights go over.

    Attributes:
        replica: Of the engine.
        time_factor: How long its steps take at the site, as a multiple of what they cost.
        generate: The work that generators do.
        works: What each piece of an iteration goes through.
        transition: Weights on their way to generators; None where that takes no time.
        transition_seconds: How long they take.
        pools: All pools of devices.
        order: By pool, names in the order in which they get the pool when several wait.
        host: What each replica has of the host, where responses are episodes.
        calls: In which waves go on, that new responses may join; None: the engine batches as `replica` says.
        in_step: Whether a whole batch is at the replicas, whose waves follow each other; those of episodes turn by turn.
        write_seconds: From the end of responses until works that prepare them by themselves may read them.
        call_seconds: Of the call for weights, beside preparation that goes on by itself.
        cores: Of the host, where devices are cores; infinite where they have processors of their own.
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

    @property
    def slots(self) -> float:
        """Return the responses with which a replica takes no others.

        Calls begin whole prompts, for which there has to be room; those of a batch in step are there together.
        This project's executor lets episodes wait at a replica for an instance; others do so before it has them.
        """
        if self.in_step:
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


@dataclass(frozen=True, slots=True)
class Streamed:
    """Hold what happened, and what was counted at the end of each iteration."""

    spans: Sequence[Span]
    iterations: Sequence[IterationSpan]
    counts: Sequence[Count]


def play_stream(stream: Stream) -> Streamed:
    """Return what happens in all iterations of a stream's setting."""
    floor = _Floor(stream)
    main = floor.environment.process(floor.run())
    floor.environment.run(until=main)
    spans = sorted(
        (*floor.spans, *floor.pools.spans),
        key=lambda span: (span.start_seconds, span.pool, span.name),
    )
    return Streamed(spans, floor.iterations, floor.counts)


class _Floor:
    """Hold both sides, and bring the one's weights to the other."""

    def __init__(self, stream: Stream) -> None:
        self.stream, setting = stream, stream.setting
        self.environment = environment = simpy.Environment()
        generating = stream.generate.pool
        self.meter = Meter(stream.pools, generating, setting.replicas)
        lengths = endless_lengths(stream.workload, setting)
        self.queue = SampleQueue(environment, setting, lengths)
        plans, cores = EndlessPlans(stream.workload, setting), Cores(environment, stream.cores)
        replicas = [
            GeneratingReplica(
                environment,
                self._sequences(plans),
                stream.time_factor,
                stream.slots,
                cores,
            )
            for _ in range(setting.replicas)
        ]
        self.generators = Generators(environment, replicas, self.queue, self.meter)
        self.pools = Pools(environment, stream.works, cores, self.meter)
        tokens = batch_tokens(stream.workload, setting)
        self.preparation = self._preparation(tokens) if setting.ahead else None
        works = learning(stream.works) if setting.ahead else stream.works
        self.training = Training(
            environment, works, stream.order, self.queue, self.pools, tokens, prepared=setting.ahead
        )
        self.spans: list[Span] = []
        self.iterations: list[IterationSpan] = []
        self.counts: list[Count] = []

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
        return EpisodeArrivals(self.environment, state, plans)

    def _preparation(self, tokens: float) -> Preparation:
        """Return works that take responses as they end."""
        stream, setting = self.stream, self.stream.setting
        found = Preparation(
            self.environment,
            preparing(stream.works),
            self.pools,
            batch_tokens=tokens,
            whole=setting.learnt * setting.unit,
            unit=setting.unit,
            write_seconds=stream.write_seconds,
            prepared=self.queue.hand_on,
        )
        self.queue.prepare = found.end
        return found

    def run(self) -> Steps:
        """Run all iterations."""
        setting, start_seconds, began_seconds = self.stream.setting, 0.0, 0.0
        for number in range(setting.iterations):
            if self.preparation:
                self.preparation.iteration = number
            yield from self.training.iteration(number, setting)
            if (number + 1) % setting.sync_every == 0:
                version = self.queue.version
                stopped = self.generators.stop(setting.in_flight)
                if setting.in_flight == "drain":  # weights are called for when nothing is under way
                    yield stopped
                if self.preparation:
                    yield from self._send_weights()
                yield stopped
                self._note(self.stream.generate, version, began_seconds)
                yield from self._transition(number)
                self.generators.resume(number + 1)
                began_seconds = self.environment.now
            now = self.environment.now
            self.iterations.append(
                IterationSpan(iteration=number, start_seconds=start_seconds, end_seconds=now)
            )
            self.counts.append(self._count())
            start_seconds = now

    def _send_weights(self) -> Steps:
        """Call for weights, which are sent behind what their pool was sent before."""
        transition = self.stream.transition
        if transition is None:
            return
        held = yield from self.pools.take(transition.holds)
        yield self.pools.cores.work(self.stream.call_seconds)
        self.pools.release(held)

    def _transition(self, iteration: int) -> Steps:
        transition = self.stream.transition
        if transition is None:
            return
        start_seconds = self.environment.now
        self.meter.work(start_seconds, transition.name, transition.holds, 1)
        yield self.environment.timeout(self.stream.transition_seconds)
        self.meter.work(self.environment.now, transition.name, transition.holds, -1)
        self._note(transition, iteration, start_seconds)

    def _note(self, work: Work, iteration: int, start_seconds: float) -> None:
        self.spans.append(work.span(iteration, start_seconds, self.environment.now))

    def _count(self) -> Count:
        queue = self.queue
        return Count(
            self.meter.read(self.environment.now),
            self.generators.generated,
            self.generators.restarted,
            queue.dropped_tokens,
            queue.taken_tokens,
            dict(queue.ages),
            queue.waited_seconds,
            queue.begun,
            queue.held,
        )
