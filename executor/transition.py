"""Bring the actor's weights from its train to its generate layout.

On one pool and with equal tensor-parallel sizes both tasks share the very same weights and nothing
runs. With other sizes every rank gathers the shards that its generate shard is made of and writes
them into memory of their own, which is given back after generation; the train shard never moves.
Between pools the train shards go through the object store (two copies).
"""

from collections.abc import Sequence
from math import ceil

import torch
import torch.distributed as dist
from torch import Tensor

from executor.flat import Entry, FlatParameters
from executor.protocols import RankPositions, generate_positions, train_positions
from executor.shard import ModelShard
from rlplan.layout import GenerateLayout, TrainLayout
from rlplan.plan import Plan


def generation_positions(plan: Plan) -> RankPositions:
    """Return where the ranks of the generate pool stand during generation.

    On the train pool with `hybridflow` these are zero-redundancy groups (Sheng et al. 2025,
    HybridFlow, section 5.3); elsewhere consecutive ranks.
    """
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    ranks = plan.pool_of("actor.generate").gpus
    if train.pool == generate.pool and _uses_micro_groups(plan):
        return generate_positions(generate.tp, train.tp, ranks)
    return train_positions(generate.tp, ranks)


def shares_weights(plan: Plan) -> bool:
    """Tell whether generation runs on the training weights themselves."""
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    return train.pool == generate.pool and train.tp == generate.tp


def _uses_micro_groups(plan: Plan) -> bool:
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    return plan.transition == "hybridflow" and train.tp % generate.tp == 0


class PoolTransition:
    """Gather the generate shard inside the train pool; every rank builds and runs it together."""

    def __init__(self, plan: Plan, train: ModelShard, generate: ModelShard) -> None:
        self._train, self._generate = train, generate
        ranks, tp = train.mesh.positions.ranks, train.mesh.tp_size
        layout = TrainLayout(pp=1, tp=tp, dp=ranks // tp)
        groups = layout.tp_groups()
        if _uses_micro_groups(plan):
            groups = GenerateLayout(train=layout, pp=1, tp=generate.mesh.tp_size).micro_dp_groups()
        self._members = next(group for group in groups if train.mesh.rank in group)
        made = [dist.new_group(list(group)) if len(group) > 1 else None for group in groups]
        self._group = made[groups.index(self._members)]

    def run(self) -> None:
        """Write this rank's generate shard from the training weights as they are now."""
        source, target = self._train.flat, self._generate.flat
        target.claim()
        flats = [source.values]
        if len(self._members) > 1:
            gathered = source.values.new_empty(len(self._members) * source.values.numel())
            dist.all_gather_into_tensor(gathered, source.values, group=self._group)
            flats = list(gathered.chunk(len(self._members)))
        first = self._train.mesh.positions.tp[self._members[0]]
        with torch.no_grad():
            write_shard(target, self._generate.mesh.tp, source.entries, flats, first)


def needed_shards(train_tp: int, generate_tp: int, position: int) -> range:
    """Return the train shards that the generate shard at a position is made of."""
    if train_tp % generate_tp:
        return range(train_tp)
    width = train_tp / generate_tp
    return range(int(position * width), ceil((position + 1) * width))


def write_shard(
    target: FlatParameters,
    position: int,
    entries: Sequence[Entry],
    flats: Sequence[Tensor],
    first: int,
) -> None:
    """Write a shard out of shards of another tensor-parallel size, bit for bit.

    Args:
        target: The shard to write, whose tensor-parallel position is `position`.
        entries: Where parameters lie in each of `flats`.
        flats: Consecutive source shards, from position `first` on.
    """
    sources = {entry.name: entry for entry in entries}
    for entry in target.entries:
        source = sources[entry.name]
        parts = [flat[source.start : source.stop].view(source.shape) for flat in flats]
        view = target.values[entry.start : entry.stop].view(entry.shape)
        dimension = entry.dimension if source.dimension is None else source.dimension
        if dimension is None:
            view.copy_(parts[0])
            continue
        covered, offset = parts[0], 0
        if source.dimension is not None:
            covered, offset = torch.cat(parts, dim=dimension), first * source.shape[dimension]
        start = (position * entry.shape[dimension] if entry.dimension is not None else 0) - offset
        view.copy_(covered.narrow(dimension, start, entry.shape[dimension]))
