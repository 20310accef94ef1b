"""Ways to bring the actor's weights from its train to its generate layout, one file each.

The name that a plan uses is the file's name with dashes for underscores. Every file has a
`TRANSITION`; the table of volumes is HybridFlow's (Sheng et al. 2025, EuroSys, Table 2). Frameworks' methods to sync
weights differ by their sheets alone, which `rlplan.profiles.sheets` gives.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated

from rlplan.files.limits import OneOf
from rlplan.plug_ins import PlugIns

# The usual way to a copy on another pool.
TWO_COPIES = "two-copies"
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
            generate pool, `stream` of tensors or buckets as a framework's sheet says, or `none`.
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
        between_pools: Whether generation can have a copy of its own on another pool.
        on_one_pool: Whether both layouts can share the GPUs of one.
        method: Whether it is a framework's way, described by a method in its sheet. Nothing tries it
            unless a plan, or the job's framework, names it.
        reaches: Whether it brings one cut (tp, pp) of training to another of generation.
        nests: Whether generation's groups lie inside training's, so that every train shard is a part of
            the generate shard and stays in memory as such.
        gathers_shards: Whether shards of data-parallel ranks come with all other weights, not before.
        place: Among those that reach a cut, the usual one has the least.
    """

    words: str
    volume: Callable[[float, TransitionShape], TransitionVolume]
    between_pools: bool = False
    on_one_pool: bool = True
    method: bool = False
    reaches: Callable[[Cut, Cut], bool]
    nests: bool = False
    gathers_shards: bool = False
    place: int


TRANSFERS = PlugIns[Transition](
    __name__,
    __path__,
    kind="transition",
    attribute="TRANSITION",
    table="rlplan.profiles.sheets",
)
transfer_names = TRANSFERS.names
TransitionName = Annotated[str, OneOf(transfer_names)]


def divides(train: Cut, generate: Cut) -> bool:
    """Tell whether generation's sizes divide training's."""
    return train[0] % generate[0] == 0 and train[1] % generate[1] == 0


def own_copy(
    model_bytes: float, shape: TransitionShape, *, collective: str, group_ranks: int
) -> TransitionVolume:
    """Return bytes per GPU: the engine keeps a shard of its own, M / (t_g p_g), and receives it whole."""
    shard = model_bytes / (shape.tp_gen * shape.pp_gen)
    return TransitionVolume(
        collective=collective,
        group_ranks=group_ranks,
        received_bytes=shard,
        peak_weight_bytes=shard,
        redundant_bytes=shard,
    )


def transitions_on_a_pool(
    train: Cut, generate: Cut, named: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the transitions that bring one cut of a pool to another, the usual one first.

    Args:
        named: Those that a plan, or the job's framework, names; methods of frameworks are left out else.
    """
    return _usual_first(lambda each: each.on_one_pool and each.reaches(train, generate), named)


def transitions_between_pools() -> tuple[str, ...]:
    """Return the transitions to a copy on another pool, the usual one first."""
    return _usual_first(lambda each: each.between_pools)


def _usual_first(
    usable: Callable[[Transition], bool], named: Collection[str] = ()
) -> tuple[str, ...]:
    """Return transitions that can be used, in their places; frameworks' methods only where they are named."""
    methods = () if not named else set(named).intersection(transfer_names())
    names = {*TRANSFERS.names_of_files(), *methods}  # no sheet of a method is opened for nothing
    found = [(TRANSFERS.load(name), name) for name in names]
    return tuple(
        name for _, name in sorted((each.place, name) for each, name in found if usable(each))
    )


def transition_volume(name: str, model_bytes: float, shape: TransitionShape) -> TransitionVolume:
    """Return what the transition of that name moves and keeps, in bytes per GPU.

    Raises:
        UnknownNameError: No file of that name exists.
    """
    return TRANSFERS.load(name).volume(model_bytes, shape)
