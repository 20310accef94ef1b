"""Experts of mixture-of-experts layers: each cut over ranks along its width, all shared out over others.

Every tensor-parallel rank routes every token alike and holds a slice of its experts: the first
product of an expert's MLP is cut along its outputs, the second along its inputs, as in a dense
layer. Expert-parallel ranks hold different experts and have different tokens: these are sent to who
has their experts, and come back (`rlplan.executor.model.experts`).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from rlplan.executor.parallel.meshes import RankGroup, RankMesh
from rlplan.executor.parallel.tensor_parallel import (
    CopyToTensorParallel,
    Cut,
    ReduceFromTensorParallel,
    even_cut,
)

Counts = Sequence[int]


# By hand: torch's functional collectives give the same gradients and take one and a half times as long
# (two ranks with Gloo, 256 rows of 64). What they replace is deprecated.
class _ExpertAllToAll(torch.autograd.Function):
    """Exchange rows of tokens between expert-parallel ranks by an all-to-all; gradients take the reverse one."""

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
    rows: Tensor = _ExpertAllToAll.apply(hidden[tokens], send_counts, receive_counts, ranks)  # type: ignore[no-untyped-call]
    owners = torch.arange(held, device=rows.device).repeat(ranks.size)
    by_expert = owners.repeat_interleave(received).argsort(stable=True)
    parts = torch.split(rows[by_expert], arriving.sum(dim=0).tolist())
    outputs = torch.cat(
        [_expert_output(experts, number, part) for number, part in enumerate(parts)]
    )
    outputs = torch.empty_like(outputs).index_copy(0, by_expert, outputs)
    back: Tensor = _ExpertAllToAll.apply(outputs, receive_counts, send_counts, ranks)  # type: ignore[no-untyped-call]
    weighted = back * weights.flatten()[order, None]
    return torch.zeros_like(hidden).index_add(0, tokens, weighted.to(hidden.dtype))


def _expert_output(experts: Any, number: int, rows: Tensor) -> Tensor:
    """Return one expert's outputs; of no rows too, so that every rank has the same gradients."""
    gate, up = F.linear(rows, experts.gate_up_proj[number]).chunk(2, dim=-1)
    return F.linear(experts.act_fn(gate) * up, experts.down_proj[number])


EXPERTS = "experts"


def cut_experts(stage: nn.Module, mesh: RankMesh) -> None:
    """Cut the experts of a stage's layers over the tensor- and expert-parallel ranks, in place.

    On one rank too, stacked matrices are told apart, so that shards of any layout have one form.
    """
    for name, module in stage.named_modules():
        if name.rsplit(".", 1)[-1] != EXPERTS:
            continue
        _cut_parameter(module, "gate_up_proj", mesh, halves=2)
        _cut_parameter(module, "down_proj", mesh)
        if mesh.experts.size > 1:
            module.forward = partial(exchanged_experts, module, mesh.experts)
        if mesh.tp_size == 1:
            continue
        group = mesh.group("tp")
        module.register_forward_pre_hook(
            lambda _, inputs, group=group: _copied_to_ranks(inputs, group)
        )
        module.register_forward_hook(
            lambda _, __, output, group=group: ReduceFromTensorParallel.apply(output, group)  # type: ignore[no-untyped-call]
        )


def is_expert(name: str) -> bool:
    """Tell whether a parameter is an expert's, by its name."""
    return EXPERTS in name.split(".")


def _copied_to_ranks(inputs: tuple[Any, ...], group: dist.ProcessGroup) -> tuple[Any, ...]:
    """Copy hidden states and routing weights to tensor-parallel ranks, with all-reduced gradients; indices of experts pass unchanged."""
    return tuple(
        CopyToTensorParallel.apply(value, group) if value.is_floating_point() else value  # type: ignore[no-untyped-call]
        for value in inputs
    )


def _cut_parameter(module: nn.Module, name: str, mesh: RankMesh, *, halves: int = 1) -> None:
    """Keep this rank's slice of an expert matrix of shape (experts, out, in).

    Args:
        halves: Matrices that are stacked along `out` and cut there each by itself; 1: cut along `in`.
    """
    whole: Any = getattr(module, name)
    count, rows, width = whole.shape
    stacked = whole.detach().view(count, halves, rows // halves, width)
    if mesh.tp_size == 1 and mesh.experts.size == 1:
        whole.cut = Cut(tuple(stacked.shape))  # as `rlplan.executor.weights.flat` reads it
        return
    mine = stacked.chunk(mesh.experts.size)[mesh.experts.position]
    dimension = None
    if mesh.tp_size > 1:
        dimension = 2 if halves > 1 else 3
        mine = mine.chunk(mesh.tp_size, dim=dimension)[mesh.tp]
    mine = mine.contiguous()
    parameter: Any = nn.Parameter(
        mine.view(len(mine), mine.shape[1] * mine.shape[2], mine.shape[3])
    )
    parameter.cut = even_cut(mine.shape, dimension, mesh)
    setattr(module, name, parameter)
