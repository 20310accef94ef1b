"""Experts of mixture-of-experts layers: each cut over ranks along its width, all shared out over others.

Every tensor-parallel rank routes every token alike and holds a slice of its experts: the first
product of an expert's MLP is cut along its outputs, the second along its inputs, as in a dense
layer. Expert-parallel ranks hold different experts and have different tokens: these are sent to who
has their experts, and come back (`executor.parallel.expert_exchange`).
"""

from functools import partial
from typing import Any

import torch.distributed as dist
from torch import nn

from executor.parallel.cuts import Cut, even_cut
from executor.parallel.expert_exchange import exchanged_experts
from executor.parallel.meshes import RankMesh
from executor.parallel.sums import SharedInput, SummedOutput

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
        module.register_forward_pre_hook(lambda _, inputs, group=group: _shared(inputs, group))
        module.register_forward_hook(
            lambda _, __, output, group=group: SummedOutput.apply(output, group)  # type: ignore[no-untyped-call]
        )


def is_expert(name: str) -> bool:
    """Tell whether a parameter is an expert's, by its name."""
    return EXPERTS in name.split(".")


def _shared(inputs: tuple[Any, ...], group: dist.ProcessGroup) -> tuple[Any, ...]:
    """Share hidden states and routing weights, which have gradients; chosen experts pass as they are."""
    return tuple(
        SharedInput.apply(value, group) if value.is_floating_point() else value  # type: ignore[no-untyped-call]
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
        whole.cut = Cut(tuple(stacked.shape))  # as `executor.weights.flat` reads it
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
