"""Generation replicas as processes on the engine: they begin responses while there is room, and stop for new weights.

If responses are episodes, their turns wait for environments in between.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import simpy

from rlplan.plan import InFlight
from rlplan.simulator.asynchronous.meter import Meter
from rlplan.simulator.asynchronous.samples import Bundle, Sample, SampleQueue
from rlplan.simulator.asynchronous.setting import StreamSetting
from rlplan.simulator.generation.batching.running import DecodeSteps, RunningSet
from rlplan.simulator.generation.episodes import Episode, EpisodeSet, EpisodeWaves
from rlplan.simulator.generation.playing import Arriving
from rlplan.simulator.generation.shares import episode_of
from rlplan.simulator.timeline.engine import Engine, Steps
from rlplan.simulator.workload import Episodes, usual_episodes
from rlplan.workload import Workload

# Episodes are shuffled with other seeds than lengths.
FIRST_SEED = 1_000_000


class EpisodeArrivals:
    """Give episodes the interface of a replica's sequences: each response is an episode.

    Attributes:
        ended: Responses that have ended, in that order; for the caller to empty.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        state: EpisodeSet | EpisodeWaves,
        plans: "EndlessPlans",
    ) -> None:
        self.environment, self.state, self.plans = environment, state, plans
        self.ended: list[int] = []

    @property
    def prefill(self) -> float:
        """Return the seconds of prefills so far."""
        return self.state.prefill

    @property
    def decode(self) -> float:
        """Return the seconds of decode steps so far."""
        return self.state.decode

    @property
    def busy(self) -> bool:
        """Tell whether there are turns to compute."""
        return self.state.busy

    @property
    def next_return(self) -> float:
        """Return when the next environment ends a step, in seconds; infinite where none steps."""
        return self.state.next_return

    def arrive(self, prompt: int, response: int) -> int:
        """Begin an episode with these prompt and response tokens; return its number."""
        number = self.state.begin(self.plans.episode(prompt, response), self.environment.now)
        self.settle()
        return number

    def withdraw(self, number: int) -> int:
        """Abort an episode; return the tokens that its current turn had made."""
        tokens = self.state.abandon(number)
        self.settle()
        return tokens

    def restart(self) -> int:
        """Evict all running turns, to be computed again first; return the tokens that they had."""
        return self.state.restart()

    def turn(self) -> DecodeSteps | None:
        """Do a prefill, or a step with prompts; if none is next, return the next decode steps."""
        return self.state.turn_at(self.environment.now)

    def part_of(self, jump: DecodeSteps, seconds: float) -> DecodeSteps:
        """Return the steps of a jump that begin within its first `seconds`, at least one."""
        return self._jumping.part_of(jump, seconds)

    def follow(self, jump: DecodeSteps) -> None:
        """Decode for the steps of a jump."""
        self._jumping.follow(jump)

    @property
    def _jumping(self) -> EpisodeSet:
        assert isinstance(self.state, EpisodeSet), "waves are taken at once"
        return self.state

    def settle(self) -> None:
        """Send turns that have ended to their environments, and queue turns whose environments have stepped."""
        self.state.follow_up(self.environment.now)
        self.state.catch_up(self.environment.now)
        self.ended += [number for number, _ in self.state.over]
        self.state.over.clear()


class EndlessPlans:
    """Draw episodes for responses, batch after batch, for all replicas together."""

    def __init__(self, workload: Workload, setting: StreamSetting) -> None:
        self.workload, self.setting = workload, setting
        self._rows = self._draw()

    def episode(self, prompt: int, response: int) -> Episode:
        """Return the episode of a prompt and response of so many tokens."""
        drawn, row, number = next(self._rows)
        found = episode_of(drawn, row, prompt, response, self.setting.samples, self.workload)
        return found._replace(prompt=number)

    def _draw(self) -> Iterator[tuple[Episodes, int, int]]:
        """Yield batches of episodes, the row of each, and a number for its prompt."""
        prompts, samples = self.setting.prompts, self.setting.samples
        batch = 0
        while True:
            generator = np.random.default_rng(FIRST_SEED + batch)
            drawn = usual_episodes(self.workload.environments, prompts, samples, generator)
            for row in range(prompts * samples):
                yield drawn, row, batch * prompts + row // samples
            batch += 1


