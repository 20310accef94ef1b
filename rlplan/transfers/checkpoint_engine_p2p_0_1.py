"""Moonshot's checkpoint-engine before 0.2, `p2p`: one rank at a time reads others' host memory."""

from rlplan.transfers import method

TRANSITION = method(
    "read from other hosts by RDMA, one rank at a time, broadcast in buckets and copied",
    on_one_pool=True,
    between_pools=True,
)
