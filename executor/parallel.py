"""Meshes of a worker group's ranks, tensor parallelism, and sums over groups of ranks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from executor.protocols import RankPositions

# What a DTensor plan shards, by the module's name: along outputs (columns) or inputs (rows).
COLUMN_MODULES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
ROW_MODULES = ("o_proj", "down_proj")
# What is cut along the tokens where sequence parallelism is on.
SEQUENCE_MODULES = ("input_layernorm", "post_attention_layernorm", "norm")
# Norms over the heads that a rank holds: whole weights, but each rank sees its heads' gradients.
PARTIAL_GRADIENT_MODULES = ("q_norm", "k_norm")


@dataclass(slots=True, eq=False)
class RankMesh:
    """Hold a rank's place in a (dp, pp, tp) layout and its groups.

    Attributes:
        device: Where this rank's tensors live.
        mesh: Its dimensions are those of more than one rank; None where there is none.
        ends: First and last pipeline stage of this rank's pipeline, where weights are tied.
    """

    positions: RankPositions
    rank: int
    device: torch.device
    mesh: DeviceMesh | None = None
    ends: dist.ProcessGroup | None = None

    @property
    def tp_size(self) -> int:
        """Return the tensor-parallel size."""
        return self.positions.tp_size

    @property
    def pp_size(self) -> int:
        """Return the pipeline-parallel size."""
        return self.positions.pp_size

    @property
    def dp_size(self) -> int:
        """Return the data-parallel size."""
        return self.positions.dp_size

    @property
    def tp(self) -> int:
        """Return this rank's tensor-parallel position."""
        return self.positions.tp[self.rank]

    @property
    def pp(self) -> int:
        """Return this rank's pipeline position."""
        return self.positions.pp[self.rank]

    @property
    def dp(self) -> int:
        """Return this rank's data-parallel position."""
        return self.positions.dp[self.rank]

    @property
    def leads(self) -> bool:
        """Tell whether this rank speaks for its data-parallel position: the end of its pipeline."""
        return self.rank in self.positions.leaders()

    @property
    def comes_first(self) -> bool:
        """Tell whether this rank is the first of its data-parallel position."""
        return self.tp == 0 and self.pp == 0

    def group(self, dimension: str) -> dist.ProcessGroup:
        """Return this rank's group along `dp`, `pp` or `tp`."""
        assert self.mesh is not None, f"one rank has no {dimension} group"
        return self.mesh.get_group(dimension)

    def pipeline_rank(self, position: int) -> int:
        """Return the rank, in the whole process group, at a position of this rank's pipeline."""
        return dist.get_global_rank(self.group("pp"), position)

    def sum_over_dp(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over the data-parallel ranks, in place."""
        return self._sum(values, "dp", self.dp_size)

    def sum_over_tp(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over the tensor-parallel ranks, in place."""
        return self._sum(values, "tp", self.tp_size)

    def sum_over_pp(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over the pipeline's ranks, in place."""
        return self._sum(values, "pp", self.pp_size)

    def _sum(self, values: Tensor, dimension: str, size: int) -> Tensor:
        if size > 1:
            dist.all_reduce(values, group=self.group(dimension))
        return values

    def tie_ends(self) -> None:
        """Make the group that joins both ends of each pipeline; all ranks call it together."""
        if self.pp_size == 1 or self.ends is not None:
            return
        if self.pp_size == 2:  # noqa: PLR2004  # both ends are the whole pipeline
            self.ends = self.group("pp")
            return
        for ranks in self.positions.groups():
            for tp in range(self.tp_size):
                ends = [ranks[tp], ranks[tp - self.tp_size]]
                made = dist.new_group(ends)
                if self.rank in ends:
                    self.ends = made


def make_mesh(positions: RankPositions, rank: int, device: torch.device) -> RankMesh:
    """Return a rank's mesh; every rank of the worker group calls it, in the same order."""
    if positions.ranks == 1:
        return RankMesh(positions, rank, device)
    sizes = {"dp": positions.dp_size, "pp": positions.pp_size, "tp": positions.tp_size}
    several = {name: size for name, size in sizes.items() if size > 1}
    grid = torch.tensor(positions.groups()).view(*several.values())
    return RankMesh(
        positions, rank, device, DeviceMesh(device.type, grid, mesh_dim_names=tuple(several))
    )


def apply_tensor_parallelism(
    model: nn.Module, mesh: RankMesh, *, split_vocabulary: bool, sequence_parallel: bool = False
) -> None:
    """Cut a stage's matrices over the tensor-parallel ranks, in place.

    Two all-reduces a layer in each direction (Shoeybi et al. 2019, Megatron-LM, section 3): the
    inputs of attention and MLP are marked as replicated once, not once for each matrix. With
    sequence parallelism each becomes a reduce-scatter and an all-gather, and norms and residuals
    are cut along the tokens (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
    """
    assert mesh.mesh is not None
    between: Placement = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        last = name.rsplit(".", 1)[-1]
        style = _layer_style(last, between, experts=hasattr(module, "experts"))
        if style is None and last in ("embed_tokens", "head"):
            style = _end_style(last, between, split_vocabulary=split_vocabulary)
        elif style is None and sequence_parallel and last in SEQUENCE_MODULES:
            style = SequenceParallel()
        if style is not None and not isinstance(module, nn.ModuleDict):
            plan[name] = style
    parallelize_module(model, mesh.mesh["tp"], plan)


def _layer_style(module: str, between: Placement, *, experts: bool) -> ParallelStyle | None:
    """Return how a module of a layer is cut; None: it is not.

    Args:
        between: How hidden states are held between attention and MLP.
        experts: Whether it has experts, which are cut by themselves and see plain tensors.
    """
    if experts:
        return _experts_style(between)
    if module == "self_attn":
        return PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": between},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        )
    if module == "mlp":
        return PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
    if module in COLUMN_MODULES:
        return ColwiseParallel()
    if module in ROW_MODULES:
        return RowwiseParallel(output_layouts=between)
    return None


def _experts_style(between: Placement) -> ParallelStyle | None:
    if not isinstance(between, Shard):
        return None
    return PrepareModuleInputOutput(
        input_layouts=(between,),
        desired_input_layouts=(Replicate(),),
        use_local_input=True,
        output_layouts=(Replicate(),),
        desired_output_layouts=(between,),
        use_local_output=True,
    )


def _end_style(module: str, between: Placement, *, split_vocabulary: bool) -> ParallelStyle | None:
    """Return how the embedding or the head is cut, or what brings whole ones to cut tokens."""
    if module == "embed_tokens" and split_vocabulary:
        return RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if module == "head" and split_vocabulary:
        return ColwiseParallel(input_layouts=between, output_layouts=Replicate())
    if not isinstance(between, Shard):
        return None
    if module == "embed_tokens":
        return PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=between)
    return PrepareModuleInput(
        input_layouts=(between,), desired_input_layouts=(Replicate(),), use_local_output=True
    )


ReduceSum = Callable[[Tensor], Tensor]


def reduce_sum_over_dp(mesh: RankMesh) -> ReduceSum:
    """Return a function that sums a tensor over the data-parallel ranks and leaves its input alone."""
    return lambda values: mesh.sum_over_dp(values.clone())
