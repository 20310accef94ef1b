"""The transition of weights from training to generation: which rows move, in which buckets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from rlplan.executor.data.batches import joined_ranges
from rlplan.executor.model.building import EMBEDDING, HEAD
from rlplan.executor.parallel.positions import gather_groups, uses_micro_groups
from rlplan.executor.weights.flat import Entry, FlatParameters
from rlplan.executor.weights.shard import ModelShard, SharedParameters, shared_names
from rlplan.plan import BUCKET_BYTES, Plan

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Hold one rank's part of a model's weights.

    Attributes:
        entries: Where parameters lie in `flat`.
        flat: Their values, in one tensor.
    """

    entries: Sequence[Entry]
    flat: Tensor


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Describe a rank's part of a model's weights, without the values.

    Attributes:
        pp: The rank's pipeline position.
    """

    rank: int
    pp: int
    tp: int
    entries: tuple[Entry, ...]


def write_shard(target: Part, source: Part) -> None:
    """Write a shard out of one of another layout that has all of its weights, bit for bit."""
    held = {entry.name: entry for entry in source.entries}
    for entry in target.entries:
        given = held[source_name(entry.name, held)]
        copied = overlap(given, entry)
        if copied is None:
            continue
        dimension, here, there, width = copied
        values = source.flat[given.start : given.stop].view(given.shape)
        view = target.flat[entry.start : entry.stop].view(entry.shape)
        view.narrow(dimension, there, width).copy_(values.narrow(dimension, here, width))


def source_name(name: str, held: Mapping[str, object] | Iterable[str]) -> str:
    """Return the name under which weights are held: a tied head may be there as the embedding only."""
    tied = {HEAD: EMBEDDING, EMBEDDING: HEAD}
    return name if name in held else tied[name]


def overlap(source: Entry, target: Entry) -> tuple[int, int, int, int] | None:
    """Return (dimension, start in source, start in target, width) of what both hold; None: nothing."""
    dimension = target.dimension if target.dimension is not None else source.dimension
    if dimension is None:
        return 0, 0, 0, target.shape[0]
    start = max(source.first, target.first)
    stop = min(source.first + source.shape[dimension], target.first + target.shape[dimension])
    if start >= stop:
        return None
    return dimension, start - source.first, start - target.first, stop - start


def wanted_entries(
    receiver: ShardLayout,
    sender: ShardLayout,
    members: Sequence[ShardLayout],
    names: frozenset[str],
) -> tuple[Entry, ...]:
    """Return what a rank has to receive from another one of its group.

    Cut parameters come from everybody, whole ones from one rank of each other stage.

    Args:
        members: All ranks of the group, in their order.
        names: Parameters that the receiver needs.
    """
    if sender.rank == receiver.rank:
        return ()
    same_stage = [member for member in members if member.pp == sender.pp]
    # What ranks of a stage all hold they give in turns.
    in_turn = same_stage[receiver.tp % len(same_stage)]
    sends_whole = sender.pp != receiver.pp and sender == in_turn
    return tuple(
        entry
        for entry in sender.entries
        if entry.name in names and (entry.dimension is not None or sends_whole)
    )


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
    """Return the spans of the flat tensor that hold the rows of blocks, adjacent ones merged."""
    return joined_ranges(block.span for block in blocks)


def write_block(block: Block, rows: Tensor, entry: Entry, view: Tensor) -> None:
    """Write the rows of one rank's part of a parameter that another rank's part has too.

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
        part = _overlapping_box(given, block)
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


def _overlapping_box(given: Entry, block: Block) -> Box | None:
    """Return the overlap of a part and a block as (offsets in the part, offsets in the block's part, sizes); None if empty."""
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


# What one sender sent in a round: the blocks, and the buffer that holds their rows.
Arrival = tuple[Sequence[Block], Tensor]


def shard_layout_of(shard: ModelShard) -> ShardLayout:
    """Return what a rank has of its model's weights."""
    mesh = shard.mesh
    return ShardLayout(mesh.rank, mesh.pp, mesh.tp, tuple(shard.flat.entries))


