"""Storage actors of the transfer queue: rows by sample, columns by task output, without padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from executor.data.batches import Array, Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """Say which row of some padded columns is a sample's.

    Attributes:
        piece: Of the pieces that are given, which one holds it.
        index: Row in that piece.
        prompt_width: Columns that the piece keeps for prompts, padding on the left.
        prompt_tokens: Of the sample.
        response_tokens: Of the sample.
    """

    sample: int
    piece: int
    index: int
    prompt_width: int
    prompt_tokens: int
    response_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedRead:
    """Ask for columns of samples, padded: prompts on the left, responses on the right."""

    samples: Sequence[int]
    keys: Sequence[str]
    prompt_width: int
    response_width: int


class Storage:
    """Keep whole rows in the memory of one process: a row's columns lie together."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, dict[str, Array]]] = {}
        self._prompt_tokens: dict[int, int] = {}

    def write(self, key: str, rows: Sequence[StoredRow], *pieces: Columns) -> int:
        """Keep a task's output of some samples, which stands in pieces; return its bytes."""
        written = 0
        for row in rows:
            first = row.prompt_width - row.prompt_tokens
            stop = row.prompt_width + row.response_tokens
            kept: dict[str, Array] = {}
            for name, column in pieces[row.piece].items():
                values = column[row.index]
                kept[name] = np.array(values[first:stop] if column.ndim > 1 else values)
                written += kept[name].nbytes
            self._rows.setdefault(row.sample, {})[key] = kept
            self._prompt_tokens[row.sample] = row.prompt_tokens
        return written

    def read(self, wanted: PaddedRead) -> tuple[Columns | int, ...]:
        """Return the columns of each key, padded with zeros, and last the number of rows."""
        return (*(self._padded(key, wanted) for key in wanted.keys), len(wanted.samples))

    def drop(self, samples: Sequence[int]) -> None:
        """Forget samples that every task has had."""
        for sample in samples:
            self._rows.pop(sample, None)
            self._prompt_tokens.pop(sample, None)

    def held_bytes(self) -> int:
        """Return the bytes of all rows."""
        return sum(
            column.nbytes
            for row in self._rows.values()
            for columns in row.values()
            for column in columns.values()
        )

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
