"""Whole sequences end to end in one row: linear layers see no padding, and micro-batches weigh alike.

Sequences are padded on the left of the prompt and on the right of the response. A packed row holds
their tokens one after another; attention sees them apart (`executor.attention`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from executor.batches import PADDING


@dataclass(frozen=True, slots=True, eq=False)
class SequenceSlots:
    """Say where the tokens of a packed row stand when every sequence has a row of its own.

    Attributes:
        count: Sequences, B.
        width: Tokens of the longest one, W.
        taken: Packed position of each of the B * W places; any token where a sequence is shorter.
        places: Place of each packed token. Shape (L,).
        dense: Whether both orders are the same, so that nothing need be moved.
    """

    count: int
    width: int
    taken: Tensor
    places: Tensor
    dense: bool


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Hold the tokens of a micro-batch in one row of L, filler at its end.

    Attributes:
        tokens: Shape (1, L).
        positions: Position of each token in its sequence. Shape (1, L).
        slots: Which tokens attend to each other.
        rows, columns: Where each of the n real tokens stood in the padded batch. Shape (n,).
        shape: (B, T) of the padded batch.
    """

    tokens: Tensor
    positions: Tensor
    slots: SequenceSlots
    rows: Tensor
    columns: Tensor
    shape: tuple[int, int]

    @property
    def length(self) -> int:
        """Return L, the filler included."""
        return self.tokens.shape[1]

    def predictions_at_tokens(self, said: Tensor) -> Tensor:
        """Return what each position says of the next token, at that token's place. Shape (B, T).

        The first token of a sequence is predicted by nothing: zero, as all padding.

        Args:
            said: Entry i is what position i says of the token at i + 1. Shape (L - 1,).
        """
        count = self.rows.numel()
        # Filler has no place; the first row's first token follows nobody either.
        follows = self.positions[0, 1:count] > 0
        kept = torch.where(follows, said[: max(0, count - 1)], torch.zeros_like(said[:1]))
        placed = said.new_zeros(self.shape)
        return placed.index_put((self.rows[1:], self.columns[1:]), kept)

    def last_positions(self) -> Tensor:
        """Return the packed position of each sequence's last token. Shape (B,)."""
        lengths = torch.bincount(self.rows, minlength=self.shape[0])
        return lengths.cumsum(0) - 1


def pack(tokens: Tensor, parts: Tensor, *, length: int = 0, multiple: int = 1) -> Packed:
    """Return the tokens of padded sequences in one row.

    Args:
        tokens: Shape (B, T).
        parts: What stands where. Shape (B, T).
        length: Least L; the filler attends to no sequence.
        multiple: L is divisible by it.
    """
    present = parts != PADDING
    rows, columns = present.nonzero(as_tuple=True)
    filled = packed_tokens(parts)
    total = -(-max(length, filled, 1) // multiple) * multiple
    positions = tokens.new_zeros(1, total)
    positions[0, :filled] = (present.cumsum(dim=1) - 1)[present]
    packed = tokens.new_zeros(1, total)
    packed[0, :filled] = tokens[present]
    return Packed(
        tokens=packed,
        positions=positions,
        slots=_slots(present.sum(dim=1), rows, positions[0], filled),
        rows=rows,
        columns=columns,
        shape=(tokens.shape[0], tokens.shape[1]),
    )


def packed_tokens(parts: Tensor) -> int:
    """Return how many tokens padded sequences have between them."""
    return int((parts != PADDING).sum())


def _slots(lengths: Tensor, rows: Tensor, positions: Tensor, filled: int) -> SequenceSlots:
    if filled == 0:
        lengths = positions.new_zeros(1)
    width = max(1, int(lengths.max()))
    starts = lengths.cumsum(0) - lengths
    places = positions.new_zeros(positions.shape)
    places[:filled] = rows * width + positions[:filled]
    offsets = torch.arange(width, device=positions.device)
    inside = offsets < lengths[:, None]
    taken = torch.where(inside, starts[:, None] + offsets, 0).flatten()
    dense = taken.numel() == filled == positions.numel()
    return SequenceSlots(lengths.numel(), width, taken, places, dense)


def balanced_rows(
    lengths: Sequence[int], micro_batch: int, *, multiple: int = 1
) -> list[list[int]]:
    """Return the rows of micro-batches of at most `micro_batch` sequences and about equal tokens.

    As few micro-batches as hold all rows; the longest row first, each to the micro-batch that has
    the fewest tokens and room (Graham 1969, longest processing time first).

    Args:
        lengths: Tokens of each row.
        multiple: The number of micro-batches is divisible by it; some may then be empty.
    """
    count = -(-len(lengths) // micro_batch)
    count = -(-count // multiple) * multiple
    held: list[list[int]] = [[] for _ in range(count)]
    weights = [0] * count
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        open_ones = [index for index in range(count) if len(held[index]) < micro_batch]
        lightest = min(open_ones, key=lambda index: (weights[index], len(held[index]), index))
        held[lightest].append(row)
        weights[lightest] += lengths[row]
    return [sorted(rows) for rows in held]
