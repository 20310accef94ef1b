"""The samples of a run: which prompt is begun next, with which weights, and what of it is in the queue.

How far generation may run ahead, and which prompts an iteration learns from, says `StalenessBound`. A version is an
iteration's update: weights of version v have learnt from v batches. A response that began with version v may be learnt
from in iterations up to v + staleness.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import (
    BYTES_PER_SAMPLE,
    BYTES_PER_TOKEN,
    DATASET_KEYS,
    Task,
    begun_work,
    parts_of_updates,
)
from rlplan.executor.data.batches import Columns
from rlplan.executor.data.workload import most_observed_tokens, response_lengths
from rlplan.executor.queue.ledger import Ledger, Reader
from rlplan.executor.queue.transfer_queue import TransferQueue
from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.workload import Workload, longest

# Storage actors on this machine: with two of them one goes on answering while the other one writes.
STORAGE_UNITS = 2
# Of each token: the version of the weights (int32), and where a trainer has log-probabilities of its own
# the engine's beside them (float32).
VERSION_BYTES = LOG_PROB_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePrompt:
    """Hold a prompt whose responses are begun and not learnt from.

    Attributes:
        number: In the stream of prompts.
        version: Of the weights that began the first of its responses.
        is_ready: Whether all of them are there, prepared.
    """

    number: int
    version: int
    is_ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessBound:
    """Say how old samples may be.

    Attributes:
        prompts: That are begun for an iteration; those beyond what it learns from are dropped when they are due.
        staleness: Most updates that the weights which began a response may lack when it is learnt from. A
            fraction lets that share of a batch be another update older.
    """

    prompts: int
    staleness: float

    @property
    def most_updates(self) -> int:
        """Return the most whole updates that any sample lacks."""
        return math.ceil(self.staleness)

    def most_begun(self, synced: int) -> int:
        """Return how many prompts may have been begun in all, with weights of a version in use.

        (v + n + eta) batches, with n iterations between two syncs and eta = staleness - (n - 1) batches begun
        ahead: whatever began with version v can then be learnt from by iteration v + staleness.
        """
        return math.floor((synced + 1 + self.staleness) * self.prompts)

    def is_due(self, version: int, iteration: int) -> bool:
        """Tell whether what began with a version is too old after an iteration."""
        return version + self.most_updates <= iteration

    def chosen(
        self, live: Sequence[LivePrompt], count: int, *, gone: int
    ) -> list[LivePrompt] | None:
        """Return what an update learns from: what is ready, the oldest version first; or None to wait.

        It waits for what would come too late afterwards: up to iteration w + staleness there is room for so
        many prompts of versions up to w, and all that are live must find some.

        Args:
            count: Prompts of the update.
            gone: Prompts that were learnt from, or dropped, before it.
        """
        ready = sorted(
            (each for each in live if each.is_ready), key=lambda each: (each.version, each.number)
        )[:count]
        if len(ready) < count:
            return None
        for version in {each.version for each in live}:
            older = sum(each.version <= version for each in live)
            room_later = (version + self.most_updates + 1) * self.prompts - gone - count
            if older - sum(each.version <= version for each in ready) > room_later:
                return None
        return ready


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePath:
    """Say which tasks stand where between generation and training.

    Attributes:
        ahead: Tasks that prepare samples as they come, through the queue.
        at_start: Tasks that prepare a whole batch when its iteration begins, for they need its weights.
        trains: Tasks that learn from it.
        updates: Parts of a batch that are learnt from one after another as each is there.
    """

    ahead: tuple[Task, ...]
    at_start: tuple[Task, ...]
    trains: tuple[Task, ...]
    updates: int


def sample_path(plan: Plan, tasks: Sequence[Task]) -> SamplePath:
    """Return the path of a plan's samples from generation to training."""
    trains = tuple(task for task in tasks if task.trains)
    prepares = tuple(task for task in tasks if not (task.trains or task.generates))
    trained = {task.role for task in trains}
    own = tuple(task for task in prepares if task.role in trained and task.has_model)
    updates = parts_of_updates(load_algorithm(plan.job.algorithm), plan.job)
    if not plan.flow.is_endless:
        return SamplePath(ahead=prepares, at_start=(), trains=trains, updates=updates)
    ahead = tuple(task for task in prepares if task not in own)
    return SamplePath(ahead=ahead, at_start=own, trains=trains, updates=updates)


