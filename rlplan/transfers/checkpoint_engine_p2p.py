"""Moonshot's checkpoint-engine, `p2p`: new engines read others' host memory by RDMA."""

from rlplan.transfers import method

TRANSITION = method(
    "read from other hosts by RDMA, broadcast in buckets among the new ranks and copied",
    on_one_pool=True,
    between_pools=True,
)
