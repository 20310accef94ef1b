"""Context parallelism: ranks that share the tokens of each sequence, and what they gather.

Rank r of n has every n-th token of a packed row, from its r-th on (striped attention, Brandon et al.
2023, arXiv:2311.09431): of every sequence, however long, all ranks have as many tokens and as much
of the causal triangle. Keys and values are gathered whole for each layer.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlplan.executor.parallel.meshes import RankGroup


class _AllGatherRows(torch.autograd.Function):
    """All-gather striped rows of context-parallel ranks, in the order of the sequence."""

    @staticmethod
    def forward(context: Any, mine: Tensor, ranks: RankGroup, alike: bool) -> Tensor:
        """Return the rows of all ranks."""
        context.ranks, context.alike = ranks, alike
        found = mine.new_empty(ranks.size * len(mine), *mine.shape[1:])
        dist.all_gather_into_tensor(found, mine.contiguous(), group=ranks.group)
        by_rank = found.view(ranks.size, len(mine), *mine.shape[1:])
        return by_rank.transpose(0, 1).flatten(0, 1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of this rank's rows: of all ranks' results, or of any one where all are alike."""
        ranks = context.ranks
        whole = gradients[0]
        rows = len(whole) // ranks.size
        by_rank = whole.reshape(rows, ranks.size, *whole.shape[1:]).transpose(0, 1)
        if context.alike:
            return by_rank[ranks.position].contiguous(), None, None
        mine = torch.empty_like(by_rank[0], memory_format=torch.contiguous_format)
        dist.reduce_scatter_tensor(mine, by_rank.contiguous().flatten(0, 1), group=ranks.group)
        return mine, None, None


def gather_rows(mine: Tensor, ranks: RankGroup, *, alike: bool = False) -> Tensor:
    """Return all ranks' rows.

    Args:
        mine: Every n-th row. Shape (L / n, ...).
        alike: Whether every rank makes the same of them; else each goes on in its own way, and gradients
            add up.
    """
    if ranks.size == 1:
        return mine
    gathered: Tensor = _AllGatherRows.apply(mine, ranks, alike)  # type: ignore[no-untyped-call]
    return gathered
