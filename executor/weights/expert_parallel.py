"""Weights of a rank that has some of a model's experts, and their optimizers.

Experts have fewer copies than all other weights, so their gradients are summed over other ranks.
Outside of updates and passes nobody sees that: weights are given out and taken over whole, with the
experts of all ranks, as shards without expert parallelism have them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlplan.executor.model.experts import is_expert
from rlplan.executor.parallel.meshes import RankMesh
from rlplan.executor.weights.flat import Entry, FlatParameters, placed
from rlplan.executor.weights.fully_sharded import FullyShardedParameters
from rlplan.executor.weights.optimizers import ShardOptimizer


class ExpertParallelParameters:
    """Hold a rank's weights in parts that are summed up and sharded each in its way.

    Args:
        parts: What holds them.

    Attributes:
        entries: Where parameters lie in what `whole_values` returns.
    """

    def __init__(
        self, parts: Sequence[FlatParameters | FullyShardedParameters], mesh: RankMesh
    ) -> None:
        self.parts, self._mesh = tuple(parts), mesh
        self._held = [entry for part in self.parts for entry in part.entries]
        self.entries = _with_all_experts(self._held, mesh.experts.size)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of this rank's weights."""
        return sum(part.weight_bytes for part in self.parts)

    @property
    def gathered_bytes(self) -> int:
        """Return the bytes that a rank receives when `whole_values` is asked for."""
        others = self._mesh.experts.size - 1
        experts = sum(e.stop - e.start for e in self._held if is_expert(e.name))
        of_parts = sum(part.gathered_bytes for part in self.parts)
        return of_parts + others * experts * torch.float32.itemsize

    def stored(self) -> list[Tensor]:
        """Return what holds this rank's weights, each with a storage of its own."""
        return [tensor for part in self.parts for tensor in part.stored()]

    def pieces(self) -> Iterator[tuple[Entry, slice, Tensor]]:
        """Return each parameter's entry, which of its first dimension's rows are held here, and what holds them."""
        for part in self.parts:
            yield from part.pieces()

    def whole_values(self) -> Tensor:
        """Return all weights of this rank's stages, as `entries` say; all ranks gather together."""
        return self.with_all_experts(torch.cat([part.whole_values() for part in self.parts]))

    def write_values(self, flat: Tensor) -> None:
        """Take over weights that `whole_values` of any rank of this position returned."""
        for part, values in zip(self.parts, self.split(flat), strict=True):
            part.write_values(values)

    def with_all_experts(self, held: Tensor) -> Tensor:
        """Return what is laid out as this rank's weights with that of all ranks' experts."""
        whole = held.new_empty(self.entries[-1].stop)
        ranks = self._mesh.experts
        for mine, entry in zip(placed(self._held), self.entries, strict=True):
            target, values = whole[entry.start : entry.stop], held[mine.start : mine.stop]
            if is_expert(entry.name):
                dist.all_gather_into_tensor(target, values.contiguous(), group=ranks.group)
            else:
                target.copy_(values)
        return whole

    def split(self, whole: Tensor) -> list[Tensor]:
        """Return this rank's part of what `with_all_experts` returned, for each part of its weights."""
        place = self._mesh.experts.position
        found = []
        for mine, entry in zip(self._held, self.entries, strict=True):
            size = mine.stop - mine.start
            start = entry.start + (place * size if is_expert(entry.name) else 0)
            found.append(whole[start : start + size])
        sizes = [part.entries[-1].stop for part in self.parts]
        return list(torch.split(torch.cat(found), sizes))


def _with_all_experts(entries: Sequence[Entry], ranks: int) -> list[Entry]:
    """Return where parameters lie when experts of all ranks are there."""
    grown = []
    for entry in entries:
        times = ranks if is_expert(entry.name) else 1
        stop = entry.start + times * (entry.stop - entry.start)
        shape = (times * entry.shape[0], *entry.shape[1:])
        grown.append(replace(entry, stop=stop, shape=shape))
    return placed(grown)


class ExpertParallelOptimizer(ShardOptimizer):
    """Step weights in parts, each by an optimizer of its own; the gradient is clipped as one."""

    def __init__(
        self, weights: ExpertParallelParameters, parts: Sequence[ShardOptimizer], mesh: RankMesh
    ) -> None:
        self._weights, self._parts, self._mesh = weights, tuple(parts), mesh
        self.adam = self._parts[0].adam

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the settings of all parts."""
        return [group for part in self._parts for group in part.parameter_groups()]

    def whole_moments(self) -> dict[str, Tensor]:
        """Return the states of all weights, with those of all ranks' experts."""
        parts = [part.whole_moments() for part in self._parts]
        return {
            name: self._weights.with_all_experts(torch.cat([part[name] for part in parts]))
            for name in parts[0]
        }

    def write_moments(self, moments: Mapping[str, Tensor], steps: int) -> None:
        """Take over the states of this rank's weights."""
        mine = {name: self._weights.split(whole) for name, whole in moments.items()}
        for index, part in enumerate(self._parts):
            part.write_moments({name: values[index] for name, values in mine.items()}, steps)

    def reduce_gradients(self) -> None:
        """Sum the gradients of each part over its own copies."""
        for part in self._parts:
            part.reduce_gradients()

    def squared_norm(self) -> Tensor:
        """Return the sum of squares: of what all ranks have once, of experts over all ranks."""
        if len(self._parts) == 1:  # which knows of experts
            return self._parts[0].squared_norm()
        others, experts = (part.squared_norm() for part in self._parts)
        return others + self._mesh.experts.sum(experts)

    def step_scaled(self, factor: Tensor) -> None:
        """Step all parts."""
        for part in self._parts:
            part.step_scaled(factor)

    def states(self) -> list[Tensor]:
        """Return the optimizers' states on the device; none before the first step."""
        return [state for part in self._parts for state in part.states()]
