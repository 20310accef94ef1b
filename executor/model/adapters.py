"""Low-rank adapters beside linear layers, cut over tensor-parallel ranks as these are (LoRA: Hu et al. 2021, arXiv:2106.09685).

A layer whose outputs are cut has all of its `lora_A` on every rank and the rows of `lora_B` that make these outputs; one
whose inputs are cut has the columns of `lora_A` that take them, and all of `lora_B`. So what a rank's adapter adds to
its slice of the frozen matrix is a product of what it holds.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from rlplan.executor.parallel.meshes import RankMesh
from rlplan.executor.parallel.tensor_parallel import (
    COLUMN_MODULES,
    ROW_MODULES,
    AllReduceBothWays,
    CopyToTensorParallel,
    DividedGradient,
    ReduceFromTensorParallel,
    even_cut,
    is_distributed,
)
from rlplan.models import Adapter

PARTS = {"attention": ("self_attn",), "feed-forward": ("mlp",), "all-linear": ("self_attn", "mlp")}
LORA_A, LORA_B = "lora_A", "lora_B"
# Attribute of an adapted layer that holds the original one; names of parameters leave it out.
FROZEN = "frozen"


class _LoraMatrix(nn.Module):
    """Hold one of an adapter's matrices, and along what it is cut."""

    def __init__(self, values: Tensor, dimension: int | None, mesh: RankMesh) -> None:
        super().__init__()
        weight: Any = nn.Parameter(values)
        weight.cut = even_cut(
            values.shape, dimension, mesh
        )  # as `rlplan.executor.weights.flat` reads it
        self.weight = weight


class AdaptedLinear(nn.Module):
    """Compute a frozen linear layer and the adapter beside it.

    Args:
        linear: Cut over the tensor-parallel ranks already.
        name: Of the layer in the model; with the seed it starts the adapter, the same on any layout.
        cuts_tokens: Whether outputs are cut along the tokens, where inputs are cut along the features.
    """

    def __init__(
        self,
        linear: nn.Linear,
        name: str,
        adapter: Adapter,
        seed: int,
        mesh: RankMesh,
        *,
        cuts_tokens: bool,
    ) -> None:
        super().__init__()
        self.frozen = linear
        self.enabled = True
        self.scale = (adapter.alpha or adapter.rank) / adapter.rank
        self._ranks, self._place = mesh.tp_size, mesh.tp
        self._group = mesh.group("tp") if mesh.tp_size > 1 else None
        self._column = name.rsplit(".", 1)[-1] in COLUMN_MODULES
        self._cuts_tokens = cuts_tokens
        rows, cut = linear.out_features, self._group is not None
        first = _start(f"{seed} {name}", adapter.rank, linear.in_features)
        if self._column:
            rows //= self._ranks
        else:
            first = first.chunk(self._ranks, dim=1)[self._place].contiguous()
        self.lora_A = _LoraMatrix(first, 1 if cut and not self._column else None, mesh)
        second = torch.zeros(rows, adapter.rank)
        self.lora_B = _LoraMatrix(second, 0 if cut and self._column else None, mesh)
        for matrix in (self.lora_A, self.lora_B):
            matrix.weight.data = matrix.weight.data.to(mesh.device)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's outputs, with what the adapter adds."""
        outputs: Tensor = self.frozen(inputs)
        if not self.enabled:
            return outputs
        narrow = F.linear(self._read(inputs), self.lora_A.weight)
        second: Tensor = self.lora_B.weight
        if self._group is not None and not self._column:
            narrow, second = self._joined(narrow, second)
        return outputs + F.linear(narrow, second) * self.scale

    def _read(self, inputs: Tensor) -> Tensor:
        """Return inputs as a plain tensor; ranks that read all of them add up its gradients."""
        if is_distributed(inputs):
            from torch.distributed.tensor import Partial  # noqa: PLC0415  # loaded by now

            return inputs.to_local(grad_placements=[Partial()])
        if self._group is None or not self._column:
            return inputs
        shared: Tensor = CopyToTensorParallel.apply(inputs, self._group)  # type: ignore[no-untyped-call]
        return shared

    def _joined(self, narrow: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum over ranks that each have some of the input features, and the second matrix.

        Gradients of the second matrix are summed over the ranks: each rank has the gradient of its tokens, or a
        part of the same gradient.
        """
        if self._cuts_tokens:
            total = AllReduceBothWays.apply(narrow, self._group)  # type: ignore[no-untyped-call]
            return total.chunk(self._ranks, dim=1)[self._place], second
        total = ReduceFromTensorParallel.apply(narrow, self._group)  # type: ignore[no-untyped-call]
        return total, DividedGradient.apply(second, self._ranks)  # type: ignore[no-untyped-call]


def add_adapters(
    stage: nn.Module, adapter: Adapter, seed: int, mesh: RankMesh, *, cuts_tokens: bool
) -> None:
    """Put adapters beside the linear layers of a stage's blocks, in place."""
    parts = PARTS[adapter.targets]
    for name, module in list(stage.named_modules()):
        path = name.split(".")
        if path[-1] not in (*COLUMN_MODULES, *ROW_MODULES) or not isinstance(module, nn.Linear):
            continue
        if not any(part in path for part in parts):
            continue
        owner = stage.get_submodule(name.rpartition(".")[0])
        adapted = AdaptedLinear(module, name, adapter, seed, mesh, cuts_tokens=cuts_tokens)
        setattr(owner, path[-1], adapted)


def is_adapter(name: str) -> bool:
    """Tell whether a parameter is an adapter's, by its name."""
    path = name.split(".")
    return LORA_A in path or LORA_B in path


def layer_of(name: str) -> str:
    """Return the name of the frozen matrix beside which an adapter's parameter is."""
    return f"{name.rsplit('.', 2)[0]}.weight"


@contextmanager
def adapters_off(stages: Sequence[nn.Module]) -> Iterator[None]:
    """Compute stages as if they had no adapters."""
    adapted = [m for stage in stages for m in stage.modules() if isinstance(m, AdaptedLinear)]
    for module in adapted:
        module.enabled = False
    try:
        yield
    finally:
        for module in adapted:
            module.enabled = True


def _start(key: str, rank: int, width: int) -> Tensor:
    """Return what `lora_A` starts as: uniform, with outputs of a third of the inputs' variance. (rank, width)."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "little")
    uniform = torch.rand(rank, width, generator=torch.Generator().manual_seed(seed))
    start: Tensor = (2 * uniform - 1) / width**0.5
    return start
