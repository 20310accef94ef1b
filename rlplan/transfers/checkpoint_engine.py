"""Moonshot's checkpoint-engine, `broadcast`: from pinned host memory to GPUs, broadcast, copied."""

from rlplan.transfers import method

TRANSITION = method(
    "copied from the host, broadcast in buckets among all ranks and copied by the engine",
    on_one_pool=True,
    between_pools=True,
)
