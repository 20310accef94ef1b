"""miles' `p2p`: every rank writes the shards of target ranks from a replica on its host, by RDMA."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered, cut as the engine is in host memory, and written by RDMA to the other pool",
    between_pools=True,
)