class BatchPrompts:
    """Hand prompts out as columns, and remember how long they are.

    Args:
        prompts: Returns the prompts of a batch as columns.
    """

    def __init__(self, job: Job, prompts: Callable[[int], Columns]) -> None:
        self._job, self._prompts = job, prompts
        self._tokens: dict[int, list[int]] = {}
        self._most_response: dict[int, list[int]] = {}

    def columns(self, number: int) -> Columns:
        """Return the prompts of a batch as columns."""
        columns = self._prompts(number)
        self._tokens[number] = columns["prompt_present"].sum(axis=1).tolist()
        return columns

    def most_tokens(self, sample: int) -> int:
        """Return the most tokens that a sample can have."""
        number, row = divmod(sample, self._job.workload.sequences)
        if number not in self._tokens:
            self.columns(number)
        return self._tokens[number][row] + self._lengths(number)[row]

    def widths(self, number: int) -> tuple[int, int]:
        """Return the columns that a whole batch keeps for prompts, and behind them."""
        return max(self._tokens[number]), max(self._lengths(number))

    def forget(self, before: int) -> None:
        """Forget batches with lower numbers."""
        for known in (self._tokens, self._most_response):
            for number in [each for each in known if each < before]:
                del known[number]

    def _lengths(self, number: int) -> list[int]:
        if number not in self._most_response:
            observed = most_observed_tokens(self._job.environments)
            lengths = response_lengths(self._job, number) + observed
            self._most_response[number] = lengths.tolist()
        return self._most_response[number]


