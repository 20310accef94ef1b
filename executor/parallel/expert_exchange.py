"""Send tokens to the ranks that have their experts, and what these say of them back.

Every expert-parallel rank has as many experts as any other, one after another. Two all-to-alls a
layer in each direction, of as many rows as tokens chose the experts of a rank (Lepikhin et al. 2020,
GShard, arXiv:2006.16668, section 3.2); no token is dropped, so the number of rows is told first.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from executor.parallel.meshes import RankGroup

Counts = Sequence[int]


class _Exchanged(torch.autograd.Function):
    """Send rows to other ranks; their gradients come back the same way."""

    @staticmethod
    def forward(
        context: Any, rows: Tensor, going: Counts, coming: Counts, ranks: RankGroup
    ) -> Tensor:
        """Return the rows that come from all ranks, in their order."""
        context.going, context.coming, context.ranks = going, coming, ranks
        return _all_to_all(rows, going, coming, ranks)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradients of the rows that went."""
        back = _all_to_all(gradients[0], context.coming, context.going, context.ranks)
        return back, None, None, None


def _all_to_all(rows: Tensor, going: Counts, coming: Counts, ranks: RankGroup) -> Tensor:
    found = rows.new_empty(sum(coming), *rows.shape[1:])
    dist.all_to_all_single(found, rows.contiguous(), list(coming), list(going), group=ranks.group)
    return found


def exchanged_experts(
    experts: Any, ranks: RankGroup, hidden: Tensor, chosen: Tensor, weights: Tensor
) -> Tensor:
    """Return what a layer's experts, of which this rank has some, say of its tokens. (n, hidden).

    Args:
        experts: The layer's module, with this rank's experts alone.
        hidden: Shape (n, hidden).
        chosen: Numbers of the experts of each token. Shape (n, k).
        weights: Of their answers. Shape (n, k).
    """
    held = len(experts.down_proj)
    order = chosen.flatten().argsort(stable=True)
    tokens = order // chosen.shape[1]
    numbers = torch.bincount(chosen.flatten(), minlength=held * ranks.size)
    told = torch.empty_like(numbers)
    dist.all_to_all_single(told, numbers, group=ranks.group)
    # By rank that they come from, by expert of this rank.
    arriving = told.view(ranks.size, held)
    going, coming = numbers.view(ranks.size, held).sum(dim=1).tolist(), arriving.sum(dim=1).tolist()
    rows: Tensor = _Exchanged.apply(hidden[tokens], going, coming, ranks)  # type: ignore[no-untyped-call]
    owners = torch.arange(held, device=rows.device).repeat(ranks.size)
    by_expert = owners.repeat_interleave(told).argsort(stable=True)
    parts = torch.split(rows[by_expert], arriving.sum(dim=0).tolist())
    answers = torch.cat([_answer(experts, number, part) for number, part in enumerate(parts)])
    answers = torch.empty_like(answers).index_copy(0, by_expert, answers)
    back: Tensor = _Exchanged.apply(answers, coming, going, ranks)  # type: ignore[no-untyped-call]
    weighted = back * weights.flatten()[order, None]
    return torch.zeros_like(hidden).index_add(0, tokens, weighted.to(hidden.dtype))


def _answer(experts: Any, number: int, rows: Tensor) -> Tensor:
    """Return what one expert says of rows; of none too, so that every rank has the same gradients."""
    gate, up = F.linear(rows, experts.gate_up_proj[number]).chunk(2, dim=-1)
    return F.linear(experts.act_fn(gate) * up, experts.down_proj[number])
