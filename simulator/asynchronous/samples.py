"""Samples between generation and training: which may be begun, which may be taken, and when."""

import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import simpy

from rlplan.simulator.asynchronous.setting import LEAST_SEQUENCES, StreamSetting
from rlplan.simulator.workload import evenly
from rlplan.workload import Workload


@dataclass(slots=True, eq=False)
class Sample:
    """Hold a unit of learning: all responses of a prompt, or a single response.

    Attributes:
        number: In the order in which samples were begun, from 0.
        version: Version of the weights that began it, as the number of iterations whose updates they include.
        left: Responses that have not ended or are not prepared.
        unended: Responses that have not ended.
        prompt: Tokens of the prompt.
        tokens: Prompt and response tokens of all its responses.
        made: Response tokens of the responses that have ended.
        at: Its responses, by replica and number there.
    """

    number: int
    version: int
    left: int
    unended: int = 0
    prompt: int = 0
    tokens: int = 0
    made: int = 0
    ended_at: int = 0
    gone: bool = False
    at: list[tuple["Holder", int]] = field(default_factory=list)


class Holder(Protocol):
    """Describe the part of a replica that samples use."""

    def withdraw(self, sequence: int) -> None:
        """Abort a response before its end."""


# Prompt tokens, response tokens and the sample of each response that goes to one replica.
Bundle = list[tuple[int, int, Sample]]


def endless_lengths(workload: Workload, setting: StreamSetting) -> Iterator[tuple[int, int]]:
    """Yield prompt and response tokens by response, batch after batch, each batch shuffled with a fixed seed.

    The lengths of a batch are evenly spaced quantiles of the distribution. If the simulated replicas stand for more, the
    longest length is that of the whole batch. Small batches are spaced over several batches together, so that their
    longest responses are, on average, no longer than those of random batches. A response ends where prompt and response have
    the most tokens that a sequence may have, as in batches: buffers, and a cache of one sequence, hold no more.
    """
    most = workload.max_total_tokens
    sequences, together = setting.prompts * setting.samples, batches_together(setting)
    prompts = evenly(workload.prompt_tokens, setting.prompts * together)
    responses = evenly(workload.response_tokens, sequences * together)
    if setting.whole_replicas > setting.replicas:
        whole = sequences * together * setting.whole_replicas // setting.replicas
        responses[-1] = evenly(workload.response_tokens, whole)[-1]
    seed = 0
    while True:
        generator = np.random.default_rng(seed)
        prompt_order = np.repeat(generator.permutation(prompts), setting.samples)
        following = generator.permutation(responses)
        if most is not None:
            following = np.maximum(1, np.minimum(following, most - prompt_order))
        pairs = (prompt_order, following)
        yield from zip(*(each.astype(np.int64).tolist() for each in pairs), strict=True)
        seed += 1


def batches_together(setting: StreamSetting) -> int:
    """Return how many batches together have evenly spaced quantiles as their lengths."""
    return math.ceil(LEAST_SEQUENCES / (setting.prompts * setting.samples))


def batch_tokens(workload: Workload, setting: StreamSetting) -> float:
    """Return the mean prompt and response tokens of an iteration's samples, before any is dropped."""
    lengths, together = endless_lengths(workload, setting), batches_together(setting)
    sequences = setting.prompts * setting.samples * together
    return sum(sum(next(lengths)) for _ in range(sequences)) / together


