"""NeMo-RL's refit of engines apart: packed tensors are broadcast by NCCL."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered by the first training rank and broadcast, packed, to the other pool",
    between_pools=True,
)
