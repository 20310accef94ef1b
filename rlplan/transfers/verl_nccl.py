"""verl's checkpoint engine `nccl`: the first training rank gathers and broadcasts buckets."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered by the first training rank and broadcast in buckets to all ranks of the other pool",
    between_pools=True,
)
