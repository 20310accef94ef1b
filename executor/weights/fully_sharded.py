"""Parameters that ranks hold a part of and gather when they compute: fully sharded ones, and experts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlplan.executor.model.building import HEAD, StageModel
from rlplan.executor.model.experts import is_expert
from rlplan.executor.parallel.meshes import RankGroup, RankMesh
from rlplan.executor.weights.flat import (
    Entry,
    FlatParameters,
    distinct_parameters,
    entries_of,
    is_partial,
    local_part,
    placed,
)
from rlplan.executor.weights.optimizers import MOMENTS, ShardOptimizer, adam_of, set_moments

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

Found = list[tuple[str, nn.Parameter, list[tuple[nn.Module, str]]]]


def shard_fully(
    stages: Sequence[StageModel],
    mesh: RankMesh,
    *,
    stays_whole: bool,
    tied: str = "",
    groups: Sequence[Callable[[str], bool]] = (lambda _: True,),
) -> list["FullyShardedParameters"]:
    """Shard a rank's stages in place; return what gives each group of their parameters out.

    Args:
        stays_whole: Whether weights stay gathered from step to step (stage 2).
        tied: Name of a parameter of which another pipeline stage has a copy; empty: none.
        groups: Tell by its name whether a parameter is one of theirs; those of no group stay as they are.
    """
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  # slow import

    assert mesh.mesh is not None, "one rank shards nothing"
    found = distinct_parameters(stages)
    parts = [[item for item in found if keeps(item[0])] for keeps in groups]
    entries = [entries_of(part) for part in parts]  # of what is not sharded yet
    sharded = {name for part in parts for name, _, _ in part}
    settings: dict[str, Any] = {
        "reshard_after_forward": not stays_whole,
        "ignored_params": {parameter for name, parameter, _ in found if name not in sharded},
    }
    for stage in stages:
        for layer in stage.layers.values():
            if mesh.expert_mesh is not None and hasattr(layer.mlp, "experts"):
                experts: nn.Module = layer.mlp.experts  # type: ignore[assignment]
                fully_shard(experts, mesh=mesh.expert_mesh["expert_copies"], **settings)
            fully_shard(layer, mesh=mesh.mesh["copies"], **settings)
        fully_shard(stage, mesh=mesh.mesh["copies"], **settings)
        _make_real(stage, mesh)
    for unit in _units(stages):
        # Losses are sums over all ranks, not means.
        unit.set_gradient_divide_factor(1.0)
        unit.set_reshard_after_backward(not stays_whole)
        if mesh.device.type == "cpu":
            unit.set_force_sum_reduction_for_comms(True)
    return [
        FullyShardedParameters(
            stages, mesh, part, places, stays_whole=stays_whole, tied=tied, by_unit=part is parts[0]
        )
        for part, places in zip(parts, entries, strict=True)
    ]


def _units(stages: Sequence[StageModel]) -> "Iterator[FSDPModule]":
    """Return the modules whose weights are gathered together, stage by stage."""
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415  # slow import

    for stage in stages:
        yield from (unit for unit in stage.modules() if isinstance(unit, FSDPModule))


def _make_real(stage: StageModel, mesh: RankMesh) -> None:
    """Allocate parameters on the meta device; the others, adapters, keep their initial values."""
    parameters = dict(stage.named_parameters())
    if not any(parameter.is_meta for parameter in parameters.values()):
        return
    started = {name: local_part(p).clone() for name, p in parameters.items() if not p.is_meta}
    stage.make_real(mesh.device)
    with torch.no_grad():
        for name, values in started.items():
            local_part(stage.get_parameter(name)).copy_(values)


class FullyShardedParameters:
    """Hold this rank's shares of parameters that `shard_fully` has sharded, and give them out whole.

    Args:
        found: The parameters before they were sharded, with the modules that hold them.
        entries: Where parameters lie in what `whole_values` returns.
        stays_whole: Whether weights stay gathered from step to step (stage 2).
        by_unit: Whether they are gathered with all else that their modules hold; else one by one.

    Attributes:
        tied: Name of a parameter of which another pipeline stage has a copy; empty: none. The head is
            the copy.
    """

    def __init__(
        self,
        stages: Sequence[StageModel],
        mesh: RankMesh,
        found: Found,
        entries: list[Entry],
        *,
        stays_whole: bool,
        tied: str = "",
        by_unit: bool = True,
    ) -> None:
        self.entries, self.tied, self._mesh, self._stages = entries, tied, mesh, stages
        self._owners = {name: owners[0] for name, _, owners in found}
        self._stays_whole, self._by_unit = stays_whole, by_unit
        # Modules hold whole weights instead while these are gathered.
        self._shares = {name: getattr(module, key) for name, (module, key) in self._owners.items()}
        self.refresh()

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of this rank's share of the weights, and of whole ones that stay."""
        whole = self.entries[-1].stop * torch.float32.itemsize if self._stays_whole else 0
        return whole + sum(part.numel() * part.element_size() for part in self.stored())

    @property
    def gathered_bytes(self) -> int:
        """Return the bytes that a rank receives for `whole_values`, padding included; none if they are whole."""
        received = 0
        if self._stays_whole:
            return received
        for entry in self.entries:
            ranks = self.copies_of(entry.name).size
            rows, width = entry.shape[0], (entry.stop - entry.start) // entry.shape[0]
            received += -(-rows // ranks) * width * (ranks - 1)
        return received * torch.float32.itemsize

    def parameters(self) -> dict[str, Tensor]:
        """Return this rank's share of each parameter, a DTensor, by name."""
        return self._shares

    def stored(self) -> list[Tensor]:
        """Return the tensors that hold this rank's share of the weights, each with its own storage."""
        return [local_part(parameter) for parameter in self.parameters().values()]

    def pieces(self) -> Iterator[tuple[Entry, slice, Tensor]]:
        """Yield each parameter's entry, the range of rows (first dimension) that this rank holds, and their values."""
        for entry, share in zip(self.entries, self.stored(), strict=True):
            first = self._first_row(entry)
            yield entry, slice(first, first + share.shape[0]), share

    def whole_values(self) -> Tensor:
        """Return these weights in one flat tensor; all ranks gather together."""
        if not (self._by_unit or self._stays_whole):
            return self.whole_of(self.stored())
        flat = torch.empty(self.entries[-1].stop, device=self._mesh.device)
        with torch.no_grad():
            self._unshard()
            for entry, (module, key) in zip(self.entries, self._owners.values(), strict=True):
                values = local_part(getattr(module, key))
                flat[entry.start : entry.stop].view(values.shape).copy_(values)
        self.reshard()
        return flat

    def write_values(self, flat: Tensor) -> None:
        """Take over weights that `whole_values` of any rank of this position returned."""
        self.write_shares(self.stored(), flat)
        self.refresh()

    def whole_of(self, shares: Sequence[Tensor]) -> Tensor:
        """Return what is sharded as the weights are, whole and in one flat tensor; one after another is gathered."""
        flat = torch.empty(self.entries[-1].stop, device=self._mesh.device)
        for entry, share in zip(self.entries, shares, strict=True):
            copies, rows = self.copies_of(entry.name), entry.shape[0]
            width = (entry.stop - entry.start) // rows
            mine = flat.new_zeros(-(-rows // copies.size), width)
            mine[: len(share)] = share.reshape(len(share), width)
            whole = flat.new_empty(copies.size * len(mine), width) if copies.size > 1 else mine
            if copies.size > 1:
                dist.all_gather_into_tensor(whole, mine, group=copies.group)
            flat[entry.start : entry.stop] = whole[:rows].flatten()
        return flat

    def write_shares(self, shares: Sequence[Tensor], flat: Tensor) -> None:
        """Write this rank's share of each part of a flat tensor."""
        with torch.no_grad():
            for entry, share in zip(self.entries, shares, strict=True):
                rows = flat[entry.start : entry.stop].view(entry.shape[0], -1)
                first = self._first_row(entry)
                share.copy_(rows[first : first + share.shape[0]].reshape(share.shape))

    def _first_row(self, entry: Entry) -> int:
        copies = self.copies_of(entry.name)
        return copies.position * -(-entry.shape[0] // copies.size)

    def copies_of(self, name: str) -> RankGroup:
        """Return the ranks that share out a parameter."""
        return self._mesh.expert_copies if is_expert(name) else self._mesh.copies

    def reshard(self) -> None:
        """Give back what was gathered for a pass; weights stay sharded, or stay whole."""
        if not self._stays_whole:
            self._reshard()

    def refresh(self) -> None:
        """Forget gathered weights, whose shares have changed; gather them again if they stay whole."""
        self._reshard()
        if self._stays_whole:
            self._unshard()

    def _unshard(self) -> None:
        for unit in _units(self._stages):
            unit.unshard()

    def _reshard(self) -> None:
        for unit in _units(self._stages):
            unit.reshard()


class FullyShardedOptimizer(ShardOptimizer):
    """Step this rank's share of every weight (stages 2 and 3)."""

    def __init__(
        self, weights: FullyShardedParameters, mesh: RankMesh, learning_rate: float
    ) -> None:
        self._weights, self._mesh = weights, mesh
        # Plain tensors, which one kernel steps together whatever meshes they are shared over.
        self._mine = {
            name: nn.Parameter(local_part(share)) for name, share in weights.parameters().items()
        }
        self.adam = adam_of(list(self._mine.values()), learning_rate)

    def whole_moments(self) -> dict[str, Tensor]:
        """Return the states of all shares."""
        states = list(self.adam.state.values())
        if not states:
            return {}
        return {name: self._weights.whole_of([state[name] for state in states]) for name in MOMENTS}

    def write_moments(self, moments: Mapping[str, Tensor], steps: int) -> None:
        """Take over this rank's share of whole states."""
        made = {
            name: [torch.zeros_like(weight.detach()) for weight in self._mine.values()]
            for name in moments
        }
        for name, whole in moments.items():
            self._weights.write_shares(made[name], whole)
        set_moments(
            self.adam,
            [{name: made[name][i] for name in moments} for i in range(len(self._mine))],
            steps,
        )

    def reduce_gradients(self) -> None:
        """Sum what ranks of one copy of the model share; FSDP has summed over the copies."""
        cut = {entry.name for entry in self._weights.entries if entry.dimension is not None}
        for name, gradient in self._gradients():
            if is_partial(name) and name not in cut:
                self._mesh.sum_over_tp(gradient)
            if name == self._weights.tied:
                dist.all_reduce(gradient, group=self._mesh.ends)

    def squared_norm(self) -> Tensor:
        """Return the sum of squares, of which every rank knows its share's."""
        mesh, cut = self._mesh, {e.name for e in self._weights.entries if e.dimension is not None}
        squares = torch.zeros((), device=mesh.device)
        for name, gradient in self._gradients():
            if name == self._weights.tied == HEAD:
                continue
            share = 1.0 if name in cut else 1 / mesh.tp_size
            squares = squares + share * gradient.square().sum()
        # Copies have distinct shares, of experts too: those of other experts, or of the same ones.
        return mesh.copies.sum(mesh.sum_over_pp(mesh.sum_over_tp(squares)))

    def step_scaled(self, factor: Tensor) -> None:
        """Step the shares."""
        for name, gradient in self._gradients():
            self._mine[name].grad = gradient.mul_(factor)
        self.adam.step()
        self.clear_gradients()
        self._weights.refresh()

    def clear_gradients(self) -> None:
        """Drop the shares of the gradient."""
        self.adam.zero_grad()
        for share in self._weights.parameters().values():
            share.grad = None

    def _gradients(self) -> list[tuple[str, Tensor]]:
        """Return this rank's share of each gradient by name."""
        found = []
        for name, parameter in self._weights.parameters().items():
            gradient = parameter.grad
            assert gradient is not None, f"{name} got no gradient"
            found.append((name, local_part(gradient)))
        return found


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
        """Return the tensors that hold this rank's weights, each with its own storage."""
        return [tensor for part in self.parts for tensor in part.stored()]

    def pieces(self) -> Iterator[tuple[Entry, slice, Tensor]]:
        """Yield each parameter's entry, the range of rows (first dimension) that this rank holds, and their values."""
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

    def clear_gradients(self) -> None:
        """Clear those of all parts."""
        for part in self._parts:
            part.clear_gradients()

    def states(self) -> list[Tensor]:
        """Return the optimizers' states on the device; none before the first step."""
        return [state for part in self._parts for state in part.states()]
