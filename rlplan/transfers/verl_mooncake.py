"""verl's checkpoint engine `mooncake`: buckets go round a ring of all ranks, by its transfer engine."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered by the first training rank and passed on in buckets, by RDMA, to the other pool",
    between_pools=True,
)
