"""Which parts of weights make up a shard of another layout, and how they are written into it.

Pure functions over entries and flat tensors: no process is needed to hold them to their laws.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from rlplan.executor.model.building import EMBEDDING, HEAD
from rlplan.executor.weights.flat import Entry

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Hold what one rank has of a model's weights.

    Attributes:
        entries: Where parameters lie in `flat`.
        flat: Their values, in one tensor.
    """

    entries: Sequence[Entry]
    flat: Tensor


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Say what a rank has of a model's weights, without the values.

    Attributes:
        pp: The rank's pipeline position.
    """

    rank: int
    pp: int
    tp: int
    entries: tuple[Entry, ...]


def write_shard(target: Part, source: Part) -> None:
    """Write a shard out of one of another layout that has all of its weights, bit for bit."""
    held = {entry.name: entry for entry in source.entries}
    for entry in target.entries:
        given = held[source_name(entry.name, held)]
        copied = overlap(given, entry)
        if copied is None:
            continue
        dimension, here, there, width = copied
        values = source.flat[given.start : given.stop].view(given.shape)
        view = target.flat[entry.start : entry.stop].view(entry.shape)
        view.narrow(dimension, there, width).copy_(values.narrow(dimension, here, width))


def source_name(name: str, held: Mapping[str, object] | Iterable[str]) -> str:
    """Return the name under which weights are held: a tied head may be there as the embedding only."""
    tied = {HEAD: EMBEDDING, EMBEDDING: HEAD}
    return name if name in held else tied[name]


def overlap(source: Entry, target: Entry) -> tuple[int, int, int, int] | None:
    """Return (dimension, start in source, start in target, width) of what both hold; None: nothing."""
    dimension = target.dimension if target.dimension is not None else source.dimension
    if dimension is None:
        return 0, 0, 0, target.shape[0]
    start = max(source.first, target.first)
    stop = min(source.first + source.shape[dimension], target.first + target.shape[dimension])
    if start >= stop:
        return None
    return dimension, start - source.first, start - target.first, stop - start


def wanted_entries(
    receiver: ShardLayout,
    sender: ShardLayout,
    members: Sequence[ShardLayout],
    names: frozenset[str],
) -> tuple[Entry, ...]:
    """Return what a rank has to receive from another one of its group.

    Cut parameters come from everybody, whole ones from one rank of each other stage.

    Args:
        members: All ranks of the group, in their order.
        names: Parameters that the receiver needs.
    """
    if sender.rank == receiver.rank:
        return ()
    same_stage = [member for member in members if member.pp == sender.pp]
    # What ranks of a stage all hold they give in turns.
    in_turn = same_stage[receiver.tp % len(same_stage)]
    sends_whole = sender.pp != receiver.pp and sender == in_turn
    return tuple(
        entry
        for entry in sender.entries
        if entry.name in names and (entry.dimension is not None or sends_whole)
    )
