"""The transfer queue on Ray: storage actors, and one ledger of which task gets which samples.

Columns go from worker to storage actor to worker as references; the controller sees numbers only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from ray.exceptions import ObjectLostError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlplan.executor.data.batches import Array, Columns, Piece, Rows, whole_blocks
from rlplan.executor.queue.ledger import Lease, Ledger, Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """Locate samples in a piece of padded columns.

    Attributes:
        piece: Index of the piece among those of a call.
        prompt_width: Width of the piece's prompts, padded on the left.
        rows: For each sample: its number, its row in the piece, the tokens of its prompt and of its response.
    """

    piece: int
    prompt_width: int
    rows: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedRead:
    """Ask for columns of samples, padded: prompts on the left, responses on the right."""

    samples: Sequence[int]
    keys: Sequence[str]
    prompt_width: int
    response_width: int


class Storage:
    """Keep whole rows in the memory of one process, all columns of a row together."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, dict[str, Array]]] = {}
        self._prompt_tokens: dict[int, int] = {}

    def write(self, rows_of: Mapping[str, Sequence[StoredRows]], *pieces: Columns) -> int:
        """Store a task's outputs for some samples, by key, out of pieces; return their bytes."""
        written = 0
        for key, held in rows_of.items():
            for stored in held:
                written += self._write_piece(key, stored, pieces[stored.piece])
        return written

    def _write_piece(self, key: str, stored: StoredRows, columns: Columns) -> int:
        written = 0
        for sample, index, prompt_tokens, response_tokens in stored.rows:
            first = stored.prompt_width - prompt_tokens
            stop = stored.prompt_width + response_tokens
            kept: dict[str, Array] = {}
            for name, column in columns.items():
                values = column[index]
                kept[name] = np.array(values[first:stop] if column.ndim > 1 else values)
                written += kept[name].nbytes
            self._rows.setdefault(sample, {})[key] = kept
            self._prompt_tokens[sample] = prompt_tokens
        return written

    def read(self, wanted: PaddedRead) -> tuple[Columns | int, ...]:
        """Return the columns of each key, padded with zeros, and finally the number of rows."""
        return (*(self._padded(key, wanted) for key in wanted.keys), len(wanted.samples))

    def drop(self, samples: Sequence[int]) -> None:
        """Forget samples that all tasks have consumed, or none shall get."""
        for sample in samples:
            self._rows.pop(sample, None)
            self._prompt_tokens.pop(sample, None)

    def _padded(self, key: str, wanted: PaddedRead) -> Columns:
        rows = [self._rows[sample][key] for sample in wanted.samples]
        width = wanted.prompt_width + wanted.response_width
        padded: Columns = {}
        for name, first in rows[0].items():
            if first.ndim == 0:
                padded[name] = np.stack([row[name] for row in rows])
                continue
            padded[name] = np.zeros((len(rows), width), dtype=first.dtype)
            for index, sample in enumerate(wanted.samples):
                start = wanted.prompt_width - self._prompt_tokens[sample]
                padded[name][index, start : start + len(rows[index][name])] = rows[index][name]
        return padded


@dataclass(frozen=True, slots=True)
class SampleSize:
    """Hold the tokens of a sample: of its prompt, its response, and the observations between its turns."""

    prompt_tokens: int
    response_tokens: int
    observed_tokens: int = 0
    turns: int = 1

    @property
    def behind_prompt(self) -> int:
        """Return the tokens after the prompt."""
        return self.response_tokens + self.observed_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPiece:
    """Hold a reference to padded columns of a task's output.

    Attributes:
        samples: Number of the sample of each row.
        prompt_width: Width of the prompts, padded on the left.
    """

    samples: Sequence[int]
    prompt_width: int
    reference: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Hold a write that was sent to a storage actor.

    Attributes:
        life: How many actors of the unit were replaced before this one.
        attempts: Attempt of each sample when the write was sent.
        done: Reference that is ready when the actor has written.
    """

    unit: int
    life: int
    keys: tuple[str, ...]
    attempts: Mapping[int, int]
    done: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Hold a read that was sent to storage actors.

    Attributes:
        pieces: By key, references to padded columns of rows.
        done: By (unit, life), a reference that is ready when the actor has answered.
    """

    lease: Lease
    pieces: Mapping[str, tuple[Piece, ...]]
    done: Mapping[tuple[int, int], Any]