class MovedResponse(NamedTuple):
    """Hold a response that one replica gives up and another one goes on with, its context prefilled anew.

    Attributes:
        tokens: Of the whole response.
        made: Of them so far.
    """

    sample: Sample
    tokens: int
    made: int


class GeneratingReplica:
    """Run one replica of the engine for as long as the training lasts.

    Args:
        time_factor: How long its steps take at the site, as a multiple of what they cost.
        slots: Most responses that it has at a time.

    Attributes:
        under_way: Responses that it has.
        generated: Response tokens made so far, those of dropped responses included.
        restarted: Tokens of prompts and responses computed again for new weights.
    """

    def __init__(
        self,
        engine: Engine,
        state: Arriving | EpisodeArrivals,
        time_factor: float,
        slots: float,
    ) -> None:
        self.environment, self.cores = engine.environment, engine.cores
        self.time_factor, self.slots = time_factor, slots
        self.under_way = self.generated = self.restarted = 0
        self._state = state
        self._jumping_state = state if isinstance(state, RunningSet | EpisodeArrivals) else None
        self._samples: dict[int, tuple[Sample, int]] = {}  # with their response tokens
        self._leaving: list[int] = []
        self._coming: list[MovedResponse] = []
        self._assigned: list[Bundle] = []
        self._stopping: InFlight | None = None
        self._stopped: simpy.Event | None = None
        self._woken: simpy.Event | None = None
        self._jumping = False
        self._process: simpy.Process | None = None

    def start(self, queue: SampleQueue, note: Callable[[float, int], object]) -> None:
        """Begin to generate what the queue has.

        Args:
            note: Called with the time in seconds and 1 where it begins to have responses under way, or -1 where it ends to.
        """
        self._process = self.environment.process(self._run(queue, note))

    def begin(self, bundle: Sequence[tuple[int, int, Sample]]) -> None:
        """Take responses."""
        for prompt, response, sample in bundle:
            sequence = self._state.arrive(prompt, response)
            self._samples[sequence] = (sample, response)
            sample.at.append((self, sequence))
        self.under_way += len(bundle)

    def assign(self, bundle: Bundle) -> None:
        """Begin responses after the current step."""
        self.under_way += len(bundle)
        self._assigned.append(bundle)
        self._interrupt()
        self._wake()

    def _begin_assigned(self) -> None:
        for bundle in self._assigned:
            self.under_way -= len(bundle)
            self.begin([each for each in bundle if not each[2].gone])
        self._assigned.clear()

    def give_up(self, count: int) -> list[MovedResponse]:
        """Give up the latest `count` responses, while the replica is stopped."""
        found = []
        for sequence in list(self._samples)[len(self._samples) - count :]:
            sample, tokens = self._samples.pop(sequence)
            made = self._state.withdraw(sequence)
            sample.at.remove((self, sequence))
            self.generated += made
            found.append(MovedResponse(sample, tokens, made))
        self.under_way -= len(found)
        return found

    def take_over(self, moved: Sequence[MovedResponse]) -> None:
        """Continue responses of other replicas, after the current step."""
        self.under_way += len(moved)
        self._coming += moved
        self._interrupt()
        self._wake()

    def _receive(self) -> None:
        """Queue the responses of other replicas, to be prefilled again."""
        coming, self._coming = self._coming, []
        for each in coming:
            if each.sample.gone:
                self.under_way -= 1
                continue
            assert isinstance(self._state, RunningSet), "waves and episodes stay where they are"
            sequence = self._state.go_on(each.sample.prompt, each.tokens, each.made)
            self._samples[sequence] = (each.sample, each.tokens)
            self.generated -= each.made
            self.restarted += each.sample.prompt + each.made if each.made else 0
            each.sample.at.append((self, sequence))

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

    def _run(self, queue: SampleQueue, note: Callable[[float, int], object]) -> Steps:
        state, runs = self._state, False
        episodes = state if isinstance(state, EpisodeArrivals) else None
        while True:
            if episodes is not None:
                episodes.settle()
            if state.ended:
                self._hand_out(queue)
            self._receive()
            self._begin_assigned()
            if self._leaving:
                self._let_go(queue)
            if self._stopping is None and not queue.setting.refills:
                while self.under_way < self.slots and (bundle := queue.next_bundle()):
                    self.begin(bundle)
            goes_on = self._stopping in (None, "drain") and state.busy
            if goes_on != runs:
                runs = goes_on
                note(self.environment.now, 1 if runs else -1)
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
    """Run all replicas, and bring them new weights together.

    Args:
        helpers: Replicas on lent GPUs; somebody else stops and resumes them.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        replicas: Sequence[GeneratingReplica],
        queue: SampleQueue,
        meter: Meter,
        helpers: Sequence[GeneratingReplica] = (),
    ) -> None:
        self.environment, self.replicas, self.queue = environment, replicas, queue
        self.helpers = helpers
        self._stopping = False
        self._taking = replicas
        self._share_out()
        if queue.setting.refills:
            queue.refill = self._refill
        for replica in replicas:
            replica.start(queue, meter.generate)
        for replica in helpers:
            replica.stop("recompute")
            replica.start(queue, _unmetered)

    def stop(self, in_flight: InFlight) -> simpy.Event:
        """Stop all replicas; return the event of the last one having stopped."""
        self._stopping = True
        return self.environment.all_of([each.stop(in_flight) for each in self.replicas])

    def resume(self, version: int, *, helped: bool = False) -> None:
        """Resume with the weights of a version, and begin the samples that it allows.

        Args:
            helped: Whether the helpers get their share of responses, those under way and new ones.
        """
        self._stopping = False
        self.queue.renew(version)
        if helped:
            move_evenly(self.replicas, self.helpers)
            self._take_with((*self.replicas, *self.helpers))
        self._share_out()
        for replica in self.replicas:
            replica.resume()

    def part_from_helpers(self) -> None:
        """Begin nothing more on lent GPUs, and no more at a time than the others may have."""
        self._take_with(self.replicas)

    def _take_with(self, replicas: Sequence[GeneratingReplica]) -> None:
        self._taking = replicas
        self.queue.most_units = self.queue.setting.units_with(len(replicas))

    def _share_out(self) -> None:
        """Begin all samples that may be begun, each on the replica with most room."""
        replicas = self._taking
        room = [(each.under_way, place) for place, each in enumerate(replicas)]
        heapq.heapify(room)
        while room:
            _, place = heapq.heappop(room)
            replica = replicas[place]
            if replica.under_way >= replica.slots:
                return
            bundle = self.queue.next_bundle()
            if bundle is None:
                return
            replica.begin(bundle)
            heapq.heappush(room, (replica.under_way, place))

    def _refill(self) -> None:
        """Begin new samples in the place of ended ones, each on the replica with the fewest responses under way."""
        while not self._stopping and (bundle := self.queue.next_bundle()):
            min(self._taking, key=lambda each: each.under_way).assign(bundle)

    @property
    def generated(self) -> int:
        """Return the response tokens made so far."""
        return sum(each.generated for each in (*self.replicas, *self.helpers))

    @property
    def restarted(self) -> int:
        """Return the tokens computed again for new weights, or by another replica, so far."""
        return sum(each.restarted for each in (*self.replicas, *self.helpers))


def _unmetered(at_seconds: float, change: int) -> None:
    """Ignore a replica on a lent pool, which `Lender.note` reports."""


def move_evenly(givers: Sequence[GeneratingReplica], takers: Sequence[GeneratingReplica]) -> None:
    """Move the latest responses of stopped replicas to others, until all have about as many."""
    part = -(-sum(each.under_way for each in givers) // (len(givers) + len(takers)))
    moved: list[MovedResponse] = []
    for each in givers:
        moved += each.give_up(max(0, each.under_way - part))
    hand_over(moved, takers)


def hand_over(moved: Sequence[MovedResponse], takers: Sequence[GeneratingReplica]) -> None:
    """Give each response to the replica with the fewest under way."""
    shares: list[list[MovedResponse]] = [[] for _ in takers]
    fewest = [(each.under_way, place) for place, each in enumerate(takers)]
    heapq.heapify(fewest)
    for each in moved:
        count, place = fewest[0]
        shares[place].append(each)
        heapq.heapreplace(fewest, (count + 1, place))
    for taker, share in zip(takers, shares, strict=True):
        if share:
            taker.take_over(share)
