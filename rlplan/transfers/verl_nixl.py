"""verl's checkpoint engine `nixl`: buckets go round a ring of all ranks, point to point."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered by the first training rank and passed on in buckets from rank to rank of the other pool",
    between_pools=True,
)
