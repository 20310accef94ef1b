"""What engines hold states of sequences in: those of linear attention and state spaces, which are as large however long a sequence is."""

from dataclasses import dataclass

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import AtLeastOne, Fraction
from rlplan.models import ModelArchitecture, layer_kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePool:
    """Describe memory of an engine's cache that is for states alone, so that sequences which run at a time are no more than it has room for.

    Attributes:
        share: Of the memory for cache, which states have; tokens have the rest.
        slots: States for which the pool has room by each sequence that runs, by the kind of attention (`rlplan/parts/`): its own,
            and copies which sequences that begin alike go on from. Models with none of these have no such pool.
        in_turn: Kinds of attention with whose models the host prepares no step while the device computes the one before.
    """

    share: Fraction
    slots: FrozenDict[str, AtLeastOne]
    in_turn: tuple[str, ...] = ()

    def slots_of(self, model: ModelArchitecture) -> int:
        """Return the states that the pool has room for by each sequence of a model that runs; 0 where it has no such pool."""
        return max((self.slots.get(each, 0) for each in mixers_of(model)), default=0)

    def steps_in_turn(self, model: ModelArchitecture) -> bool:
        """Tell whether the host prepares a model's steps only when the device has computed the one before."""
        return any(each in self.in_turn for each in mixers_of(model))


def mixers_of(model: ModelArchitecture) -> frozenset[str]:
    """Return the kinds of attention that a model's layers have."""
    return frozenset(kind.attention for kind in layer_kinds(model).models)
