"""Storage actors of the transfer queue: rows by sample, columns by task output, without padding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from executor.data.batches import Array, Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """Say which rows of some padded columns are samples'.

    Attributes:
        piece: Of the pieces that are given, which one holds them.
        prompt_width: Columns that the piece keeps for prompts, padding on the left.
        rows: Of each sample its number, its row in that piece, and the tokens of its prompt and response.
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
    """Keep whole rows in the memory of one process: a row's columns lie together."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, dict[str, Array]]] = {}
        self._prompt_tokens: dict[int, int] = {}

    def write(self, rows_of: Mapping[str, Sequence[StoredRows]], *pieces: Columns) -> int:
        """Keep a task's outputs of some samples, by key, which stand in pieces; return their bytes."""
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
        """Return the columns of each key, padded with zeros, and last the number of rows."""
        return (*(self._padded(key, wanted) for key in wanted.keys), len(wanted.samples))

    def drop(self, samples: Sequence[int]) -> None:
        """Forget samples that every task has had, or none is to have."""
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
