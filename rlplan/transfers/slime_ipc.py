"""slime's `update_weights_from_tensor`: flattened buckets are handed over by CUDA IPC."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered tensor by tensor and handed to the engine on the same GPU in buckets, by CUDA IPC",
    on_one_pool=True,
)
