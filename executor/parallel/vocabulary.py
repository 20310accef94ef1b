"""Embedding and language-model head, cut over the tensor-parallel ranks by entries of the vocabulary.

Rank r of t has the entries from r V / t on up to (r + 1) V / t, both rounded down: no more than V / t rounded up,
whether t divides V or not. No entry is added for that, so none can be sampled, learn or be stored. (Shoeybi et
al. 2019, Megatron-LM, section 3, pads the vocabulary instead.)
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlplan.executor.parallel.cuts import Cut, joined, span_of
from rlplan.executor.parallel.meshes import RankMesh
from rlplan.executor.parallel.sums import GatheredTokens, ScatteredSum, SharedInput, SummedOutput


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
    """Return this rank's rows of a matrix, which say where they lie as `rlplan.executor.weights.flat` reads it."""
    first, stop = span_of(len(whole), mesh.tp_size, mesh.tp)
    part: Any = nn.Parameter(whole.detach()[first:stop].clone())
    part.cut = Cut(tuple(part.shape), 0, first, len(whole))
    made: nn.Parameter = part
    return made


def _embedded(
    look_up: Any, first: int, rows: int, group: dist.ProcessGroup, cuts_tokens: bool, tokens: Tensor
) -> Tensor:
    """Return the embeddings of tokens, of which each has its row on one of the ranks. (B, T, hidden)."""
    inside = tokens - first
    foreign = (inside < 0) | (inside >= rows)
    found = look_up(inside.masked_fill(foreign, 0)).masked_fill(foreign[..., None], 0.0)
    way = ScatteredSum if cuts_tokens else SummedOutput
    summed: Tensor = way.apply(found, group)  # type: ignore[no-untyped-call]
    return summed


def _logits(
    project: Any, whole: int, group: dist.ProcessGroup, cuts_tokens: bool, hidden: Tensor
) -> Tensor:
    """Return the logits of all entries, of which each rank computes its own. (B, T, vocabulary)."""
    way = GatheredTokens if cuts_tokens else SharedInput
    outputs = project(way.apply(hidden, group))  # type: ignore[no-untyped-call]
    logits: Tensor = _JoinedEntries.apply(outputs, group, whole)  # type: ignore[no-untyped-call]
    return logits


class _JoinedEntries(torch.autograd.Function):
    """Bring the ranks' entries together; all ranks go on alike, so each has the gradient of its own."""

    @staticmethod
    def forward(context: Any, mine: Tensor, group: dist.ProcessGroup, whole: int) -> Tensor:
        """Return all ranks' entries."""
        context.span = span_of(whole, dist.get_world_size(group), dist.get_rank(group))
        return joined(mine, -1, whole, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of this rank's entries."""
        first, stop = context.span
        return gradients[0][..., first:stop], None, None
