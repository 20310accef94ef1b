"""Two copies on different pools: a broadcast from the train to the generate pool (OpenRLHF)."""

from functools import partial

from rlplan.transfers import Transition, own_copy

TRANSITION = Transition(
    words="sent from the training pool to a second copy on the generating pool",
    volume=partial(own_copy, collective="broadcast", group_ranks=2),
    between_pools=True,
    on_one_pool=False,
    reaches=lambda *_: True,
    place=4,
)
