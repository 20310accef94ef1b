"""Completions: which responses of a batch are learnt from where more is begun, namely those that end first."""

from collections.abc import Iterable

from rlplan.dataflow import begun_work
from rlplan.executor.data.batches import Rows, whole_blocks
from rlplan.workload import Workload

Moment = tuple[int, int]
"""A segment, and a step in it."""


class Completions:
    """Keep account of what has ended of a batch, and say what is learnt from: what ends first.

    Where an algorithm compares the samples of a prompt, a prompt is done when as many of them have ended as are
    learnt from; else each sample counts by itself.

    Args:
        work: Of an iteration, as the job has it.
        groups: Whether samples of a prompt are compared.
    """

    def __init__(self, work: Workload, *, groups: bool) -> None:
        begun = begun_work(work)
        self._unit = begun.samples_per_prompt if groups else 1
        self._needed = work.samples_per_prompt if groups else 1
        self._wanted = work.sequences // self._needed
        self._ended: list[list[tuple[Moment, int]]] = [
            [] for _ in range(begun.sequences // self._unit)
        ]

    def note(self, number: int, ended: Iterable[tuple[int, int]]) -> None:
        """Note the steps of a segment after which rows have ended."""
        for step, row in ended:
            self._ended[row // self._unit].append(((number, step), row))

    @property
    def are_enough(self) -> bool:
        """Tell whether as many have ended as are learnt from."""
        return sum(len(ended) >= self._needed for ended in self._ended) >= self._wanted

    @property
    def chosen(self) -> Rows:
        """Return the rows that are learnt from, in their order."""
        assert self.are_enough, "enough has ended"
        firsts = [sorted(ended)[: self._needed] for ended in self._ended]
        done = [first for first in firsts if len(first) == self._needed]
        done.sort(key=lambda first: first[-1])
        rows = sorted(row for first in done[: self._wanted] for _, row in first)
        return whole_blocks(rows, 1)
