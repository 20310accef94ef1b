"""OpenRLHF's sync of colocated engines: tensor by tensor, by CUDA IPC."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered and handed to the engine on the same GPU tensor by tensor, by CUDA IPC",
    on_one_pool=True,
)
