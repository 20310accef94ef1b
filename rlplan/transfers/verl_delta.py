"""verl's checkpoint engine `delta_sharded`: only what an update changed is gathered and broadcast."""

from rlplan.transfers import method

TRANSITION = method(
    "compared on every rank, and what changed gathered and broadcast to the other pool",
    between_pools=True,
)
