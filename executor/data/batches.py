"""What travels between workers: references to columns of rows, with the rows that they hold.

A row is one sequence of the global batch. The controller passes `Piece`s on (references with row
ranges) and never sees a tensor; a worker gets just the pieces that overlap its rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

# What stands at a position of a sequence: the column `parts`. An observation is what an environment said between
# two turns: read as a prompt is, and not shared by the samples of one.
PADDING, PROMPT, RESPONSE, OBSERVATION = 0, 1, 2, 3

# Numbers of batches of prompts that are sampled in place of others: the iteration's number plus a multiple of this, which is far
# above any iteration's number.
ROUND_STRIDE = 2**20

Rows = tuple[tuple[int, int], ...]
Array = npt.NDArray[Any]
Columns = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Piece:
    """Hold a reference to columns (name to array, rows first) of the given row ranges."""

    rows: Rows
    reference: Any


def count_rows(rows: Rows) -> int:
    """Return how many rows the ranges hold."""
    return sum(stop - start for start, stop in rows)


def row_numbers(rows: Rows) -> npt.NDArray[np.int64]:
    """Return the numbers of rows, in their order. Shape (rows,)."""
    return np.array([row for start, stop in rows for row in range(start, stop)], dtype=np.int64)


@lru_cache(maxsize=256)  # the same few splits in every iteration
def split_rows(rows: Rows, parts: int, *, block: int, updates: int = 1) -> tuple[Rows, ...]:
    """Cut each of `updates` equal mini-batches into `parts`, whole blocks of `block` rows each.

    A part holds its share of every mini-batch, in their order, so that an optimizer step sees the
    same rows in any layout. Where blocks do not divide evenly, the first parts get one more.
    """
    count = count_rows(rows)
    assert count % (block * updates) == 0, "mini-batches hold whole blocks"
    size = count // updates
    shares: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
    for update in range(updates):
        start = update * size
        for part, share in enumerate(shares):
            bounds = [start + block * _cut(size // block, parts, edge) for edge in (part, part + 1)]
            share += rows_at(rows, *bounds)
    return tuple(tuple(share) for share in shares)


def rows_at(rows: Rows, first: int, last: int) -> Rows:
    """Return the rows from the first position to before the last, counted through the ranges."""
    found, passed = [], 0
    for start, stop in rows:
        low, high = max(first - passed, 0), min(last - passed, stop - start)
        if low < high:
            found.append((start + low, start + high))
        passed += stop - start
    return tuple(found)


def common_rows(rows: Rows, others: Rows) -> Rows:
    """Return the rows that are also among others, in the order of the first."""
    shared = ((max(a, c), min(b, d)) for a, b in rows for c, d in others)
    return tuple((start, stop) for start, stop in shared if start < stop)


def shifted(rows: Rows, by: int) -> Rows:
    """Return the ranges with `by` added to every row's number."""
    return tuple((start + by, stop + by) for start, stop in rows)


def whole_blocks(numbers: Sequence[int], block: int) -> Rows:
    """Return the rows of blocks of `block` rows, given the blocks' numbers; adjacent blocks give one range."""
    return tuple(joined_ranges((number * block, (number + 1) * block) for number in numbers))


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges, each (first, last + 1), with adjacent ones merged."""
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def _cut(blocks: int, parts: int, edge: int) -> int:
    whole, rest = divmod(blocks, parts)
    return whole * edge + min(edge, rest)


def left_padded(rows: Sequence[Sequence[int] | Array], fill: int = 0) -> tuple[Array, Array]:
    """Return rows of tokens padded on the left, and where they have tokens. Shape (rows, longest)."""
    width = max(map(len, rows))
    tokens = np.full((len(rows), width), fill, dtype=np.int64)
    present = np.zeros(tokens.shape, dtype=bool)
    for index, row in enumerate(rows):
        tokens[index, width - len(row) :] = row
        present[index, width - len(row) :] = True
    return tokens, present


def overlapping(pieces: Sequence[Piece], rows: Rows) -> tuple[Piece, ...]:
    """Return the pieces that hold any of the rows."""
    return tuple(
        piece
        for piece in pieces
        if any(max(a, c) < min(b, d) for a, b in piece.rows for c, d in rows)
    )


def assemble(rows: Rows, held: Sequence[tuple[Rows, Columns]]) -> Columns:
    """Return the columns of `rows`, in their order, out of pieces that hold them between them.

    One array is passed on without a copy where one piece holds all rows in a run.
    """
    slices = [part for span in rows for part in _slices(span, held)]
    names = list(held[0][1])
    return {
        name: _joined([held[index][1][name][start:stop] for index, start, stop in slices])
        for name in names
    }


def _joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _slices(
    span: tuple[int, int], held: Sequence[tuple[Rows, Columns]]
) -> Iterator[tuple[int, int, int]]:
    """Yield (piece, start, stop) in positions of the pieces' own arrays, covering the span."""
    position, stop = span
    while position < stop:
        index, offset, reach = _holder(position, held)
        until = min(stop, reach)
        yield index, offset, offset + until - position
        position = until


def _holder(position: int, held: Sequence[tuple[Rows, Columns]]) -> tuple[int, int, int]:
    """Return which piece holds a row, where in its arrays, and up to which row it goes on."""
    for index, (rows, _) in enumerate(held):
        offset = 0
        for start, stop in rows:
            if start <= position < stop:
                return index, offset + position - start, stop
            offset += stop - start
    raise AssertionError(f"no piece holds row {position}")


def joined_columns(
    inputs: Mapping[str, Sequence[Rows]], rows: Rows, pieces: Sequence[Columns]
) -> Columns:
    """Return the columns of `rows` of all inputs.

    Args:
        inputs: By data key, the rows of each of its pieces.
        pieces: The pieces' columns, in the same order.
    """
    given = iter(pieces)
    columns: Columns = {}
    for held in inputs.values():
        columns |= assemble(rows, [(each, next(given)) for each in held])
    return columns


# The engine's log-probabilities, when the ratios of the loss use those of the trainer.
ROLLOUT_LOG_PROBS = "rollout_log_probs"

# Columns of the greedy baseline stand beside those of the samples.
BASELINE = "baseline_"


def as_baseline(outputs: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return a task's outputs as those of the greedy responses, data keys and columns renamed."""
    return {
        BASELINE + key: {BASELINE + name: column for name, column in columns.items()}
        for key, columns in outputs.items()
    }


def sequences_for(output: str, columns: Columns) -> tuple[Array, Array]:
    """Return the tokens and parts that an output of an infer task is about."""
    prefix = BASELINE if output.startswith(BASELINE) else ""
    return columns[f"{prefix}tokens"], columns[f"{prefix}parts"]


def column_of(output: str) -> str:
    """Return what a model gives out for a data key: `log_probs`, `values` or `scores`."""
    if output.endswith("log_probs"):
        return "log_probs"
    return "values" if output.endswith("values") else "scores"
