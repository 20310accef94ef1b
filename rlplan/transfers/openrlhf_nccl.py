"""OpenRLHF's sync of engines apart: the first rank broadcasts tensor by tensor."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered by the first training rank and broadcast tensor by tensor to the other pool",
    between_pools=True,
)
