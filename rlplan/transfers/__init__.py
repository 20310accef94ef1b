"""Ways to bring the actor's weights from its train to its generate layout, one file each.

The name that a plan uses is the file's name with dashes for underscores. Every file has a
`TRANSITION`; the table of volumes is HybridFlow's (Sheng et al. 2025, EuroSys, Table 2).
"""

from collections.abc import Callable
from dataclasses import dataclass

from rlplan.plug_ins import PlugIns


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionShape:
    """Hold the sizes of both layouts of the actor.

    Attributes:
        tp, pp, dp: Training sizes.
        tp_gen, pp_gen: Generation sizes.
    """

    tp: int
    pp: int
    dp: int
    tp_gen: int
    pp_gen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionVolume:
    """Hold what a transition moves and keeps, per GPU.

    Attributes:
        collective: `all_gather` inside groups of `group_ranks`, `broadcast` from the train to the
            generate pool, or `none`.
        received_bytes: Bytes that each GPU receives.
        peak_weight_bytes: Weight bytes on a GPU of the generate layout at the peak.
        redundant_bytes: Weight bytes held twice during generation.
    """

    collective: str
    group_ranks: int
    received_bytes: float
    peak_weight_bytes: float
    redundant_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """Describe a transition.

    Attributes:
        words: What it does, for people, as the end of a sentence.
        volume: From the model's bytes and the sizes of both layouts to what it moves and keeps.
        between_pools: Whether generation has a copy of its own on another pool; else both layouts
            share the GPUs of one.
    """

    words: str
    volume: Callable[[float, TransitionShape], TransitionVolume]
    between_pools: bool = False


TRANSFERS = PlugIns[Transition](__name__, __path__, kind="transition", attribute="TRANSITION")
transfer_names = TRANSFERS.names


def transition_volume(name: str, model_bytes: float, shape: TransitionShape) -> TransitionVolume:
    """Return what the transition of that name moves and keeps, in bytes per GPU.

    Raises:
        UnknownNameError: No file of that name exists.
    """
    return TRANSFERS.load(name).volume(model_bytes, shape)