class PoolTransition:
    """Gather the generate shard inside the train pool; every rank builds and runs it together.

    Where both are cut alike, the generate shard is rebuilt to share the train shard's memory.

    Attributes:
        received_bytes: What the last run received on this rank.
        redundant_bytes: Weights that this rank held twice after it.
        buffer_bytes: The most that was under way to this rank at a time, beside both shards.
    """

    def __init__(self, plan: Plan, train: ModelShard, generate: ModelShard) -> None:
        self._train, self._generate = train, generate
        self.received_bytes = self.redundant_bytes = self.buffer_bytes = 0
        self._cut_out = not uses_micro_groups(plan)
        shared = self._share() if not self._cut_out else {}
        # A train shard that is a slice of the generate shard, but shares no memory, is moved into it.
        self._moves = not self._cut_out and not shared and isinstance(train.flat, FlatParameters)
        groups = gather_groups(plan)
        ranks = next(group for group in groups if train.mesh.rank in group)
        made = [dist.new_group(list(group)) if len(group) > 1 else None for group in groups]
        self._group = made[groups.index(ranks)]
        self._mine = mine = shard_layout_of(train)
        self._members: list[ShardLayout] = [mine]
        names = {entry.name for entry in generate.flat.entries} - shared.keys()
        wanted = [frozenset(names)]
        if self._group is not None:
            self._members, wanted = _exchanged(self._group, (mine, wanted[0]), len(ranks))
        if self._cut_out:
            wanted = [self._all_names()] * len(wanted)
        self._wants = dict(zip([member.rank for member in self._members], wanted, strict=True))
        self._written = self._destinations(shared)
        # A rank receives from all others of its group at a time: they share its bucket.
        senders = max(1, len(self._members) - 1)
        self._elements = (plan.bucket_bytes or BUCKET_BYTES) // (WEIGHT_BYTES * senders)

    def _destinations(self, shared: Mapping[str, str]) -> dict[str, list[Entry]]:
        """Return what is written from each parameter that this rank has or receives, by its name."""
        names = {entry.name for entry in self._mine.entries}
        for other in self._members:
            names |= {entry.name for entry in self._lacking(self._mine, other)}
        found: dict[str, list[Entry]] = {}
        for entry in self._generate.flat.entries:
            if entry.name not in shared:
                found.setdefault(source_name(entry.name, names), []).append(entry)
        return found

    def _share(self) -> dict[str, str]:
        """Let the generate shard share the train shard's memory; return what is shared, by name."""
        train, generate = self._train.flat, self._generate
        if not isinstance(train, FlatParameters):
            return {}
        shared = shared_names(train.entries, generate.flat.entries)
        if shared:
            generate.flat = SharedParameters(generate.stages, train, shared)
        return shared

    def _all_names(self) -> frozenset[str]:
        """Return the names of all parameters, a tied embedding once."""
        names = {entry.name for member in self._members for entry in member.entries}
        return frozenset(names - {HEAD} if self._train.tied else names)

    def run(self) -> None:
        """Write this rank's generate shard from the training weights as they are now."""
        source, target = self._train.flat, self._generated
        self.received_bytes, self.buffer_bytes = source.gathered_bytes, 0
        target.claim()
        with torch.no_grad():
            values = source.whole_values()
            for entry in self._mine.entries:
                block = Block(entry, 0, entry.shape[0])
                self._write([block], values[entry.start : entry.stop])
            self._receive(values)
        self.redundant_bytes = source.weight_bytes
        if self._moves and isinstance(source, FlatParameters):
            source.release()
        if self._moves or isinstance(target, SharedParameters):
            self.redundant_bytes = 0

    def end(self) -> None:
        """Give back the generate shard's memory; the train shard is whole again."""
        source, target = self._train.flat, self._generated
        if self._moves and isinstance(source, FlatParameters):
            assert isinstance(target, FlatParameters), "what is shared does not move"
            source.claim()
            generated = Part(target.entries, target.values)
            with torch.no_grad():
                write_shard(Part(source.entries, source.values), generated)
        target.release()

    def release(self) -> None:
        """Give back the generate shard's memory before the first run."""
        self._generated.release()

    @property
    def _generated(self) -> FlatParameters | SharedParameters:
        flat = self._generate.flat
        assert isinstance(flat, FlatParameters | SharedParameters), (
            "what generates is not sharded further"
        )
        return flat

    def _receive(self, values: Tensor) -> None:
        """Write what others of the group hold, a bucket after the other, and send what they want."""
        others = [member for member in self._members if member.rank != self._mine.rank]
        coming = [self._buckets(self._mine, other) for other in others]
        going = [self._buckets(other, self._mine) for other in others]
        # Both ends of a pair count the same buckets, so that their rounds match.
        for arriving, leaving in zip_longest(
            zip_longest(*coming, fillvalue=[]), zip_longest(*going, fillvalue=[]), fillvalue=()
        ):
            self._round(values, others, arriving, leaving)

    def _round(
        self,
        values: Tensor,
        others: Sequence[ShardLayout],
        arriving: Sequence[Sequence[Block]],
        leaving: Sequence[Sequence[Block]],
    ) -> None:
        """Exchange one bucket with each of the others at once, and write what came."""
        operations, came = [], list[Arrival]()
        for other, blocks in zip(others, arriving, strict=False):
            buffer = values.new_empty(sum(block.elements for block in blocks))
            came.append((blocks, buffer))
            start = 0
            for first, last in spans_of_blocks(blocks):
                piece = buffer[start : start + last - first]
                start += last - first
                operations.append(dist.P2POp(dist.irecv, piece, other.rank, self._group))
        for other, blocks in zip(others, leaving, strict=False):
            for first, last in spans_of_blocks(blocks):
                piece = values[first:last]
                operations.append(dist.P2POp(dist.isend, piece, other.rank, self._group))
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        held = sum(buffer.nbytes for _, buffer in came)
        self.received_bytes += held
        self.buffer_bytes = max(self.buffer_bytes, held)
        for blocks, buffer in came:
            self._write(blocks, buffer)

    def _write(self, blocks: Sequence[Block], buffer: Tensor) -> None:
        """Write the rows in a buffer, one block after another, into the parameters of this rank that need them."""
        target, start = self._generated, 0
        for block in blocks:
            stop = start + block.elements
            rows = buffer[start:stop].view(block.last - block.first, *block.entry.shape[1:])
            start = stop
            # What a vanilla group gathers for other stages is cut off here.
            for entry in self._written.get(block.entry.name, ()):
                write_block(block, rows, entry, target.view_of(entry))

    def _buckets(self, receiver: ShardLayout, sender: ShardLayout) -> list[list[Block]]:
        return buckets_of(self._lacking(receiver, sender), self._elements)

    def _lacking(self, receiver: ShardLayout, sender: ShardLayout) -> tuple[Entry, ...]:
        return wanted_entries(receiver, sender, self._members, self._wants[receiver.rank])


def _exchanged(
    group: dist.ProcessGroup, mine: tuple[ShardLayout, frozenset[str]], count: int
) -> tuple[list[ShardLayout], list[frozenset[str]]]:
    """Return what every member of a group holds and wants, in the group's order."""
    gathered = [mine] * count
    dist.all_gather_object(gathered, mine, group=group)
    return [layout for layout, _ in gathered], [names for _, names in gathered]
