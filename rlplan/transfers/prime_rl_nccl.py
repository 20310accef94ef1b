"""prime-rl's broadcast, layer by layer, by the first rank."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered by the first training rank and broadcast layer by layer to the other pool",
    between_pools=True,
)
