"""Bytes of a task on a GPU, by term: of one layout, and of many at once."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from rlplan.files.frozen import FrozenDict
from rlplan.simulator.columns import Ints

ManyTerms = dict[str, Ints]
Terms = dict[str, int]
EMPTY: FrozenDict[str, int] = FrozenDict()


@dataclass(frozen=True, slots=True)
class TaskMemory:
    """Hold the bytes that a task puts on its fullest GPU, by term.

    Attributes:
        resident: What stays while other tasks run.
        transient: What lives as long as the task, at its fullest moment.
        waiting: What is in host memory at that moment, and comes to the GPU at another one of the task.
    """

    resident: FrozenDict[str, int] = EMPTY
    transient: FrozenDict[str, int] = EMPTY
    waiting: FrozenDict[str, int] = EMPTY

    @property
    def resident_bytes(self) -> int:
        """Return the bytes that stay while other tasks run."""
        return sum(self.resident.values())

    @property
    def transient_bytes(self) -> int:
        """Return the bytes that live as long as the task."""
        return sum(self.transient.values())


@dataclass(frozen=True, slots=True, eq=False)
class LayoutMemory:
    """Hold the bytes that a task puts on its fullest GPU in each of many layouts, by term.

    Attributes:
        weights_term: The resident term that tasks of one role share.
        resident, transient, waiting: By term, shape (layouts,); 0 where a layout does not have it.
    """

    weights_term: str
    resident: ManyTerms
    transient: ManyTerms
    waiting: ManyTerms

    @property
    def weights_bytes(self) -> Ints:
        """Return the resident weights, which tasks of one role share. Shape (layouts,)."""
        return self.resident[self.weights_term]

    @property
    def passing_weights_bytes(self) -> Ints:
        """Return the weights that are there while the task runs, where they are not resident. Shape (layouts,)."""
        return self.transient[self.weights_term]

    @property
    def resident_bytes(self) -> Ints:
        """Return the bytes that stay while other tasks run. Shape (layouts,)."""
        return np.asarray(np.sum(list(self.resident.values()), axis=0, dtype=np.int64))

    @property
    def transient_bytes(self) -> Ints:
        """Return the bytes that live as long as the task. Shape (layouts,)."""
        return np.asarray(np.sum(list(self.transient.values()), axis=0, dtype=np.int64))

    def row(self, row: int) -> TaskMemory:
        """Return one layout's terms."""
        return TaskMemory(
            _row_terms(self.resident, row),
            _row_terms(self.transient, row),
            _row_terms(self.waiting, row),
        )

    def off_loaded_bytes(self, names: Collection[str]) -> Ints:
        """Return the bytes of transient terms of these names, also of those that wait. Shape (layouts,)."""
        terms = (*self.transient.items(), *self.waiting.items())
        sizes = [size for name, size in terms if name in names]
        return np.asarray(np.sum(sizes, axis=0, dtype=np.int64))


def _row_terms(terms: ManyTerms, row: int) -> FrozenDict[str, int]:
    return FrozenDict({name: int(sizes[row]) for name, sizes in terms.items() if sizes[row]})


def weights_term(role: str, *, generating: bool = False) -> str:
    """Return the name of the term that holds a role's weights."""
    return f"{role} weights for generation" if generating else f"{role} weights"


def gradients_term(role: str) -> str:
    """Return the name of the term that holds a role's gradients."""
    return f"{role} gradients"


def optimizer_term(role: str) -> str:
    """Return the name of the term that holds the states of a role's optimizer."""
    return f"{role} optimizer states"
