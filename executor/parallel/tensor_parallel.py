"""Tensor parallelism: how matrices, vocabularies and norms are cut, and sums over the ranks that hold the parts."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlplan.executor.parallel.meshes import RankMesh

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


@dataclass(frozen=True, slots=True)
class Cut:
    """Say which part of a whole parameter a rank holds.

    Attributes:
        shape: Of the part; stacked matrices have a dimension for the stack.
        dimension: Along which it is cut over the tensor-parallel ranks; None: held whole.
        first: Where the part begins along that dimension.
        whole: Of the whole parameter, the size along it.
    """

    shape: tuple[int, ...]
    dimension: int | None = None
    first: int = 0
    whole: int = 0


def even_cut(shape: Sequence[int], dimension: int | None, mesh: RankMesh) -> Cut:
    """Return the cut of a parameter of which every tensor-parallel rank has as much.

    Args:
        shape: Of this rank's part.
        dimension: Along which it is cut; None: held whole.
    """
    if dimension is None:
        return Cut(tuple(shape))
    width = shape[dimension]
    return Cut(tuple(shape), dimension, mesh.tp * width, mesh.tp_size * width)


def span_of(whole: int, ranks: int, position: int) -> tuple[int, int]:
    """Return where a rank's part begins and ends of what ranks share out as evenly as they can.

    No part is larger than the size over the ranks, rounded up. A part of fewer ranks is made up of
    whole parts of any multiple of them, which a transition between tensor-parallel sizes needs.
    """
    return position * whole // ranks, (position + 1) * whole // ranks


def joined(part: Tensor, dimension: int, whole: int, group: dist.ProcessGroup) -> Tensor:
    """Return the whole of what the ranks of a group share out along a dimension, as `span_of` has it."""
    ranks = dist.get_world_size(group)
    missing = -(-whole // ranks) - part.shape[dimension]
    if missing:  # ranks send as much each; what fills a part up is cut off again
        shape = list(part.shape)
        shape[dimension] = missing
        part = torch.cat([part, part.new_zeros(shape)], dim=dimension)
    found = part.new_empty(ranks * part.shape[0], *part.shape[1:])
    dist.all_gather_into_tensor(found, part.contiguous(), group=group)
    spans = [span_of(whole, ranks, position) for position in range(ranks)]
    pieces = [
        each.narrow(dimension, 0, stop - first)
        for each, (first, stop) in zip(found.chunk(ranks), spans, strict=True)
    ]
    return torch.cat(pieces, dim=dimension)


class CopyToTensorParallel(torch.autograd.Function):
    """Pass the same tensor to every rank's part of a product; all-reduce its gradient."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the values as they are."""
        context.group = group
        return values

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the sum of the ranks' gradients."""
        return _summed(gradients[0], context.group), None


