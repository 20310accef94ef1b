"""Bring the actor's weights from its train to its generate layout.

On one pool and with equal layouts both tasks share the very same weights and nothing runs. With
others every rank receives what its generate shard has beyond its train shard, inside the groups of
the plan's transition (Sheng et al. 2025, HybridFlow, section 5 and Table 2):

- `hybridflow`: micro-DP groups; the train shard is a slice of the generate shard, so that nothing is
  held twice while tokens are generated: shared where both are cut alike (`rlplan.executor.weights.shared_parameters`), else moved;
- `hybridflow-v`, `all-gather`: the whole model-parallel block, of which the generate shard is cut.
  Fully sharded weights are gathered over the copies of the model first, and with that `all-gather`
  is the one over all ranks; experts are gathered over the expert-parallel ranks.

What is under way is never more than the plan's bucket. Between pools the parts that each generate
rank needs go through the object store (two copies).
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import Tensor

from rlplan.executor.model.building import HEAD
from rlplan.executor.parallel.positions import gather_groups, uses_micro_groups
from rlplan.executor.weights.buckets import (
    WEIGHT_BYTES,
    Block,
    buckets_of,
    spans_of_blocks,
    write_block,
)
from rlplan.executor.weights.flat import Entry, FlatParameters
from rlplan.executor.weights.reshard import (
    Part,
    ShardLayout,
    source_name,
    wanted_entries,
    write_shard,
)
from rlplan.executor.weights.shard import ModelShard
from rlplan.executor.weights.shared_parameters import SharedParameters, shared_names
from rlplan.plan import Plan

# By sender of a round: what it sent, and where that is.
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
        self._elements = plan.bucket_bytes // (WEIGHT_BYTES * senders)

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
        # Both ends of a pair count its buckets alike, so that rounds meet.
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
        """Write rows that lie one after another in a buffer, as far as they are wanted here."""
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
