"""NeMo-RL's `nccl_reshard`: every rank sends the slices that ranks of the other pool need."""

from rlplan.transfers import method

TRANSITION = method(
    "resharded: every rank sends the others what they lack, without gathering",
    between_pools=True,
)
