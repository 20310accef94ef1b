"""Weights in buckets: which rows of which parameters travel together, and how they are written.

A layout's weights are never held a third time while they are brought to another layout: what is
under way is at most a bucket. Pure functions over entries and tensors, as in `rlplan.executor.weights.reshard`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from rlplan.executor.data.batches import joined_ranges
from rlplan.executor.model.building import EMBEDDING, HEAD
from rlplan.executor.weights.flat import Entry
from rlplan.executor.weights.reshard import ShardLayout, Span, overlap

WEIGHT_BYTES = torch.float32.itemsize  # shards hold fp32, whatever is multiplied in


@dataclass(frozen=True, slots=True)
class Block:
    """Name rows of a parameter: what is cut no further on its way.

    Attributes:
        first, last: Rows along the parameter's first dimension, the last one left out.
    """

    entry: Entry
    first: int
    last: int

    @property
    def span(self) -> Span:
        """Return where the rows lie in the flat tensor of their entry."""
        row = prod(self.entry.shape[1:])
        return self.entry.start + self.first * row, self.entry.start + self.last * row

    @property
    def elements(self) -> int:
        """Return how many elements the rows have."""
        start, stop = self.span
        return stop - start


def buckets_of(entries: Iterable[Entry], elements: int) -> list[list[Block]]:
    """Return the rows of parameters in buckets of at most that many elements.

    A single row that is larger is a bucket of its own.
    """
    buckets: list[list[Block]] = []
    room = 0
    for entry in entries:
        first, rows, row = 0, entry.shape[0], prod(entry.shape[1:])
        while first < rows:
            if room < row:
                buckets.append([])
                room = max(elements, row)
            last = min(rows, first + room // row)
            buckets[-1].append(Block(entry, first, last))
            room -= (last - first) * row
            first = last
    return buckets


def spans_of_blocks(blocks: Iterable[Block]) -> list[Span]:
    """Return the spans of the flat tensor that hold rows, as few as there can be."""
    return joined_ranges(block.span for block in blocks)


def write_block(block: Block, rows: Tensor, entry: Entry, view: Tensor) -> None:
    """Write rows of one rank's part of a parameter into another rank's part, as far as it has them.

    Args:
        rows: Of the block. (last - first, ...).
        entry: The part that is written.
        view: Its values, in the entry's shape.
    """
    copied = overlap(block.entry, entry)
    if copied is None:
        return
    dimension, here, there, width = copied
    if dimension:
        held = rows.narrow(dimension, here, width)
        view.narrow(dimension, there, width)[block.first : block.last].copy_(held)
        return
    first, last = max(here, block.first), min(here + width, block.last)
    if first < last:
        offset = there - here
        view[first + offset : last + offset].copy_(rows[first - block.first : last - block.first])


@dataclass(frozen=True, slots=True)
class Slice:
    """Locate a part of a parameter in a message, and in the shard that it is for.

    Attributes:
        start: Of its elements in the message.
        offsets: Where it begins in the shard's parameter, by dimension.
        shape: Its sizes, by dimension.
    """

    name: str
    start: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


def export_slices(
    source: ShardLayout,
    values: Tensor,
    wanted: Sequence[Block],
    *,
    target_head_is_tied: bool = False,
) -> tuple[list[Slice], Tensor]:
    """Return what a rank gives for rows of a shard of another layout, and the message that holds it.

    Whole parameters are given by the first rank of a stage.

    Args:
        wanted: Rows of the shard's parameters.
        target_head_is_tied: Whether the shard's head is the embedding, which the source may hold.
    """
    held = {entry.name: entry for entry in source.entries}
    tied = {HEAD: EMBEDDING} if target_head_is_tied else {}
    slices: list[Slice] = []
    found: list[Tensor] = []
    taken = 0
    for block in wanted:
        name = block.entry.name
        given = held.get(name) or held.get(tied.get(name, ""))
        if given is None or (given.dimension is None and source.tp > 0):
            continue
        part = _given(given, block)
        if part is None:
            continue
        begins, offsets, shape = part
        view = values[given.start : given.stop].view(given.shape)
        for dimension, (begin, size) in enumerate(zip(begins, shape, strict=True)):
            view = view.narrow(dimension, begin, size)
        found.append(view.reshape(-1))
        slices.append(Slice(name, taken, offsets, shape))
        taken += len(found[-1])
    return slices, torch.cat(found) if found else values.new_empty(0)


Box = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _given(given: Entry, block: Block) -> Box | None:
    """Return (beginnings in the source, beginnings in the target, sizes) of what both have; None: nothing."""
    copied = overlap(given, block.entry)
    if copied is None:
        return None
    dimension, here, there, width = copied
    shape = list(block.entry.shape)
    begins, offsets = [0] * len(shape), [0] * len(shape)
    begins[dimension], offsets[dimension], shape[dimension] = here, there, width
    first, last = max(offsets[0], block.first), min(offsets[0] + shape[0], block.last)
    if first >= last:
        return None
    begins[0] += first - offsets[0]
    offsets[0], shape[0] = first, last - first
    return tuple(begins), tuple(offsets), tuple(shape)


def write_slice(piece: Slice, message: Tensor, view: Tensor) -> None:
    """Write a part that another rank gave into the shard's parameter."""
    for dimension, (offset, size) in enumerate(zip(piece.offsets, piece.shape, strict=True)):
        view = view.narrow(dimension, offset, size)
    view.copy_(message[piece.start : piece.start + view.numel()].view(piece.shape))