class TransferQueue:
    """Keep the samples of a job on their way from the task that generates to those that train.

    Args:
        readers: By task, the columns that it reads.
        units: Number of storage actors.
        capacity_bytes: Limit on the bytes of all rows together.

    Attributes:
        ledger: The ledger of samples and tasks.
        sizes: Of the samples that are generated.
    """

    def __init__(self, readers: Mapping[str, Reader], units: int, capacity_bytes: int) -> None:
        self._readers = readers
        self.ledger = Ledger(readers, units, capacity_bytes)
        self.sizes: dict[int, SampleSize] = {}
        self._actors = [_start_storage() for _ in range(units)]
        self._lives = [0] * units

    def write(
        self, outputs: Mapping[str, Sequence[HeldPiece]], attempts: Mapping[int, int]
    ) -> list[Write]:
        """Send a task's outputs for samples to their storage actors, in one write for each actor.

        Args:
            outputs: By key. Their samples have sizes.
            attempts: Attempt of each sample; outputs of attempts that were lost meanwhile are left out.
        """
        by_unit: dict[int, dict[int, int]] = {}
        for sample, attempt in attempts.items():
            place = self.ledger.place(sample)
            if place is not None and place[1] == attempt:
                by_unit.setdefault(place[0], {})[sample] = attempt
        return [
            Write(
                unit=unit,
                life=self._lives[unit],
                keys=tuple(outputs),
                attempts=own,
                done=self._send_rows(unit, outputs, own),
            )
            for unit, own in by_unit.items()
        ]

    def _send_rows(
        self, unit: int, outputs: Mapping[str, Sequence[HeldPiece]], wanted: Mapping[int, int]
    ) -> Any:
        """Send rows of all keys with one call."""
        rows_of: dict[str, list[StoredRows]] = {}
        references: list[Any] = []
        for key, pieces in outputs.items():
            own = [piece for piece in pieces if not wanted.keys().isdisjoint(piece.samples)]
            rows_of[key] = self._stored_rows(own, wanted, len(references))
            references += [piece.reference for piece in own]
        return self._actors[unit].write.remote(rows_of, *references)

    def _stored_rows(
        self, pieces: Sequence[HeldPiece], wanted: Mapping[int, int], first: int
    ) -> list[StoredRows]:
        """Return where wanted rows stand in pieces, which are counted from a number on."""
        return [
            StoredRows(
                piece=number,
                prompt_width=piece.prompt_width,
                rows=tuple(
                    (sample, index, size.prompt_tokens, size.behind_prompt)
                    for index, sample in enumerate(piece.samples)
                    if sample in wanted
                    for size in (self.sizes[sample],)
                ),
            )
            for number, piece in enumerate(pieces, first)
        ]

    def note(self, write: Write) -> None:
        """Note that a write has arrived, so that its columns can be read."""
        for sample, attempt in write.attempts.items():
            for key in write.keys:
                self.ledger.put(sample, attempt, key)

    def keys_of(self, task: str) -> frozenset[str]:
        """Return the columns that a task needs."""
        return self._readers[task].keys

    def read(
        self,
        lease: Lease,
        prompt_width: int,
        response_width: int,
        *,
        rows: Sequence[int] | None = None,
        keys: frozenset[str] | None = None,
    ) -> Read:
        """Ask for the columns of a lease's samples.

        Args:
            rows: Ascending numbers for its samples; None numbers them from 0.
            keys: Columns; None takes those that its task needs.
        """
        keys_in_order = tuple(sorted(keys or self.keys_of(lease.task)))
        places: dict[int, list[int]] = {}
        for place, unit in enumerate(lease.units):
            places.setdefault(unit, []).append(place)
        pieces: dict[str, list[Piece]] = {key: [] for key in keys_in_order}
        done = {}
        for unit, own in places.items():
            wanted = PaddedRead(
                samples=[lease.samples[place] for place in own],
                keys=keys_in_order,
                prompt_width=prompt_width,
                response_width=response_width,
            )
            method = self._actors[unit].read.options(num_returns=len(keys_in_order) + 1)
            *columns, count = method.remote(wanted)
            held = ranges_of(own if rows is None else [rows[place] for place in own])
            for key, reference in zip(keys_in_order, columns, strict=True):
                pieces[key].append(Piece(held, reference))
            done[unit, self._lives[unit]] = count
        found = {key: tuple(held) for key, held in pieces.items()}
        return Read(lease=lease, pieces=found, done=done)

    def finish(self, lease: Lease) -> list[int]:
        """Note that a task has consumed its samples; free and return those that all tasks have consumed."""
        released = self.ledger.finish(lease)
        for unit, actor in enumerate(self._actors):
            own = [
                sample
                for sample, place in zip(lease.samples, lease.units, strict=True)
                if place == unit and sample not in self.ledger
            ]
            if own:
                actor.drop.remote(own)
        for sample in released:
            self.sizes.pop(sample, None)
        return released

    def drop(self, samples: Sequence[int]) -> None:
        """Free samples that no task shall get any more; their columns under way are ignored."""
        units = [place[0] for sample in samples if (place := self.ledger.place(sample))]
        self.ledger.drop(samples)
        for sample in samples:
            self.sizes.pop(sample, None)
        for unit in set(units):
            self._actors[unit].drop.remote(list(samples))

    def replace(self, unit: int, life: int) -> list[int]:
        """Replace a lost storage actor; return the samples that must be generated again.

        Args:
            life: Of the lost actor; nothing is done if it was replaced already.
        """
        if self._lives[unit] != life:
            return []
        self._lives[unit] += 1
        self._actors[unit] = _start_storage()
        return self.ledger.lose(unit)

    def stop(self) -> None:
        """End the storage actors."""
        for actor in self._actors:
            ray.kill(actor)


def _start_storage() -> Any:
    """Start a storage actor on this process's node: another one that is lost takes no samples along that are on their way."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Storage).options(num_cpus=0, scheduling_strategy=here).remote()


def is_lost(reference: Any) -> bool:
    """Wait for a reference; tell whether the actor that it comes from is lost, and not what the call was given."""
    try:
        ray.get(reference)
    except RayActorError:
        return True
    except ObjectLostError:
        return False
    return False


def ranges_of(numbers: Sequence[int]) -> Rows:
    """Return ascending row numbers as ranges."""
    return whole_blocks(numbers, 1)
