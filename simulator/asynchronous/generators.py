"""Generating replicas as SimPy processes: they take new responses as there is room, and new weights as told."""

import heapq
import math
from collections.abc import Generator, Sequence

import simpy

from rlplan.plan import InFlight
from rlplan.simulator.asynchronous.cores import Cores
from rlplan.simulator.asynchronous.episodes import EpisodeArrivals
from rlplan.simulator.asynchronous.meter import Meter
from rlplan.simulator.asynchronous.samples import Sample, SampleQueue
from rlplan.simulator.generation.arrivals import Arriving
from rlplan.simulator.generation.batching.running import RunningSet

Steps = Generator[simpy.Event, object, None]


class GeneratingReplica:
    """Run one replica of the engine for as long as the training lasts.

    Args:
        time_factor: How long its steps take at the site, as a multiple of what they cost.
        slots: Most responses that it has at a time.
        cores: That replicas share with other works where each is a core.

    Attributes:
        under_way: Responses that it has.
        generated: Response tokens made so far, those of dropped responses included.
        restarted: Tokens of prompts and responses computed again for new weights.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        state: Arriving | EpisodeArrivals,
        time_factor: float,
        slots: float,
        cores: Cores,
    ) -> None:
        self.environment, self.time_factor, self.slots = environment, time_factor, slots
        self.cores = cores
        self.under_way = self.generated = self.restarted = 0
        self._state = state
        self._jumping_state = state if isinstance(state, RunningSet | EpisodeArrivals) else None
        self._samples: dict[int, tuple[Sample, int]] = {}  # with their response tokens
        self._leaving: list[int] = []
        self._stopping: InFlight | None = None
        self._stopped: simpy.Event | None = None
        self._woken: simpy.Event | None = None
        self._jumping = False
        self._process: simpy.Process | None = None

    def start(self, queue: SampleQueue, meter: Meter) -> None:
        """Begin to generate what the queue has."""
        self._process = self.environment.process(self._run(queue, meter))

    def begin(self, bundle: Sequence[tuple[int, int, Sample]]) -> None:
        """Take responses."""
        for prompt, response, sample in bundle:
            sequence = self._state.arrive(prompt, response)
            self._samples[sequence] = (sample, response)
            sample.at.append((self, sequence))
        self.under_way += len(bundle)

    def stop(self, in_flight: InFlight) -> simpy.Event:
        """Ask it to stop for new weights; return what happens when it has."""
        self._stopping, self._stopped = in_flight, self.environment.event()
        if in_flight != "drain":
            self._interrupt()
        if self._woken is not None:
            self._wake()
        return self._stopped

    def resume(self) -> None:
        """Go on with new weights."""
        if self._stopping == "recompute":
            self.restarted += self._state.restart()
        self._stopping = None
        self._wake()

    def withdraw(self, sequence: int) -> None:
        """Take a response out at the end of the step that is under way."""
        if sequence in self._samples:
            self._leaving.append(sequence)
            self._interrupt()

    def _wake(self) -> None:
        if self._woken is not None:
            self._woken.succeed()
            self._woken = None

    def _interrupt(self) -> None:
        if self._jumping:
            self._jumping = False
            assert self._process is not None
            self._process.interrupt()

    def _run(self, queue: SampleQueue, meter: Meter) -> Steps:
        state, runs = self._state, False
        episodes = state if isinstance(state, EpisodeArrivals) else None
        while True:
            if episodes is not None:
                episodes.settle()
            if state.ended:
                self._hand_out(queue)
            if self._leaving:
                self._let_go(queue)
            if self._stopping is None:
                while self.under_way < self.slots and (bundle := queue.next_bundle()):
                    self.begin(bundle)
            goes_on = self._stopping in (None, "drain") and state.busy
            if goes_on != runs:
                runs = goes_on
                meter.generate(self.environment.now, 1 if runs else -1)
            if runs:
                yield from self._turn()
                continue
            if self._stopped is not None and not (self._stopping == "drain" and self.under_way):
                self._stopped.succeed()
                self._stopped = None
            self._woken = self.environment.event()
            yield from self._rest(self._woken)

    def _rest(self, woken: simpy.Event) -> Steps:
        """Wait until it is woken, or an environment has stepped."""
        returns = self._state.next_return if isinstance(self._state, EpisodeArrivals) else math.inf
        if returns == math.inf:
            yield woken
            return
        left = max(0.0, returns - self.environment.now)
        yield self.environment.any_of([woken, self.environment.timeout(left)])
        if self._woken is woken:
            self._woken = None

    def _hand_out(self, queue: SampleQueue) -> None:
        """Hand out what has ended."""
        ended = self._state.ended
        for sequence in ended:
            sample, response = self._samples.pop(sequence)
            self.under_way -= 1
            self.generated += response
            queue.end(sample, response)
        ended.clear()

    def _let_go(self, queue: SampleQueue) -> None:
        for sequence in self._leaving:
            found = self._samples.pop(sequence, None)
            if found is None:
                continue  # it ended with the step
            tokens = self._state.withdraw(sequence)
            self.under_way -= 1
            self.generated += tokens
            queue.end(found[0], tokens)
        self._leaving.clear()

    def _turn(self) -> Steps:
        """Take the next prefill or decode steps."""
        state, environment = self._state, self.environment
        begun, before = environment.now, state.prefill + state.decode
        jump = state.turn()
        if jump is None:
            seconds = self.time_factor * (state.prefill + state.decode - before)
            yield self.cores.work(seconds)
            return
        jumping = self._jumping_state
        assert jumping is not None, "a wave is taken at once"
        try:
            self._jumping = True
            yield environment.timeout(self.time_factor * jump.seconds)
            self._jumping = False
        except simpy.Interrupt:
            passed = environment.now - begun
            jump = jumping.part_of(jump, passed / self.time_factor)
            yield environment.timeout(max(0.0, self.time_factor * jump.seconds - passed))
        jumping.follow(jump)


class Generators:
    """Run all replicas, and bring them new weights together."""

    def __init__(
        self,
        environment: simpy.Environment,
        replicas: Sequence[GeneratingReplica],
        queue: SampleQueue,
        meter: Meter,
    ) -> None:
        self.environment, self.replicas, self.queue = environment, replicas, queue
        self._share_out()
        for replica in replicas:
            replica.start(queue, meter)

    def stop(self, in_flight: InFlight) -> simpy.Event:
        """Stop all replicas; return what happens when the last of them has."""
        return self.environment.all_of([each.stop(in_flight) for each in self.replicas])

    def resume(self, version: int) -> None:
        """Go on with the weights of a version, and begin what they allow."""
        self.queue.renew(version)
        self._share_out()
        for replica in self.replicas:
            replica.resume()

    def _share_out(self) -> None:
        """Begin what may be begun, each time where there is most room."""
        room = [(each.under_way, place) for place, each in enumerate(self.replicas)]
        heapq.heapify(room)
        while room:
            _, place = heapq.heappop(room)
            replica = self.replicas[place]
            if replica.under_way >= replica.slots:
                return
            bundle = self.queue.next_bundle()
            if bundle is None:
                return
            replica.begin(bundle)
            heapq.heappush(room, (replica.under_way, place))

    @property
    def generated(self) -> int:
        """Return the response tokens made so far."""
        return sum(each.generated for each in self.replicas)

    @property
    def restarted(self) -> int:
        """Return the tokens computed again for new weights so far."""
        return sum(each.restarted for each in self.replicas)
