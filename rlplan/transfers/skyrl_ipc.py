"""SkyRL's `cuda_ipc`: buckets are handed to colocated engines."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered tensor by tensor and handed to the engine on the same GPU in buckets, by CUDA IPC",
    on_one_pool=True,
)
