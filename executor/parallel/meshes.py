"""Meshes of ranks: the process groups between those that share a dimension of a layout."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from rlplan.executor.parallel.positions import RankPositions

ReduceSum = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class RankGroup:
    """Hold ranks that share one thing, and this rank's place among them.

    Attributes:
        group: None where this rank is alone.
    """

    size: int = 1
    position: int = 0
    group: dist.ProcessGroup | None = None

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values


ONE_RANK = RankGroup()


@dataclass(slots=True, eq=False)
class RankMesh:
    """Hold a rank's place in a (dp, cp, pp, tp) layout and its groups.

    Data- and context-parallel ranks alike hold a copy of the model and differ in their tokens: the
    ranks of `copies` add up their gradients. Expert parallelism shares out the experts over
    consecutive data-parallel ranks, which leaves `expert_copies` of each expert.

    Attributes:
        device: Where this rank's tensors are.
        mesh: Its dimensions are those of more than one rank; None where there is none.
        ep: Expert-parallel size.
        token_mesh: Tells data- from context-parallel ranks, where there are both kinds.
        expert_mesh: Dimensions `ep` and `expert_copies`, where experts are shared out.
        ends: First and last pipeline stage of this rank's pipeline, where weights are tied.
    """

    positions: RankPositions
    rank: int
    device: torch.device
    mesh: DeviceMesh | None = None
    ep: int = 1
    token_mesh: DeviceMesh | None = None
    expert_mesh: DeviceMesh | None = None
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
        """Tell whether this rank's results count for its data-parallel position: the end of its pipeline."""
        return self.rank in self.positions.leaders()

    @property
    def comes_first(self) -> bool:
        """Tell whether this rank is the first of its copy of the model."""
        return self.tp == 0 and self.pp == 0

    @property
    def copies(self) -> RankGroup:
        """Return the ranks that hold the same part of the model."""
        size = self.positions.copies_size
        group = self.group("copies") if size > 1 else None
        return RankGroup(size, self.positions.copies[self.rank], group)

    @property
    def context(self) -> RankGroup:
        """Return the ranks that share the tokens of each sequence."""
        size = self.positions.cp_size
        if size == 1:
            return ONE_RANK
        group = self.group("copies")
        if self.token_mesh is not None:
            group = self.token_mesh.get_group("cp")
        return RankGroup(size, self.positions.cp[self.rank], group)

    @property
    def experts(self) -> RankGroup:
        """Return the ranks that share out the experts."""
        if self.expert_mesh is None:
            return ONE_RANK
        return RankGroup(self.ep, self.dp % self.ep, self.expert_mesh.get_group("ep"))

    @property
    def expert_copies(self) -> RankGroup:
        """Return the ranks that hold the same part of the same experts."""
        if self.expert_mesh is None:
            return self.copies
        sizes = self.positions
        place = self.dp // self.ep * sizes.cp_size + self.positions.cp_of(self.rank)
        group = self.expert_mesh.get_group("expert_copies")
        return RankGroup(sizes.copies_size // self.ep, place, group)

    def group(self, dimension: str) -> dist.ProcessGroup:
        """Return this rank's group along `copies`, `pp` or `tp`."""
        assert self.mesh is not None, f"one rank has no {dimension} group"
        return self.mesh.get_group(dimension)

    def pipeline_rank(self, position: int) -> int:
        """Return the rank, in the whole process group, at a position of this rank's pipeline."""
        return dist.get_global_rank(self.group("pp"), position)

    def sum_over_dp(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over the data-parallel ranks, in place."""
        if self.token_mesh is None:
            # Context-parallel ranks alone see the same rows.
            return self.copies.sum(values) if self.dp_size > 1 else values
        dist.all_reduce(values, group=self.token_mesh.get_group("dp"))
        return values

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


def make_mesh(positions: RankPositions, rank: int, device: torch.device, ep: int = 1) -> RankMesh:
    """Return a rank's mesh; every rank of the worker group calls it, in the same order."""
    if positions.ranks == 1:
        return RankMesh(positions, rank, device)
    sizes = {"copies": positions.copies_size, "pp": positions.pp_size, "tp": positions.tp_size}
    several = {name: size for name, size in sizes.items() if size > 1}
    grid = torch.tensor(positions.groups())
    mesh = DeviceMesh(device.type, grid.view(*several.values()), mesh_dim_names=tuple(several))
    dp, cp = positions.dp_size, positions.cp_size
    made = RankMesh(positions, rank, device, mesh, ep)
    if dp > 1 and cp > 1:
        names = ("dp", "cp", "block")
        made.token_mesh = DeviceMesh(device.type, grid.view(dp, cp, -1), mesh_dim_names=names)
    if ep > 1:
        shared = grid.view(dp // ep, ep, cp, -1).transpose(0, 1).reshape(ep, dp // ep * cp, -1)
        names = ("ep", "expert_copies", "block")
        made.expert_mesh = DeviceMesh(device.type, shared, mesh_dim_names=names)
    return made


def wait_for_device(device: torch.device) -> None:
    """Wait until a device has done what it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def reduce_sum_over_dp(mesh: RankMesh) -> ReduceSum:
    """Return a function that sums a tensor over the data-parallel ranks and leaves its input alone."""
    return lambda values: mesh.sum_over_dp(values.clone())
