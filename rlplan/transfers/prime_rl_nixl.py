"""prime-rl's `nixl`: workers pull slices of training shards by RDMA."""

from rlplan.transfers import method

TRANSITION = method(
    "pulled by every rank of the other pool, the slices that it keeps, by RDMA",
    between_pools=True,
)
