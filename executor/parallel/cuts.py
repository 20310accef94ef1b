"""Which part of a parameter a rank holds, where tensor-parallel ranks share it out, and the whole of all parts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from rlplan.executor.parallel.meshes import RankMesh


@dataclass(frozen=True, slots=True)
class Cut:
    """Say which part of a whole parameter a rank holds.

    Attributes:
        shape: Of the part; stacked matrices have a dimension for the stack.
        dimension: Along which it is cut over the tensor-parallel ranks; None: held whole.
        first: Where the part begins along that dimension.
        whole: Of the whole parameter, the size along it.
    """

    shape: tuple[int, ...]
    dimension: int | None = None
    first: int = 0
    whole: int = 0


def even_cut(shape: Sequence[int], dimension: int | None, mesh: RankMesh) -> Cut:
    """Return the cut of a parameter of which every tensor-parallel rank has as much.

    Args:
        shape: Of this rank's part.
        dimension: Along which it is cut; None: held whole.
    """
    if dimension is None:
        return Cut(tuple(shape))
    width = shape[dimension]
    return Cut(tuple(shape), dimension, mesh.tp * width, mesh.tp_size * width)


def span_of(whole: int, ranks: int, position: int) -> tuple[int, int]:
    """Return where a rank's part begins and ends of what ranks share out as evenly as they can.

    No part is larger than the size over the ranks, rounded up. A part of fewer ranks is made up of
    whole parts of any multiple of them, which a transition between tensor-parallel sizes needs.
    """
    return position * whole // ranks, (position + 1) * whole // ranks


def joined(part: Tensor, dimension: int, whole: int, group: dist.ProcessGroup) -> Tensor:
    """Return the whole of what the ranks of a group share out along a dimension, as `span_of` has it."""
    ranks = dist.get_world_size(group)
    missing = -(-whole // ranks) - part.shape[dimension]
    if missing:  # ranks send as much each; what fills a part up is cut off again
        shape = list(part.shape)
        shape[dimension] = missing
        part = torch.cat([part, part.new_zeros(shape)], dim=dimension)
    found = part.new_empty(ranks * part.shape[0], *part.shape[1:])
    dist.all_gather_into_tensor(found, part.contiguous(), group=group)
    spans = [span_of(whole, ranks, position) for position in range(ranks)]
    pieces = [
        each.narrow(dimension, 0, stop - first)
        for each, (first, stop) in zip(found.chunk(ranks), spans, strict=True)
    ]
    return torch.cat(pieces, dim=dimension)
