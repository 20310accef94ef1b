"""Norms over the queries or keys of all heads together, of which tensor-parallel ranks each have some heads (OLMo 2)."""

from typing import Any

import torch
from torch import Tensor, nn

from rlplan.executor.parallel.cuts import even_cut
from rlplan.executor.parallel.meshes import RankMesh
from rlplan.executor.parallel.sums import SummedBothWays

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
        total: Tensor = SummedBothWays.apply(squares, self._group)  # type: ignore[no-untyped-call]
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
