"""Vanilla groups: an all-gather over the whole model-parallel block (HybridFlow-V, Table 2)."""

from rlplan.transfers import Transition, TransitionShape, TransitionVolume, divides


def volume(model_bytes: float, shape: TransitionShape) -> TransitionVolume:
    """Return bytes per GPU: (tp - 1) / tp M received, M at the peak, M / tp held twice."""
    train = shape.tp * shape.pp
    return TransitionVolume(
        collective="all_gather" if train > 1 else "none",
        group_ranks=train,
        received_bytes=(train - 1) / train * model_bytes,
        peak_weight_bytes=model_bytes,
        redundant_bytes=model_bytes / train,
    )


TRANSITION = Transition(
    words="gathered inside each tensor-parallel group", volume=volume, reaches=divides, place=2
)