class SampleQueue:
    """Keep samples from their beginning until they are learnt from or dropped.

    With bounded ages, a sample may be taken only if samples of older weights can still be learnt from in time: no sample
    ever exceeds the staleness bound, and an iteration waits for samples that would. Without a bound, any sample that has
    ended may be taken. Where trainers take batches, a sample is taken in the iteration that it was begun for.

    Attributes:
        version: Version of the generators' weights, as the number of iterations whose updates they include.
        begun: Samples that were begun so far.
        ages: Number of samples that were learnt from, by age in updates.
        taken_tokens: Prompt and response tokens of the samples that were taken.
        dropped_tokens: Response tokens of the samples that were dropped.
        waited_seconds: During which training waited for samples.
        waited_samples: Samples that were not ready when training asked for them.
        most_units: Units that are under way at the most.
        held: How many times generators got new weights when all allowed samples had been begun already.
        prepare: Called with a response that has ended, and its tokens; None hands it on at once.
        refill: Called when all responses of a sample have ended and another sample may be begun.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        setting: StreamSetting,
        lengths: Iterator[tuple[int, int]],
    ) -> None:
        self.environment, self.setting = environment, setting
        self._lengths = lengths
        self.most_units = setting.units_with(setting.replicas)
        self.version = 0
        self._quota = setting.quota(0)  # units that may have been begun
        self.begun = self.taken = self.dropped = 0
        self.ages: Counter[int] = Counter()
        self.taken_tokens = self.dropped_tokens = 0
        self.waited_seconds, self.held = 0.0, 0
        self.waited_samples = 0
        self._complete = 0  # samples of which all responses have ended, neither taken nor dropped
        self._wanted: tuple[int, simpy.Event] | None = None
        self.prepare: Callable[[Sample, int], None] | None = None
        self.refill: Callable[[], None] | None = None
        self._unended = 0  # samples of which a response has not ended
        self._open: Sample | None = None  # begun, with responses that no replica has yet
        self._unbegun = 0  # responses of it
        self._alive: Counter[int] = Counter()  # begun and neither taken nor dropped, by version
        self._ready: dict[int, deque[Sample]] = {}
        self._under_way: dict[int, dict[Sample, None]] = {}
        self._ended = 0
        self._over = -1  # the last iteration that has all its samples
        self._came: simpy.Event | None = None

    def renew(self, version: int) -> None:
        """Let generators have weights of a version."""
        self.held += self.begun >= self.setting.quota(self.version)
        self.version = version
        self._count_quota()

    def _count_quota(self) -> None:
        setting, version = self.setting, self.version
        self._quota = 0 if setting.last_iteration(version) <= self._over else setting.quota(version)

    def next_bundle(self) -> Bundle | None:
        """Begin the next responses that go to one replica; None where no more may be begun."""
        if not self._goes_on:
            return None
        found: Bundle = []
        while len(found) < self.setting.bundle and self._goes_on:
            found.append(self._next())
        return found

    @property
    def _goes_on(self) -> bool:
        """Tell whether a response may be begun."""
        if self._open is not None:
            return True
        return self.begun < self._quota and self._unended < self.most_units

    def _next(self) -> tuple[int, int, Sample]:
        sample = self._open
        if sample is None:
            unit = self.setting.unit
            sample = self._open = Sample(self.begun, self.version, unit, unit)
            self._unbegun = self.setting.unit
            self.begun += 1
            self._unended += 1
            self._alive[self.version] += 1
            self._under_way.setdefault(self.version, {})[sample] = None
        self._unbegun -= 1
        if self._unbegun == 0:
            self._open = None
        prompt, response = next(self._lengths)
        sample.prompt = prompt
        sample.tokens += prompt + response
        return prompt, response, sample

    def end(self, sample: Sample, tokens: int) -> None:
        """Note that a response of so many tokens has ended."""
        if sample.gone:
            self.dropped_tokens += tokens
            return
        sample.made += tokens
        sample.unended -= 1
        if not sample.unended:
            self._unended -= 1
            self._count_complete(1)
        if self.prepare is None:
            self.hand_on(sample)
        else:
            self.prepare(sample, tokens)
        if not sample.unended and self.refill is not None:
            self.refill()

    @property
    def complete(self) -> int:
        """Return the samples whose responses have all ended, and that training has not taken."""
        return self._complete

    @property
    def exhausted(self) -> bool:
        """Tell whether no response may be begun before new weights come."""
        return self._open is None and self.begun >= self._quota

    def until_complete(self, count: int) -> Generator[simpy.Event, object, None]:
        """Wait until the responses of so many samples have ended, or of all that may be begun."""
        count = min(count, self._quota - self.taken - self.dropped)
        if self._complete < count:
            event = self.environment.event()
            self._wanted = count, event
            yield event

    def _count_complete(self, change: int) -> None:
        self._complete += change
        if self._wanted is not None and self._complete >= self._wanted[0]:
            self._wanted[1].succeed()
            self._wanted = None

    def hand_on(self, sample: Sample) -> None:
        """Note that a response has ended, and gone through what prepares it."""
        if sample.gone:
            return
        sample.left -= 1
        if sample.left:
            return
        sample.at.clear()
        self._ended += 1
        sample.ended_at = self._ended
        del self._under_way[sample.version][sample]
        self._ready.setdefault(sample.version, deque()).append(sample)
        if self._came is not None:
            self._came.succeed()
            self._came = None

    def collect(self, count: int, iteration: int) -> Generator[simpy.Event, object, int]:
        """Take so many samples as they end; return their tokens."""
        tokens, asked_seconds = 0, self.environment.now
        self.waited_samples += max(0, count - self._complete)
        for _ in range(count):
            while (sample := self._take(iteration)) is None:
                self._came = self.environment.event()
                yield self._came
            tokens += sample.tokens
        self.waited_seconds += self.environment.now - asked_seconds
        return tokens

    def _take(self, iteration: int) -> Sample | None:
        """Return the sample that ended first of those that may be taken now."""
        found = self._of_batch(iteration) if self.setting.takes_batches else self._first()
        if found is None:
            return None
        self._ready[found.version].remove(found)
        self._leave(found.version)
        self.taken += 1
        self._count_complete(-1)
        self.taken_tokens += found.tokens
        self.ages[iteration - found.version] += 1
        return found

    def _of_batch(self, iteration: int) -> Sample | None:
        """Return the sample that ended first of those that were begun for an iteration."""
        ready = (each for version in self._ready.values() for each in version)
        own = (each for each in ready if each.number // self.setting.begun == iteration)
        return min(own, key=lambda each: each.ended_at, default=None)

    def _first(self) -> Sample | None:
        """Return the sample that ended first of those whose taking lets no other get too old."""
        best: Sample | None = None
        alive = 0
        for version in sorted(self._alive):
            ready = self._ready.get(version)
            if ready and (best is None or ready[0].ended_at < best.ended_at):
                best = ready[0]
            alive += self._alive[version]
            room = self._room(self.setting.last_iteration(version))
            if self.setting.bounds_ages and alive >= room:
                break  # what is newer must not take their places
        return best

    def _room(self, iteration: int) -> int:
        """Return how many samples can still be taken, or dropped, until the end of an iteration."""
        return (iteration + 1) * self.setting.begun - self.taken - self.dropped

    def _leave(self, version: int) -> None:
        self._alive[version] -= 1
        if not self._alive[version]:
            del self._alive[version]

    def drop_due(self, iteration: int) -> None:
        """Drop what no later iteration may learn from: more was begun than is learnt from."""
        if self.setting.takes_batches:
            self._drop_batch(iteration)
            return
        if not self.setting.bounds_ages:
            return
        self._over = iteration
        self._count_quota()
        for version in [
            each for each in self._alive if self.setting.last_iteration(each) <= iteration
        ]:
            for sample in self._ready.pop(version, ()):
                self._drop(sample)
            for sample in self._under_way.pop(version, {}):
                self._drop(sample)
                for replica, sequence in sample.at:
                    replica.withdraw(sequence)

    def _drop_batch(self, iteration: int) -> None:
        """Drop what is left of the units of an iteration, whatever weights began it; those not begun never are."""
        after = (iteration + 1) * self.setting.begun
        for version in tuple(self._alive):
            ready, begun = self._ready.get(version, deque()), self._under_way.get(version, {})
            for sample in [each for each in (*ready, *begun) if each.number < after]:
                if sample in begun:
                    del begun[sample]
                else:
                    ready.remove(sample)
                self._drop(sample)
                for replica, sequence in sample.at:
                    replica.withdraw(sequence)
        self.dropped += max(0, after - self.begun)
        self.begun = max(self.begun, after)

    def _drop(self, sample: Sample) -> None:
        sample.gone = True
        if sample.unended:
            self._unended -= 1
        else:
            self._count_complete(-1)
        if sample is self._open:
            self._open = None
        self.dropped += 1
        self.dropped_tokens += sample.made
        self._leave(sample.version)
