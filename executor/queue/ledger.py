"""The queue's ledger: which columns of each sample exist, which tasks have taken it, and how much memory is free.

A state machine without processes and clocks, kept by the job's one controller. Every sample is handed to
every task exactly once:

    admit -> put, key by key -> take -> secure -> finish, task by task -> released after the last one
          -> dropped, before a task with effects has it

A storage unit that is lost takes its rows along. They are generated again, as a new attempt, for the tasks
that have not had them; a task that updates weights never gets a sample a second time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Describe a task that reads from the queue.

    Attributes:
        keys: The columns that it needs.
        has_effects: Whether it changes something outside the queue, such as weights. Then it never gets a sample twice;
            a task that only makes columns makes lost columns again.
    """

    keys: frozenset[str]
    has_effects: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Hold samples that were handed to a task.

    Attributes:
        attempts: For each sample, how many times its row was lost before; columns made from it count for that attempt only.
        units: For each sample, the storage unit of its row.
    """

    number: int
    task: str
    samples: tuple[int, ...]
    attempts: tuple[int, ...]
    units: tuple[int, ...]


@dataclass(slots=True)
class _Row:
    number: int  # in the order of admission
    unit: int
    reserved_bytes: int
    attempt: int = 0
    columns: set[str] = field(default_factory=set)
    leases: dict[str, int] = field(default_factory=dict)
    secured: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)

    @property
    def is_lost(self) -> bool:
        """Tell whether its columns were lost with a storage unit, and none was written again."""
        return self.attempt > 0 and not self.columns


class Ledger:
    """Keep account of the samples of a job's transfer queue.

    Args:
        readers: By task.
        units: Number of storage units.
        capacity_bytes: Limit on the bytes of all rows together; a sample counts with the most that it can take.
    """

    def __init__(self, readers: Mapping[str, Reader], units: int, capacity_bytes: int) -> None:
        self._keys = {task: reader.keys for task, reader in readers.items()}
        self._ends = frozenset(task for task, reader in readers.items() if reader.has_effects)
        self._capacity_bytes = capacity_bytes
        self._reserved_bytes, self._filled = [0] * units, 0
        # Samples that can be handed to each task now: looked up at every event of a run.
        self._ready: dict[str, set[int]] = {task: set() for task in readers}
        self._admitted = 0
        self._rows: dict[int, _Row] = {}
        self._leases: dict[int, Lease] = {}
        self._next_lease = 0

    @property
    def reserved_bytes(self) -> int:
        """Return the most bytes that the admitted samples can take."""
        return sum(self._reserved_bytes)

    def __contains__(self, sample: int) -> bool:
        return sample in self._rows

    def admit(self, samples: Sequence[int], most_bytes: Sequence[int]) -> bool:
        """Reserve memory for samples that are about to be generated, for all or none; a refusal is back-pressure.

        A storage unit is filled to its share before the next one: samples that are begun together are written and read
        together, with calls to one unit.

        Args:
            most_bytes: For each sample, the most bytes of all its columns.
        """
        wanted = sum(most_bytes)
        if self.reserved_bytes + wanted > self._capacity_bytes:
            return False
        unit = self._unit_for(wanted)
        self._reserved_bytes[unit] += wanted
        for sample, size in zip(samples, most_bytes, strict=True):
            assert sample not in self._rows, "a sample is admitted once"
            self._rows[sample] = _Row(self._admitted, unit, size)
            self._admitted += 1
            self._look_again(sample)
        return True

    def _unit_for(self, wanted_bytes: int) -> int:
        """Return the unit that is being filled; once it is full to its share, the emptiest one."""
        held, count = self._reserved_bytes, len(self._reserved_bytes)
        if (held[self._filled] + wanted_bytes) * count > self._capacity_bytes:
            self._filled = min(range(count), key=lambda each: held[each])
        return self._filled

    def place(self, sample: int) -> tuple[int, int] | None:
        """Return the storage unit and the attempt of a sample; None where no task needs it any more."""
        row = self._rows.get(sample)
        return None if row is None else (row.unit, row.attempt)

    def put(self, sample: int, attempt: int, key: str) -> bool:
        """Note that a column of a sample was written; return whether it counts.

        A column does not count if its row was lost after it was made.
        """
        row = self._rows.get(sample)
        if row is None or row.attempt != attempt:
            return False
        assert key not in row.columns, f"{key} of sample {sample} is made once"
        row.columns.add(key)
        self._look_again(sample)
        return True

    def wants(self, task: str, sample: int) -> bool:
        """Tell whether a task still needs a sample: it neither had it nor has it now."""
        row = self._rows.get(sample)
        return row is not None and task not in row.done and task not in row.leases

    def is_ready(self, task: str, sample: int) -> bool:
        """Tell whether a task can take a sample now: its columns exist, and the task has not had it."""
        return sample in self._ready[task]

    def ready(self, task: str) -> list[int]:
        """Return the samples that a task can take now, in the order of admission."""
        return sorted(self._ready[task], key=lambda sample: self._rows[sample].number)

    def take(self, task: str, samples: Iterable[int]) -> Lease:
        """Lease samples that are ready to a task."""
        taken = tuple(samples)
        rows = [self._rows[sample] for sample in taken]
        lease = Lease(
            number=self._next_lease,
            task=task,
            samples=taken,
            attempts=tuple(row.attempt for row in rows),
            units=tuple(row.unit for row in rows),
        )
        for sample, row in zip(taken, rows, strict=True):
            assert self.is_ready(task, sample), f"sample {sample} is not ready for {task}"
            row.leases[task] = lease.number
            self._ready[task].discard(sample)
        self._leases[lease.number] = lease
        self._next_lease += 1
        return lease

    def secure(self, lease: Lease) -> None:
        """Note that all rows of a lease were read, so that it survives the loss of their unit."""
        for _, row in self._leased_rows(lease):
            row.secured.add(lease.task)

    def give_back(self, lease: Lease) -> list[int]:
        """Revoke a lease that its task did not use; return the samples that must be generated again."""
        again = []
        for sample, row in self._leased_rows(lease):
            del row.leases[lease.task]
            secured = lease.task in row.secured
            row.secured.discard(lease.task)
            self._look_again(sample)
            if secured and row.is_lost and not self._ends <= row.done | row.secured:
                again.append(sample)
        del self._leases[lease.number]
        return again

    def finish(self, lease: Lease) -> list[int]:
        """Note that a task has consumed its samples; return those that all tasks have consumed, whose memory is free again.

        Rows that were lost before they were read do not count as consumed.
        """
        released = []
        for sample, row in self._leased_rows(lease):
            del row.leases[lease.task]
            row.secured.discard(lease.task)
            row.done.add(lease.task)
            if self._is_over(row):
                self._release(sample)
                released.append(sample)
            else:
                self._look_again(sample)
        del self._leases[lease.number]
        return released

    def drop(self, samples: Iterable[int]) -> None:
        """Forget samples that no task shall get any more; leases of them are void."""
        for sample in samples:
            assert not self._ends & self._rows[sample].leases.keys(), "an update is under way"
            self._release(sample)

    def lose(self, unit: int) -> list[int]:
        """Forget the rows of a storage unit; return the samples that must be generated again.

        Samples whose response has not been written yet, and samples that all tasks with effects have consumed or read, need
        not be generated again.
        """
        again = []
        for sample, row in list(self._rows.items()):
            if row.unit != unit:
                continue
            was_there = bool(row.columns)
            self._forget_attempt(row)
            self._look_again(sample)
            if self._is_over(row):
                self._release(sample)
            elif was_there and not self._ends <= row.done | row.secured:
                again.append(sample)
        return again

    def _forget_attempt(self, row: _Row) -> None:
        """Let tasks that make columns start again; rows that a task with effects has read stay with it."""
        row.attempt += 1
        row.columns.clear()
        row.done &= self._ends
        row.secured &= self._ends
        row.leases = {task: lease for task, lease in row.leases.items() if task in row.secured}

    def _is_over(self, row: _Row) -> bool:
        """Tell whether no task needs a row any more."""
        wanted = self._ends if row.is_lost and self._ends else self._keys.keys()
        return not row.leases and wanted <= row.done

    def _look_again(self, sample: int) -> None:
        """Update for which tasks a sample is ready, after a change."""
        row = self._rows[sample]
        for task, keys in self._keys.items():
            is_ready = keys <= row.columns and task not in row.done and task not in row.leases
            (self._ready[task].add if is_ready else self._ready[task].discard)(sample)

    def _release(self, sample: int) -> None:
        row = self._rows.pop(sample)
        for ready in self._ready.values():
            ready.discard(sample)
        self._reserved_bytes[row.unit] -= row.reserved_bytes

    def _leased_rows(self, lease: Lease) -> list[tuple[int, _Row]]:
        """Return the rows of a lease that are not void: they were not lost before they were read."""
        rows = ((sample, self._rows.get(sample)) for sample in lease.samples)
        return [
            (sample, row)
            for sample, row in rows
            if row is not None and row.leases.get(lease.task) == lease.number
        ]
