"""Zero-redundancy groups: one all-gather inside each micro-DP group (HybridFlow, Table 2)."""

from rlplan.transfers import Transition, TransitionShape, TransitionVolume, divides


def volume(model_bytes: float, shape: TransitionShape) -> TransitionVolume:
    """Return bytes per GPU: (tp - t_g p_g) / (t_g p_g tp) M received, M / (t_g p_g) at the peak."""
    train, generate = shape.tp * shape.pp, shape.tp_gen * shape.pp_gen
    return TransitionVolume(
        collective="all_gather" if train > generate else "none",
        group_ranks=train // generate,
        received_bytes=(train - generate) / (generate * train) * model_bytes,
        peak_weight_bytes=model_bytes / generate,
        redundant_bytes=0.0,
    )


TRANSITION = Transition(
    words="gathered inside each micro-data-parallel group, no redundant copy",
    volume=volume,
    reaches=divides,
    nests=True,
    place=1,
)
