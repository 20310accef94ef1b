"""Bring the actor's weights from its train to its generate layout.

On one pool and with equal layouts both tasks share the very same weights and nothing runs. With
others every rank receives what its generate shard has beyond its train shard, inside the groups of
the plan's transition (Sheng et al. 2025, HybridFlow, section 5 and Table 2):

- `hybridflow`: micro-DP groups; the train shard becomes a slice of the generate shard, so that
  nothing is held twice while tokens are generated;
- `hybridflow-v`, `all-gather`: the whole model-parallel block, of which the generate shard is cut.
  Fully sharded weights are gathered over the copies of the model first, and with that `all-gather`
  is the one over all ranks; experts are gathered over the expert-parallel ranks.

Between pools the parts that each generate rank needs go through the object store (two copies).
"""

import torch
import torch.distributed as dist
from torch import Tensor

from executor.flat import Entry, FlatParameters
from executor.layouts import gather_groups, uses_micro_groups
from executor.models import HEAD
from executor.reshard import Holding, Part, spans_of, wanted_entries, write_shard
from executor.shard import ModelShard
from rlplan.plan import Plan


def holding_of(shard: ModelShard) -> Holding:
    """Return what a rank has of its model's weights."""
    mesh = shard.mesh
    return Holding(mesh.rank, mesh.pp, mesh.tp, tuple(shard.flat.entries))


class PoolTransition:
    """Gather the generate shard inside the train pool; every rank builds and runs it together.

    Attributes:
        received_bytes: What the last run received on this rank.
        redundant_bytes: Weights that this rank held twice after it.
    """

    def __init__(self, plan: Plan, train: ModelShard, generate: ModelShard) -> None:
        self._train, self._generate = train, generate
        self.received_bytes = self.redundant_bytes = 0
        # Where the train shard is a slice of the generate shard, it lives there for the time.
        self._moves = uses_micro_groups(plan) and isinstance(train.flat, FlatParameters)
        self._cut_out = not uses_micro_groups(plan)
        groups = gather_groups(plan)
        ranks = next(group for group in groups if train.mesh.rank in group)
        made = [dist.new_group(list(group)) if len(group) > 1 else None for group in groups]
        self._group = made[groups.index(ranks)]
        mine = holding_of(train)
        self._members: list[Holding] = [mine]
        wanted = [frozenset(entry.name for entry in generate.flat.entries)]
        if self._group is not None:
            self._members, wanted = _exchanged(self._group, (mine, wanted[0]), len(ranks))
        if self._cut_out:
            wanted = [self._all_names(plan)] * len(wanted)
        self._mine = mine
        self._wants = dict(zip([member.rank for member in self._members], wanted, strict=True))

    def _all_names(self, plan: Plan) -> frozenset[str]:
        """Return the names of all parameters, a tied embedding once."""
        names = {entry.name for member in self._members for entry in member.entries}
        tied = plan.job.architecture("actor").tied_embeddings
        return frozenset(names - {HEAD} if tied else names)

    def run(self) -> None:
        """Write this rank's generate shard from the training weights as they are now."""
        source, target = self._train.flat, self._generated
        self.received_bytes = source.gathered_bytes
        target.claim()
        with torch.no_grad():
            parts = self._receive(source.whole_values())
            write_shard(target.entries, target.values, self._generate.mesh.tp, parts)
        self.redundant_bytes = source.weight_bytes
        if self._moves and isinstance(source, FlatParameters):
            source.release()
            self.redundant_bytes = 0

    def end(self) -> None:
        """Give back the generate shard's memory; the train shard is whole again."""
        source, target = self._train.flat, self._generated
        if self._moves and isinstance(source, FlatParameters):
            source.claim()
            part = Part(target.entries, self._generate.mesh.tp, target.values)
            with torch.no_grad():
                write_shard(source.entries, source.values, self._train.mesh.tp, [part])
        target.release()

    def release(self) -> None:
        """Give back the generate shard's memory before the first run."""
        self._generated.release()

    @property
    def _generated(self) -> FlatParameters:
        flat = self._generate.flat
        assert isinstance(flat, FlatParameters), "what generates is not sharded any further"
        return flat

    def _receive(self, values: Tensor) -> list[Part]:
        """Return the parts of all members of the group, those of others as far as they are wanted."""
        parts, operations = [], []
        for member in self._members:
            if member.rank == self._mine.rank:
                parts.append(Part(member.entries, member.tp, values))
                continue
            coming, going = self._wanted(self._mine, member), self._wanted(member, self._mine)
            buffer = values.new_empty(member.entries[-1].stop)
            parts.append(Part(coming, member.tp, buffer))
            for start, stop in spans_of(coming):
                piece = buffer[start:stop]
                operations.append(dist.P2POp(dist.irecv, piece, member.rank, self._group))
                self.received_bytes += piece.numel() * piece.element_size()
            for start, stop in spans_of(going):
                piece = values[start:stop]
                operations.append(dist.P2POp(dist.isend, piece, member.rank, self._group))
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        return parts

    def _wanted(self, receiver: Holding, sender: Holding) -> tuple[Entry, ...]:
        return wanted_entries(receiver, sender, self._members, self._wants[receiver.rank])


def _exchanged(
    group: dist.ProcessGroup, mine: tuple[Holding, frozenset[str]], count: int
) -> tuple[list[Holding], list[frozenset[str]]]:
    """Return what every member of a group holds and wants, in the group's order."""
    gathered = [mine] * count
    dist.all_gather_object(gathered, mine, group=group)
    return [holding for holding, _ in gathered], [names for _, names in gathered]
