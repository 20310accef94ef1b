"""Consumers of the sample queue: tasks that prepare samples add columns, tasks that train learn from them.

Fixed shares of a batch make a run repeat itself to the last bit, whatever ends when. Where a batch is learnt from in its
order (`Plan.learns_in_order`), what is inferred and learnt from is shared out like that, since the rows of a pass round each
other's sums; a rule judges row by row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from rlplan.dataflow import SHARES_AHEAD, Task
from rlplan.executor.control.dispatcher import Batch, Pieces
from rlplan.executor.control.feeds.events import Events
from rlplan.executor.control.feeds.samples import BatchPrompts, SamplePath, Samples, row_widths
from rlplan.executor.queue.ledger import Lease, Ledger
from rlplan.executor.queue.transfer_queue import HeldPiece, Read, Write, is_lost, ranges_of
from rlplan.plan import Plan


class SendBatch(Protocol):
    """Send tasks on a batch, and call a function when they are done."""

    def __call__(self, tasks: tuple[Task, ...], batch: Batch, then: Callable[[], None]) -> None:
        """Return at once."""


class WriteColumns(Protocol):
    """Write columns to the queue."""

    def __call__(
        self,
        pieces: Mapping[str, Sequence[HeldPiece]],
        attempts: Mapping[int, int],
        lost: Callable[[Write], None],
    ) -> None:
        """Return at once; the function is called for what a storage actor took along."""


class Preparing:
    """Let tasks prepare samples as they come."""

    def __init__(
        self,
        plan: Plan,
        path: SamplePath,
        samples: Samples,
        events: Events,
        prompts: BatchPrompts,
        send: SendBatch,
        write: WriteColumns,
    ) -> None:
        self._plan, self._tasks, self._samples = plan, path.ahead, samples
        self._events, self._prompts, self._send, self._write = events, prompts, send, write
        self._under_way = dict.fromkeys((task.name for task in path.ahead), 0)

    def go_on(self) -> None:
        """Take what is ready for each task, and send it."""
        for task in self._tasks:
            for share in self._shares(task):
                if self._under_way[task.name] >= SHARES_AHEAD:
                    break
                self._take(task, share)

    def _shares(self, task: Task) -> Iterator[list[int]]:
        """Yield samples that are ready and go through a task together, until there are none."""
        ledger, batch = self._samples.ledger, self._plan.job.workload.sequences
        if comes_in_fixed_shares(self._plan, task):
            rows = share_rows(self._plan, task)
            ready = ledger.ready(task.name)
            for number in sorted({sample // batch for sample in ready}):
                yield from fixed_shares(ledger, task.name, number * batch, batch, rows)
            return
        while ready := sorted(ledger.ready(task.name)):
            if task.has_model:
                yield ready[: share_rows(self._plan, task)]
            else:  # a rule knows a batch's prompts by their rows
                number = ready[0] // batch
                yield [sample for sample in ready if sample // batch == number]

    def _take(self, task: Task, share: Sequence[int]) -> None:
        lease = self._samples.ledger.take(task.name, share)
        self._under_way[task.name] += 1
        numbered = not task.has_model or comes_in_fixed_shares(self._plan, task)
        number = share[0] // self._plan.job.workload.sequences
        widths = (
            self._prompts.widths(number)
            if self._plan.learns_in_order
            else row_widths(self._samples.queue, share)
        )
        rows = [s % self._plan.job.workload.sequences for s in share] if numbered else None
        read = self._samples.queue.read(lease, *widths, rows=rows)
        self._events.when(
            list(read.done.values()),
            lambda _: self._run(task, read, number, rows, widths[0]),
            lambda: self._give_back(task, lease, read),
        )

    def _run(
        self, task: Task, read: Read, number: int, rows: list[int] | None, prompt_width: int
    ) -> None:
        """Send a task on what was read."""
        lease = read.lease
        self._samples.ledger.secure(lease)
        numbers = rows if rows is not None else list(range(len(lease.samples)))
        batch = Batch(number=number, rows=ranges_of(numbers), pieces=dict(read.pieces))
        samples = dict(zip(numbers, lease.samples, strict=True))
        self._send((task,), batch, lambda: self._made(task, lease, batch, samples, prompt_width))

    def _made(
        self,
        task: Task,
        lease: Lease,
        batch: Batch,
        samples: Mapping[int, int],
        prompt_width: int,
    ) -> None:
        """Write what a task has made."""
        self._under_way[task.name] -= 1
        pieces = {
            key: [
                HeldPiece(
                    samples=[
                        samples[row] for start, stop in piece.rows for row in range(start, stop)
                    ],
                    prompt_width=prompt_width,
                    reference=piece.reference,
                )
                for piece in batch.pieces[key]
            ]
            for key in task.outputs
        }
        attempts = dict(zip(lease.samples, lease.attempts, strict=True))
        # Rows that are lost before this arrives are generated, and so prepared, again.
        self._write(pieces, attempts, lambda _: None)
        self._samples.queue.finish(lease)

    def _give_back(self, task: Task, lease: Lease, read: Read) -> None:
        """Take back what could not be read."""
        self._under_way[task.name] -= 1
        give_back(self._samples, [lease], read)


def share_rows(plan: Plan, task: Task) -> int:
    """Return the rows of a fixed share of a task."""
    return plan.tasks[task.name].share_rows(plan.job.workload.samples_per_prompt)


def comes_in_fixed_shares(plan: Plan, task: Task) -> bool:
    """Tell whether it matters with which others a sample is taken.

    Ranks that gather weights or exchange experts in every pass need a share each.
    """
    meets = plan.tasks[task.name].meets_in_passes
    return task.has_model and (plan.learns_in_order or meets)


def fixed_shares(
    ledger: Ledger, task: str, first: int, count: int, rows: int
) -> Iterator[list[int]]:
    """Yield what is left of the fixed shares of a batch all of whose samples are ready.

    Args:
        first: Sample with which the batch begins.
        count: Samples of the batch.
        rows: Of a share; the last one may have fewer.
    """
    for start in range(first, first + count, rows):
        share = range(start, min(start + rows, first + count))
        left = [sample for sample in share if ledger.wants(task, sample)]
        if left and all(ledger.is_ready(task, sample) for sample in left):
            yield left


class Learning:
    """Carry out the updates of one iteration after another.

    Where the plan learns in order, an iteration learns from its own batch, in the order of its prompts; else each update
    learns from what is ready, the oldest first, as the staleness bound has it.

    Args:
        texts_of: Returns a reference to the texts that are mixed into an iteration's updates.

    Attributes:
        iteration: The one that goes on.
        ages: How many updates the weights lacked that began each sample that it learns from.
        generated: Tokens of these samples: `response_tokens`, and all `tokens`; and `turns`, where they are episodes.
    """

    def __init__(
        self,
        plan: Plan,
        path: SamplePath,
        samples: Samples,
        events: Events,
        prompts: BatchPrompts,
        send: SendBatch,
        texts_of: Callable[[int], Any],
    ) -> None:
        self._plan, self._path, self._samples = plan, path, samples
        self._events, self._prompts, self._send = events, prompts, send
        self._texts_of = texts_of
        self._sent = self._done = path.updates
        self._is_reading = False
        self.iteration = -1
        self.ages: list[int] = []
        self.generated: dict[str, float] = {}
        self._pieces: Pieces = {}

    @property
    def is_done(self) -> bool:
        """Tell whether all updates of the iteration are done."""
        return self._done == self._path.updates

    def begin(self, iteration: int) -> Pieces:
        """Begin an iteration; return what will hold its columns."""
        assert self.is_done, "iterations follow each other"
        self.iteration, self._sent, self._done = iteration, 0, 0
        self.ages, self.generated = [], {"response_tokens": 0.0, "tokens": 0.0}
        if self._plan.job.environments:
            self.generated["turns"] = 0.0
        self._pieces = {}
        return self._pieces

    def go_on(self) -> None:
        """Take the samples of the next update, if they are there."""
        if self._is_reading or self._sent == self._path.updates:
            return
        samples = self._next_samples()
        if samples is None:
            return
        size = len(samples)
        if self._plan.learns_in_order:
            widths = self._prompts.widths(self.iteration)
        else:
            widths = row_widths(self._samples.queue, samples)
        rows = [self._sent * size + row for row in range(size)]
        ledger = self._samples.ledger
        leases = [ledger.take(task.name, samples) for task in self._path.trains]
        keys = frozenset[str]().union(
            *(self._samples.queue.keys_of(task.name) for task in self._path.trains)
        )
        read = self._samples.queue.read(leases[0], *widths, rows=rows, keys=keys)
        self._is_reading = True
        self._events.when(
            list(read.done.values()),
            lambda _: self._learn(leases, read, rows),
            lambda: self._give_back(leases, read),
        )

    def _next_samples(self) -> list[int] | None:
        """Return what the next update learns from; None where it is not there yet."""
        work, updates = self._plan.job.workload, self._path.updates
        if not self._plan.learns_in_order:
            return self._samples.chosen(work.prompts // updates)
        count, size = work.sequences, work.sequences // updates
        first = self.iteration * count + self._sent * size
        samples = list(range(first, first + size))
        return samples if self._samples.is_ready(samples) else None

    def _learn(self, leases: Sequence[Lease], read: Read, rows: Sequence[int]) -> None:
        """Send an update on what was read."""
        samples = leases[0].samples
        for lease in leases:
            self._samples.ledger.secure(lease)
        self.ages += self._samples.ages(samples, self.iteration)
        for sample in samples:
            size = self._samples.queue.sizes[sample]
            self.generated["response_tokens"] += size.response_tokens
            self.generated["tokens"] += size.prompt_tokens + size.behind_prompt
            if "turns" in self.generated:
                self.generated["turns"] += size.turns
        batch = Batch(
            number=self.iteration,
            rows=ranges_of(rows),
            pieces=dict(read.pieces),
            updates=1 if self._path.updates > 1 else None,
        )
        if any("pretrain" in task.inputs for task in self._path.trains):
            batch.pieces["pretrain"] = self._texts_of(self.iteration)
        self._sent, self._is_reading = self._sent + 1, False
        tasks = (*self._path.at_start, *self._path.trains)
        self._send(tasks, batch, lambda: self._learnt(leases, batch))

    def _learnt(self, leases: Sequence[Lease], batch: Batch) -> None:
        for key, pieces in batch.pieces.items():
            self._pieces[key] = (*self._pieces.get(key, ()), *pieces)
        for lease in leases:
            self._samples.queue.finish(lease)
        self._samples.note_learnt(leases[0].samples)
        self._done += 1

    def _give_back(self, leases: Sequence[Lease], read: Read) -> None:
        self._is_reading = False
        give_back(self._samples, leases, read)


def give_back(samples: Samples, leases: Sequence[Lease], read: Read) -> None:
    """Give leases back of which a storage actor was lost, and replace it."""
    for (unit, life), reference in read.done.items():
        if is_lost(reference):
            samples.again += samples.queue.replace(unit, life)
    for lease in leases:
        samples.again += samples.ledger.give_back(lease)
