"""All-gather over all GPUs, as DeepSpeed-Chat's hybrid engine does (HybridFlow, Table 2)."""

from rlplan.transfers import Transition, TransitionShape, TransitionVolume, hybridflow_v


def volume(model_bytes: float, shape: TransitionShape) -> TransitionVolume:
    """Return bytes per GPU: (tpd - 1) / tpd M received, M at the peak, M / tpd held twice.

    Where data-parallel ranks hold the same weights there is only a model-parallel block to gather: the
    vanilla groups.
    """
    if not shape.sharded:
        return hybridflow_v.volume(model_bytes, shape)
    ranks = shape.tp * shape.pp * shape.dp
    return TransitionVolume(
        collective="all_gather" if ranks > 1 else "none",
        group_ranks=ranks,
        received_bytes=(ranks - 1) / ranks * model_bytes,
        peak_weight_bytes=model_bytes,
        redundant_bytes=model_bytes / ranks,
    )


TRANSITION = Transition(
    words="gathered over all GPUs",
    volume=volume,
    reaches=lambda *_: True,
    gathers_shards=True,
    place=3,
)
