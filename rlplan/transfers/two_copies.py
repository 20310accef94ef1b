"""Two copies on different pools: a broadcast from the train to the generate pool (OpenRLHF)."""

from rlplan.transfers import Transition, TransitionShape, TransitionVolume


def volume(model_bytes: float, shape: TransitionShape) -> TransitionVolume:
    """Return bytes per GPU: every generate rank receives its shard, M / (t_g p_g), a second copy."""
    shard = model_bytes / (shape.tp_gen * shape.pp_gen)
    return TransitionVolume(
        collective="broadcast",
        group_ranks=2,
        received_bytes=shard,
        peak_weight_bytes=shard,
        redundant_bytes=shard,
    )


TRANSITION = Transition(
    words="sent from the training pool to a second copy on the generating pool",
    volume=volume,
    between_pools=True,
    on_one_pool=False,
    reaches=lambda *_: True,
    place=4,
)
