"""Token balancing: the rows of a mini-batch in micro-batches of about equal tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from torch import Tensor

from rlplan.executor.data.batches import PADDING
from rlplan.executor.data.packing import prompt_leaders, shared_part


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Hold the tokens of each row, and how many of them its prompt's other samples have too."""

    tokens: Sequence[int]
    shared: Sequence[int]

    def of(self, rows: Sequence[int]) -> int:
        """Return the packed tokens of samples of one prompt."""
        return sum(self.tokens[row] for row in rows) - (len(rows) - 1) * self.shared[rows[0]]


def balanced_rows(
    tokens: Tensor, parts: Tensor, micro_batch: int, *, multiple: int = 1
) -> list[list[int]]:
    """Return the rows of micro-batches of at most `micro_batch` sequences and about equal tokens.

    As few micro-batches as hold all rows. Samples of one prompt, which share its tokens in a packed
    row, go together: the most tokens first, each to the micro-batch that has the fewest and room
    (Graham 1969, longest processing time first). They are cut where they are more than a micro-batch
    holds, where no micro-batch has room for all of them, and where one would stay empty.

    Args:
        tokens: Shape (B, T).
        parts: What stands where. Shape (B, T).
        multiple: The number of micro-batches is divisible by it; with fewer rows some are empty.
    """
    sizes = _Sizes((parts != PADDING).sum(dim=1).tolist(), shared_part(parts).sum(dim=1).tolist())
    count = -(-len(tokens) // micro_batch)
    count = -(-count // multiple) * multiple
    pieces: list[list[int]] = []
    for row, leader in enumerate(prompt_leaders(tokens, parts).tolist()):
        if row == leader:
            pieces.append([])
        pieces[-1].append(row)
    pieces = [part for rows in pieces for part in _cut(rows, -(-len(rows) // micro_batch), sizes)]
    while len(pieces) < min(count, len(tokens)):
        largest = max((rows for rows in pieces if len(rows) > 1), key=sizes.of)
        pieces.remove(largest)
        pieces += _cut(largest, 2, sizes)
    return _balanced(pieces, count, micro_batch, sizes)


def _cut(rows: list[int], count: int, sizes: _Sizes) -> list[list[int]]:
    """Return samples of one prompt in so many parts of about equal tokens."""
    if count == 1:
        return [rows]
    return _balanced([[row] for row in rows], count, -(-len(rows) // count), sizes)


def _balanced(
    pieces: Sequence[list[int]], count: int, capacity: int, sizes: _Sizes
) -> list[list[int]]:
    """Return `count` sets of at most `capacity` rows, which have room for all; pieces stay together."""
    held: list[list[int]] = [[] for _ in range(count)]
    weights = [0] * count
    waiting = [(-sizes.of(rows), rows) for rows in pieces]
    heapify(waiting)
    while waiting:
        _, rows = heappop(waiting)
        most = max(capacity - len(each) for each in held)
        fits = min(most, len(rows))
        open_ones = [index for index in range(count) if capacity - len(held[index]) >= fits]
        lightest = min(open_ones, key=lambda index: (weights[index], len(held[index]), index))
        held[lightest] += rows[:fits]
        weights[lightest] += sizes.of(rows[:fits])
        if rows[fits:]:
            heappush(waiting, (-sizes.of(rows[fits:]), rows[fits:]))
    return [sorted(rows) for rows in held]
