"""Preparation: tasks that take samples from the queue and put columns beside them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from rlplan.dataflow import SHARES_AHEAD, Task
from rlplan.executor.control.continuous.events import Events
from rlplan.executor.control.continuous.samples import BatchPrompts, Samples, row_widths
from rlplan.executor.control.continuous.sharing import (
    SamplePath,
    comes_in_fixed_shares,
    fixed_shares,
    share_rows,
)
from rlplan.executor.control.prompt_batches import Batch
from rlplan.executor.queue.ledger import Lease
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


def give_back(samples: Samples, leases: Sequence[Lease], read: Read) -> None:
    """Give leases back of which a storage actor was lost, and replace it."""
    for (unit, life), reference in read.done.items():
        if is_lost(reference):
            samples.again += samples.queue.replace(unit, life)
    for lease in leases:
        samples.again += samples.ledger.give_back(lease)