class Samples:
    """Keep account of prompts that are begun and not learnt from, above the queue that holds their samples.

    The queue has room for what the staleness bound lets be begun, at its longest.
    """

    def __init__(self, plan: Plan, path: SamplePath, prompts: BatchPrompts) -> None:
        work = plan.job.workload
        self._work, self._prompts, self._trains = work, prompts, path.trains
        begun = begun_work(work).prompts
        self.bound = StalenessBound(prompts=begun, staleness=plan.staleness)
        self._token_bytes, self._sample_bytes = _row_bytes(plan, path)
        most = self._bytes_of(_longest_tokens(work))
        live = self.bound.most_begun(0) * work.samples_per_prompt
        self.queue = TransferQueue(_readers(path), STORAGE_UNITS, live * most)
        self._versions: dict[int, int] = {}
        self._live: dict[int, None] = {}
        self._begun, self._next, self._left = 0, 0, list[int]()
        # Samples whose rows were lost: they are begun before anything new is.
        self.again: list[int] = []

    @property
    def ledger(self) -> Ledger:
        """Return the queue's ledger."""
        return self.queue.ledger

    @property
    def position(self) -> tuple[int, tuple[int, ...]]:
        """Return the next prompt of the stream, and those before it that are not learnt from."""
        return self._next, tuple(sorted([*self._live, *self._left]))

    @property
    def oldest_batch(self) -> int:
        """Return the number of the first batch of prompts that is still wanted."""
        return min([self._next, *self._live, *self._left]) // self._work.prompts

    def go_on_from(self, iterations: int, next_prompt: int, left: Sequence[int]) -> None:
        """Begin where a run was after some iterations."""
        self._begun = iterations * self.bound.prompts
        self._next, self._left = next_prompt, sorted(left)

    def may_begin(self, synced: int, most: int | None) -> bool:
        """Tell whether another prompt may be begun with weights of a version.

        Args:
            most: Prompts that are begun in all, as far as the run goes; None: it goes on.
        """
        bound = self.bound.most_begun(synced)
        return self._begun < (bound if most is None else min(bound, most))

    def begin_prompt(self, version: int) -> list[int]:
        """Return the samples of the next prompt; none where the queue has no room for them."""
        number = self._left[0] if self._left else self._next
        count = self._work.samples_per_prompt
        samples = list(range(number * count, (number + 1) * count))
        sizes = [self._bytes_of(self._prompts.most_tokens(sample)) for sample in samples]
        if not self.ledger.admit(samples, sizes):
            return []
        if self._left:
            self._left.pop(0)
        else:
            self._next += 1
        self._begun += 1
        self._live[number] = None
        self.note_begun(samples, version)
        return samples

    def note_begun(self, samples: Sequence[int], version: int) -> None:
        """Note with which weights samples are generated."""
        self._versions |= dict.fromkeys(samples, version)

    def is_ready(self, samples: Sequence[int]) -> bool:
        """Tell whether samples can be learnt from now."""
        return all(
            self.ledger.is_ready(task.name, sample) for sample in samples for task in self._trains
        )

    def chosen(self, prompts: int) -> list[int] | None:
        """Return the samples that an update learns from, prompt by prompt; or None to wait.

        Args:
            prompts: Of the update.
        """
        count = self._work.samples_per_prompt
        live = []
        for number in self._live:
            samples = range(number * count, (number + 1) * count)
            if not self.ledger.wants(self._trains[0].name, samples[0]):
                continue  # an update before this one has it
            oldest = min(self._versions[sample] for sample in samples)
            ready = self.is_ready(samples)
            live.append(LivePrompt(number=number, version=oldest, is_ready=ready))
        found = self.bound.chosen(live, prompts, gone=self._begun - len(live))
        if found is None:
            return None
        return [each.number * count + index for each in found for index in range(count)]

    def ages(self, samples: Sequence[int], iteration: int) -> list[int]:
        """Return how many updates the weights lacked that began samples; never more than is allowed."""
        ages = [iteration - self._versions[sample] for sample in samples]
        assert max(ages) <= self.bound.most_updates, "samples are learnt from in time"
        return ages

    def note_learnt(self, samples: Sequence[int]) -> None:
        """Note that samples were learnt from."""
        for sample in samples:
            del self._versions[sample]
            self._live.pop(sample // self._work.samples_per_prompt, None)

    def drop_due(self, iteration: int) -> list[int]:
        """Drop what is too old after an iteration, under way or not; return its samples.

        Where no more is begun than is learnt from, nothing ever is.
        """
        count, dropped = self._work.samples_per_prompt, list[int]()
        for number in list(self._live):
            samples = range(number * count, (number + 1) * count)
            if self.bound.is_due(min(self._versions[sample] for sample in samples), iteration):
                del self._live[number]
                dropped += samples
        for sample in dropped:
            del self._versions[sample]
        self.queue.drop(dropped)
        return dropped

    def _bytes_of(self, tokens: int) -> int:
        return tokens * self._token_bytes + self._sample_bytes


def _longest_tokens(work: Workload) -> int:
    """Return the most tokens of a sample; an episode's reset may give an observation as each of its turns does."""
    if not work.environments:
        return work.longest_sequence_tokens
    both = longest(work.prompt_tokens) + longest(work.response_tokens)
    return both + most_observed_tokens(work.environments)


def _row_bytes(plan: Plan, path: SamplePath) -> tuple[int, int]:
    """Return the bytes of a row for each token, and those besides."""
    keys = {"sequences", "log_probs"}.union(*(task.outputs for task in path.ahead))
    if plan.job.environments:
        keys.add("rule_scores")
    token = sum(BYTES_PER_TOKEN.get(key, 0) for key in keys) + VERSION_BYTES
    if plan.job.old_log_prob == "trainer":
        token += LOG_PROB_BYTES
    return token, sum(BYTES_PER_SAMPLE.get(key, 0) for key in keys)


def _readers(path: SamplePath) -> Mapping[str, Reader]:
    """Return what tasks read from the queue: not what comes from files, nor what is made at the start."""
    elsewhere = {*DATASET_KEYS, *(key for task in path.at_start for key in task.outputs)}

    def reader(task: Task) -> Reader:
        keys = {"sequences", *task.inputs} - elsewhere
        return Reader(keys=frozenset(keys), has_effects=task.trains)

    return {task.name: reader(task) for task in (*path.ahead, *path.trains)}


def row_widths(queue: TransferQueue, samples: Sequence[int]) -> tuple[int, int]:
    """Return the longest prompt of samples, and the most tokens behind one."""
    sizes = np.array(
        [
            (queue.sizes[sample].prompt_tokens, queue.sizes[sample].behind_prompt)
            for sample in samples
        ]
    )
    prompt, response = sizes.max(axis=0).tolist()
    return prompt, response