class ReduceFromTensorParallel(torch.autograd.Function):
    """All-reduce the partial outputs of a product; the gradient goes to every rank as it is."""

    @staticmethod
    def forward(_: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the sum over the ranks."""
        return _summed(values, group)

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient as it is."""
        return gradients[0], None


class AllReduceBothWays(torch.autograd.Function):
    """All-reduce a tensor, and its gradient too: each rank uses the sum in its own way."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the sum over the ranks."""
        context.group = group
        return _summed(values, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the sum of the ranks' gradients."""
        return _summed(gradients[0], context.group), None


class DividedGradient(torch.autograd.Function):
    """Pass a tensor on; divide its gradient among ranks that all have the whole of it."""

    @staticmethod
    def forward(context: Any, values: Tensor, ranks: int) -> Tensor:
        """Return the values as they are."""
        context.ranks = ranks
        return values

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return this rank's part of the gradient."""
        return gradients[0] / context.ranks, None


class ReduceScatterToSequenceParallel(torch.autograd.Function):
    """Reduce-scatter partial outputs: each rank keeps the sum of its share of the tokens."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the sum of this rank's tokens. (B, T, width) -> (B, T / ranks, width)."""
        context.group = group
        return _scattered(values, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradients of all tokens."""
        return _gathered(gradients[0], context.group), None


class GatherFromSequenceParallel(torch.autograd.Function):
    """All-gather the tokens that are split over the ranks; reduce-scatter their gradients."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return all tokens. (B, T / ranks, width) -> (B, T, width)."""
        context.group = group
        return _gathered(values, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the sum of the ranks' gradients of this rank's tokens."""
        return _scattered(gradients[0], context.group), None


def _scattered(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    by_token = values.transpose(0, 1).contiguous()
    mine = by_token.new_empty(len(by_token) // dist.get_world_size(group), *by_token.shape[1:])
    dist.reduce_scatter_tensor(mine, by_token, group=group)
    return mine.transpose(0, 1)


def _gathered(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    by_token = values.transpose(0, 1).contiguous()
    found = by_token.new_empty(len(by_token) * dist.get_world_size(group), *by_token.shape[1:])
    dist.all_gather_into_tensor(found, by_token, group=group)
    return found.transpose(0, 1)


def _summed(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = values.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total


# What a DTensor plan shards, by the module's name: along outputs (columns) or inputs (rows).
COLUMN_MODULES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
ROW_MODULES = ("o_proj", "down_proj")
# What is cut along the tokens where sequence parallelism is on.
SEQUENCE_MODULES = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "post_self_attn_layernorm",
    "post_mlp_layernorm",
    "norm",
)
# What families call the shared expert, which takes plain tensors as the routed experts do.
SHARED_EXPERTS = ("shared_expert", "shared_experts")
# Norms over the heads that a rank holds: whole weights, but each rank sees its heads' gradients.
PARTIAL_GRADIENT_MODULES = ("q_norm", "k_norm")


def cut_vocabulary(stage: nn.Module, mesh: RankMesh, *, cuts_tokens: bool) -> None:
    """Cut a stage's embedding and language-model head over the tensor-parallel ranks, in place.

    A head that is the embedding still is. Scalar heads stay whole.

    Args:
        cuts_tokens: Whether hidden states are cut along the tokens.
    """
    group = mesh.group("tp")
    parts: dict[int, nn.Parameter] = {}
    for name, module in list(stage.named_modules()):
        last = name.rpartition(".")[2]
        if last == "embed_tokens":
            assert isinstance(module, nn.Embedding)
            found = parts.setdefault(id(module.weight), _part(module.weight, mesh))
            first = span_of(module.num_embeddings, mesh.tp_size, mesh.tp)[0]
            module.forward = partial(  # type: ignore[method-assign]
                _embedded, module.forward, first, len(found), group, cuts_tokens
            )
            module.weight = found
        elif last == "head" and isinstance(module, nn.Linear) and module.out_features > 1:
            found = parts.setdefault(id(module.weight), _part(module.weight, mesh))
            module.forward = partial(  # type: ignore[method-assign]
                _logits, module.forward, module.out_features, group, cuts_tokens
            )
            module.weight = found


def _part(whole: Tensor, mesh: RankMesh) -> nn.Parameter:
    """Return this rank's rows of a matrix, with the cut that `rlplan.executor.weights.flat` reads."""
    first, stop = span_of(len(whole), mesh.tp_size, mesh.tp)
    part: Any = nn.Parameter(whole.detach()[first:stop].clone())
    part.cut = Cut(tuple(part.shape), 0, first, len(whole))
    made: nn.Parameter = part
    return made


def _embedded(
    look_up: Any, first: int, rows: int, group: dist.ProcessGroup, cuts_tokens: bool, tokens: Tensor
) -> Tensor:
    """Return the embeddings of tokens from an embedding that is cut over the ranks. (B, T, hidden)."""
    inside = tokens - first
    foreign = (inside < 0) | (inside >= rows)
    found = look_up(inside.masked_fill(foreign, 0)).masked_fill(foreign[..., None], 0.0)
    way = ReduceScatterToSequenceParallel if cuts_tokens else ReduceFromTensorParallel
    summed: Tensor = way.apply(found, group)  # type: ignore[no-untyped-call]
    return summed


def _logits(
    project: Any, whole: int, group: dist.ProcessGroup, cuts_tokens: bool, hidden: Tensor
) -> Tensor:
    """Return the logits of the whole vocabulary, of which each rank computes a part. (B, T, vocabulary)."""
    way = GatherFromSequenceParallel if cuts_tokens else CopyToTensorParallel
    outputs = project(way.apply(hidden, group))  # type: ignore[no-untyped-call]
    logits: Tensor = _JoinedEntries.apply(outputs, group, whole)  # type: ignore[no-untyped-call]
    return logits


class _JoinedEntries(torch.autograd.Function):
    """All-gather the ranks' parts of the vocabulary; all ranks compute the same from them, so each takes the gradient of its part."""

    @staticmethod
    def forward(context: Any, mine: Tensor, group: dist.ProcessGroup, whole: int) -> Tensor:
        """Return the parts of all ranks."""
        context.span = span_of(whole, dist.get_world_size(group), dist.get_rank(group))
        return joined(mine, -1, whole, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of this rank's part."""
        first, stop = context.span
        return gradients[0][..., first:stop], None, None


WIDE_NORMS = ("q_norm", "k_norm")


class WideNorm(nn.Module):
    """Normalise a rank's part of rows by the mean square of whole rows."""

    def __init__(self, norm: Any, mesh: RankMesh) -> None:
        super().__init__()
        part = norm.weight.detach().chunk(mesh.tp_size)[mesh.tp].clone()
        weight: Any = nn.Parameter(part)
        weight.cut = even_cut(part.shape, 0, mesh)  # as `rlplan.executor.weights.flat` reads it
        self.weight = weight
        self.variance_epsilon = norm.variance_epsilon
        self._width, self._group = norm.weight.numel(), mesh.group("tp")

    def forward(self, rows: Tensor) -> Tensor:
        """Return the normalised part. (..., part)."""
        wide = rows.float()
        squares = wide.square().sum(dim=-1, keepdim=True)
        total: Tensor = AllReduceBothWays.apply(squares, self._group)  # type: ignore[no-untyped-call]
        normed = wide * torch.rsqrt(total / self._width + self.variance_epsilon)
        scaled: Tensor = self.weight * normed
        return scaled.to(rows.dtype)


def cut_wide_norms(stage: nn.Module, mesh: RankMesh) -> None:
    """Cut norms over all heads together over the tensor-parallel ranks, in place."""
    for module in list(stage.modules()):
        for name in WIDE_NORMS:
            norm: Any = getattr(module, name, None)
            if norm is not None and norm.weight.numel() > module.head_dim:
                setattr(module, name, WideNorm(norm, mesh))


def is_distributed(tensor: Tensor) -> "TypeIs[DTensor]":
    """Tell whether a tensor is one of torch's distributed ones: where these are not loaded, there is none."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)
