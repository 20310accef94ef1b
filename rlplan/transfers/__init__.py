"""Ways to bring the actor's weights from its train to its generate layout, one file each.

The name that a plan uses is the file's name with dashes for underscores. Every file has a
`TRANSITION`; the table of volumes is HybridFlow's (Sheng et al. 2025, EuroSys, Table 2).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from rlplan.files.tags import OneOf
from rlplan.plug_ins import PlugIns

# Tensor- and pipeline-parallel sizes.
Cut = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionShape:
    """Hold the sizes of both layouts of the actor.

    Attributes:
        tp, pp, dp: Training sizes.
        tp_gen, pp_gen: Generation sizes.
        sharded: Whether training shards weights over its data-parallel ranks too.
    """

    tp: int
    pp: int
    dp: int
    tp_gen: int
    pp_gen: int
    sharded: bool = True


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
        reaches: Whether it brings one cut (tp, pp) of training to another of generation.
        nests: Whether generation's groups lie inside training's, so that every train shard is a part of
            the generate shard and stays in memory as such.
        gathers_shards: Whether shards of data-parallel ranks come with all other weights, not before.
        place: Among those that reach a cut, the usual one has the least.
    """

    words: str
    volume: Callable[[float, TransitionShape], TransitionVolume]
    between_pools: bool = False
    reaches: Callable[[Cut, Cut], bool]
    nests: bool = False
    gathers_shards: bool = False
    place: int


TRANSFERS = PlugIns[Transition](__name__, __path__, kind="transition", attribute="TRANSITION")
transfer_names = TRANSFERS.names
TransitionName = Annotated[str, OneOf(transfer_names)]


def divides(train: Cut, generate: Cut) -> bool:
    """Tell whether generation's sizes divide training's."""
    return train[0] % generate[0] == 0 and train[1] % generate[1] == 0


def transitions_on_a_pool(train: Cut, generate: Cut) -> tuple[str, ...]:
    """Return the transitions that bring one cut of a pool to another, the usual one first."""
    reaching = (
        (TRANSFERS.load(name).place, name)
        for name in transfer_names()
        if not TRANSFERS.load(name).between_pools and TRANSFERS.load(name).reaches(train, generate)
    )
    return tuple(name for _, name in sorted(reaching))


def transition_volume(name: str, model_bytes: float, shape: TransitionShape) -> TransitionVolume:
    """Return what the transition of that name moves and keeps, in bytes per GPU.

    Raises:
        UnknownNameError: No file of that name exists.
    """
    return TRANSFERS.load(name).volume(model_bytes, shape)
