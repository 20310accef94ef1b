"""Learning: an iteration's updates, each when its samples are there."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlplan.executor.control.continuous.events import Events
from rlplan.executor.control.continuous.preparing import SendBatch, give_back
from rlplan.executor.control.continuous.samples import BatchPrompts, Samples, row_widths
from rlplan.executor.control.continuous.sharing import SamplePath
from rlplan.executor.control.prompt_batches import Batch
from rlplan.executor.data.batches import Piece
from rlplan.executor.queue.ledger import Lease
from rlplan.executor.queue.transfer_queue import Read, ranges_of
from rlplan.plan import Plan


class Learning:
    """Carry out the updates of one iteration after another.

    In mode streaming an iteration learns from its own batch, in the order of its prompts; else, and where more is
    begun than is learnt from, each update learns from what is ready, the oldest first, as the staleness bound has it.

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
        self._pieces: dict[str, tuple[Piece, ...]] = {}

    @property
    def is_done(self) -> bool:
        """Tell whether all updates of the iteration are done."""
        return self._done == self._path.updates

    def begin(self, iteration: int) -> Mapping[str, tuple[Piece, ...]]:
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
