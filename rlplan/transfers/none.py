"""No transition: both layouts are the same and share the weights."""

from rlplan.errors import PlanError
from rlplan.transfers import Transition, TransitionShape, TransitionVolume


def volume(model_bytes: float, shape: TransitionShape) -> TransitionVolume:
    """Return bytes per GPU: nothing moves.

    Raises:
        PlanError: The layouts differ.
    """
    if (shape.tp, shape.pp) != (shape.tp_gen, shape.pp_gen):
        raise PlanError(
            f"transition 'none' needs equal layouts, but actor.update has tp {shape.tp}, pp {shape.pp} "
            f"and actor.generate tp {shape.tp_gen}, pp {shape.pp_gen}; use 'hybridflow'"
        )
    return TransitionVolume(
        collective="none",
        group_ranks=1,
        received_bytes=0.0,
        peak_weight_bytes=model_bytes / (shape.tp * shape.pp),
        redundant_bytes=0.0,
    )


TRANSITION = Transition(
    words="nothing to do, both share one layout",
    volume=volume,
    reaches=lambda train, generate: train == generate,
    nests=True,
    place=0,
)
