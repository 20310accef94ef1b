"""verl's tensor-by-tensor broadcast of its asynchronous recipes, before the checkpoint engines."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered and broadcast tensor by tensor to the other pool",
    between_pools=True,
)
