"""Weights, gradients and optimizer states sharded over the copies of a model, by torch's FSDP2.

ZeRO stage 3 gathers a layer's weights for its forward and again for its backward pass, and they stay
sharded between. Stage 2 gathers them after each step, and they stay whole. Gradients are scattered after
every micro-batch in both (Rajbhandari et al. 2020, arXiv:1910.02054, section 5).
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from executor.model.building import HEAD, StageModel
from executor.model.experts import is_expert
from executor.parallel.meshes import RankGroup, RankMesh
from executor.weights.flat import Entry, distinct_parameters, entries_of, is_partial, local_part
from executor.weights.optimizers import MOMENTS, ShardOptimizer, adam_of, set_moments


class FullyShardedParameters:
    """Shard a rank's stages in place, and give its weights out whole.

    Args:
        stays_whole: Whether weights stay gathered from step to step (stage 2).

    Attributes:
        entries: Where parameters lie in what `whole_values` returns.
        tied: Name of a parameter of which another pipeline stage has a copy; empty: none. The head is
            the copy.
    """

    def __init__(
        self, stages: Sequence[StageModel], mesh: RankMesh, *, stays_whole: bool, tied: str = ""
    ) -> None:
        found = distinct_parameters(stages)
        self.entries = entries_of(found)
        self.tied, self._mesh, self._stages = tied, mesh, stages
        self._owners = {name: owners[0] for name, _, owners in found}
        assert mesh.mesh is not None, "one rank shards nothing"
        self._stays_whole = stays_whole
        ranks, again = mesh.mesh["copies"], not stays_whole
        for stage in stages:
            for layer in stage.layers.values():
                if mesh.expert_mesh is not None:
                    experts: nn.Module = layer.mlp.experts  # type: ignore[union-attr, assignment]
                    copies = mesh.expert_mesh["expert_copies"]
                    fully_shard(experts, mesh=copies, reshard_after_forward=again)
                fully_shard(layer, mesh=ranks, reshard_after_forward=again)
            fully_shard(stage, mesh=ranks, reshard_after_forward=again)
            if any(parameter.is_meta for parameter in stage.parameters()):
                stage.make_real(mesh.device)
        for module in self.modules():
            # Losses are sums over all ranks, not means.
            module.set_gradient_divide_factor(1.0)
            module.set_reshard_after_backward(not stays_whole)
            if mesh.device.type == "cpu":
                module.set_force_sum_reduction_for_comms(True)
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

    def modules(self) -> Iterator[FSDPModule]:
        """Return the units whose weights are gathered together, stage by stage."""
        for stage in self._stages:
            yield from (unit for unit in stage.modules() if isinstance(unit, FSDPModule))

    def parameters(self) -> dict[str, Tensor]:
        """Return this rank's share of each parameter, a DTensor, by name."""
        return self._shares

    def stored(self) -> list[Tensor]:
        """Return what holds this rank's share of the weights, each with a storage of its own."""
        return [local_part(parameter) for parameter in self.parameters().values()]

    def pieces(self) -> Iterator[tuple[Entry, slice, Tensor]]:
        """Return each parameter's entry, which of its first dimension's rows are held here, and what holds them."""
        for entry, share in zip(self.entries, self.stored(), strict=True):
            first = self._first_row(entry)
            yield entry, slice(first, first + share.shape[0]), share

    def whole_values(self) -> Tensor:
        """Return the weights of this rank's stages in one flat tensor; all ranks gather together."""
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
        """Return what is sharded as the weights are, whole and in one flat tensor.

        Weights make room for it while it is gathered, so that it goes the same way.
        """
        weights = self.stored()
        kept = [weight.clone() for weight in weights]
        with torch.no_grad():
            for weight, share in zip(weights, shares, strict=True):
                weight.copy_(share)
            self._reshard()
            whole = self.whole_values()
            for weight, before in zip(weights, kept, strict=True):
                weight.copy_(before)
        self.refresh()
        return whole

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
        for unit in self.modules():
            unit.unshard()

    def _reshard(self) -> None:
        for unit in self.modules():
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
        self.adam.zero_grad()
        for share in self._weights.parameters().values():
            share.grad = None
        self._weights.refresh()

    def _gradients(self) -> list[tuple[str, Tensor]]:
        """Return this rank's share of each gradient by name."""
        found = []
        for name, parameter in self._weights.parameters().items():
            gradient = parameter.grad
            assert gradient is not None, f"{name} got no gradient"
            found.append((name, local_part(gradient)))
        return found
