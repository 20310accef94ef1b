"""Batches of prompts as the controller hands them out, the next one made before it is asked for."""

from collections.abc import Callable

import ray

from executor.control.loops import ROUND_STRIDE, Batch
from executor.data.batches import Columns, Piece, Rows
from rlplan.dataflow import DATASET_KEYS

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
            own = {name: column for name, column in columns.items() if _dataset_key(name) == key}
            if own:
                pieces[key] = (Piece(self._rows, ray.put(own)),)
        return pieces


def _dataset_key(column: str) -> str:
    return "pretrain" if column.startswith("pretrain_") else "prompts"
