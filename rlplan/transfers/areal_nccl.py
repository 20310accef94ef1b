"""AReaL's broadcast of buckets by the first rank."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered by the first training rank and broadcast in buckets to the other pool",
    between_pools=True,
)
