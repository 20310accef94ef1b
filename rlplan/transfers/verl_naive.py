"""verl's back end `naive`: training gathers tensors and streams buckets to the engine of its own GPU."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered tensor by tensor and streamed in buckets to the engine on the same GPU",
    on_one_pool=True,
)
