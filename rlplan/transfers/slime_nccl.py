"""slime's and miles' `update_weights_from_distributed`: first ranks of stages broadcast buckets."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered by the first rank of every stage and broadcast in buckets to the other pool",
    between_pools=True,
)
