"""Batches of prompts for the workers, each put out before it is needed."""

from collections.abc import Callable
from dataclasses import dataclass

import ray

from rlplan.dataflow import DATASET_KEYS
from rlplan.executor.data.batches import ROUND_STRIDE, Columns, Piece, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Hold what is known of some rows: by data key, references of pieces.

    Attributes:
        number: Of the batch of prompts: the iteration, or a number of its own when sampled again.
        pieces: Tasks add what they make.
        updates: Optimizer steps that its rows are for, in one pass over them; None: those of the job.
    """

    number: int
    rows: Rows
    pieces: dict[str, tuple[Piece, ...]]
    updates: int | None = None

    @property
    def is_first(self) -> bool:
        """Tell whether it is an iteration's first batch, and not sampled in place of another."""
        return self.number < ROUND_STRIDE


Pieces = dict[str, tuple[Piece, ...]]


class PromptPieces:
    """Put batches of prompts out for workers to fetch.

    Args:
        prompts: Returns the prompts of a batch as columns, and the texts that are mixed in.
        sequences: Rows of a batch.
    """

    def __init__(self, prompts: Callable[[int], Columns], sequences: int) -> None:
        self._prompts, self._rows = prompts, Rows(((0, sequences),))
        self._next: int | None = None
        self._ahead: dict[int, Pieces] = {}

    def batch(self, number: int) -> Batch:
        """Return references to the batch of that number: prompts, and texts where they are mixed in."""
        pieces = self._ahead.pop(number, None) or self._put_out(number)
        if number < ROUND_STRIDE:
            self._next = number + 1
        return Batch(number=number, rows=self._rows, pieces=pieces)

    def make_next(self) -> None:
        """Put out the batch of the next iteration, while workers are busy with this one's."""
        if self._next is not None and self._next not in self._ahead:
            self._ahead = {self._next: self._put_out(self._next)}

    def _put_out(self, number: int) -> Pieces:
        columns = self._prompts(number)
        pieces: Pieces = {}
        for key in DATASET_KEYS:
            own = {
                name: column
                for name, column in columns.items()
                if name.startswith("pretrain_") == (key == "pretrain")
            }
            if own:
                pieces[key] = (Piece(self._rows, ray.put(own)),)
        return pieces
