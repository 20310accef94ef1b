"""verl's checkpoint engine `kimi_ckpt_engine`: off-loaded, read by RDMA, broadcast among the receivers."""

from rlplan.transfers import method

TRANSITION = method(
    "off-loaded to the host, read by RDMA and broadcast in buckets among the ranks of the other pool",
    between_pools=True,
)
