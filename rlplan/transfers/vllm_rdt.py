"""vLLM's sharded weight transfer (RDT, over NIXL): workers pull the slices that they keep."""

from rlplan.transfers import method

TRANSITION = method(
    "pulled by every rank of the other pool, the slices that it keeps, by RDMA",
    between_pools=True,
)
