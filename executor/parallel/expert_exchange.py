"""Dispatch tokens to the ranks that have their experts, and combine the experts' outputs.

Every expert-parallel rank has as many experts as any other, one after another. Two all-to-alls a
layer in each direction, of as many rows as tokens chose the experts of a rank (Lepikhin et al. 2020,
GShard, arXiv:2006.16668, section 3.2); no token is dropped, so the numbers of rows are exchanged first.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from executor.parallel.meshes import RankGroup

Counts = Sequence[int]


# By hand: torch's functional collectives give the same gradients and take one and a half times as long
# (two ranks with Gloo, 256 rows of 64). What they replace is deprecated.
class _Exchanged(torch.autograd.Function):
    """Send rows to other ranks; their gradients come back the same way."""

    @staticmethod
    def forward(
        context: Any, rows: Tensor, send_counts: Counts, receive_counts: Counts, ranks: RankGroup
    ) -> Tensor:
        """Return the rows that come from all ranks, in their order."""
        context.send_counts, context.receive_counts, context.ranks = (
            send_counts,
            receive_counts,
            ranks,
        )
        return _all_to_all(rows, send_counts, receive_counts, ranks)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradients of the rows that went."""
        back = _all_to_all(gradients[0], context.receive_counts, context.send_counts, context.ranks)
        return back, None, None, None


def _all_to_all(
    rows: Tensor, send_counts: Counts, receive_counts: Counts, ranks: RankGroup
) -> Tensor:
    found = rows.new_empty(sum(receive_counts), *rows.shape[1:])
    dist.all_to_all_single(
        found, rows.contiguous(), list(receive_counts), list(send_counts), group=ranks.group
    )
    return found


def exchanged_experts(
    experts: Any, ranks: RankGroup, hidden: Tensor, chosen: Tensor, weights: Tensor
) -> Tensor:
    """Return the outputs of a layer's experts, of which this rank has some. (n, hidden).

    Args:
        experts: The layer's module, with this rank's experts alone.
        hidden: Shape (n, hidden).
        chosen: Numbers of the experts of each token. Shape (n, k).
        weights: Of their outputs. Shape (n, k).
    """
    held = len(experts.down_proj)
    order = chosen.flatten().argsort(stable=True)
    tokens = order // chosen.shape[1]
    numbers = torch.bincount(chosen.flatten(), minlength=held * ranks.size)
    received = torch.empty_like(numbers)
    dist.all_to_all_single(received, numbers, group=ranks.group)
    # By rank that they come from, by expert of this rank.
    arriving = received.view(ranks.size, held)
    send_counts, receive_counts = (
        numbers.view(ranks.size, held).sum(dim=1).tolist(),
        arriving.sum(dim=1).tolist(),
    )
    rows: Tensor = _Exchanged.apply(hidden[tokens], send_counts, receive_counts, ranks)  # type: ignore[no-untyped-call]
    owners = torch.arange(held, device=rows.device).repeat(ranks.size)
    by_expert = owners.repeat_interleave(received).argsort(stable=True)
    parts = torch.split(rows[by_expert], arriving.sum(dim=0).tolist())
    outputs = torch.cat(
        [_expert_output(experts, number, part) for number, part in enumerate(parts)]
    )
    outputs = torch.empty_like(outputs).index_copy(0, by_expert, outputs)
    back: Tensor = _Exchanged.apply(outputs, receive_counts, send_counts, ranks)  # type: ignore[no-untyped-call]
    weighted = back * weights.flatten()[order, None]
    return torch.zeros_like(hidden).index_add(0, tokens, weighted.to(hidden.dtype))


def _expert_output(experts: Any, number: int, rows: Tensor) -> Tensor:
    """Return one expert's outputs; of no rows too, so that every rank has the same gradients."""
    gate, up = F.linear(rows, experts.gate_up_proj[number]).chunk(2, dim=-1)
    return F.linear(experts.act_fn(gate) * up, experts.down_proj[number])
