"""SkyRL's `nccl`: the first rank broadcasts tensor by tensor."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered by the first training rank and broadcast to all ranks of the other pool",
    between_pools=True,
)
