"""How many replicas of a generating pool are wanted in which iteration."""

from collections.abc import Mapping
from math import sqrt
from statistics import fmean, stdev
from typing import Any, Final, Protocol

from rlplan.replicas import ReplicaTable

# Newest iterations whose responses say how long they are now, and the fewest that do.
NEWEST: Final = 10
FEWEST: Final = 3
# Standard errors of their mean within which lengths may be others than they seem.
ERRORS: Final = 2.0
NOTHING: Final[Mapping[int, float]] = {}


class Wanted(Protocol):
    """Say how many replicas of the generating pool are wanted."""

    def at(self, iteration: int) -> int:
        """Return how many are wanted in an iteration, counted from 0."""


class WantedByLength:
    """Say how many replicas are wanted by how long responses are.

    The number of an iteration rests on the responses of those up to the one before the last, since what is wanted is started an
    iteration ahead. As long as these lengths, within their chance, speak for the number that there is, it stays.

    Args:
        table: How many replicas of a plan pay at which lengths.
        first: The first iteration by that plan.
        tokens: Mean tokens of the responses of iterations before it.
    """

    def __init__(
        self, table: ReplicaTable, first: int = 0, tokens: Mapping[int, float] = NOTHING
    ) -> None:
        self._table, self._first = table, first
        self._tokens = dict(tokens)
        self._wanted: list[int] = []

    def by(self, table: ReplicaTable, first: int) -> "WantedByLength":
        """Return the same by another plan's table, which holds from an iteration on."""
        return WantedByLength(table, first, self._tokens)

    def since(self, first: int) -> "WantedByLength":
        """Return the same by a table that holds from another iteration on, such as where a run goes back before it."""
        return self.by(self._table, first)

    def note(self, iteration: int, tokens: float) -> None:
        """Take note of the mean tokens of an iteration's responses; those of it and of later ones are forgotten."""
        self._tokens = {at: each for at, each in self._tokens.items() if at < iteration}
        self._tokens[iteration] = tokens
        del self._wanted[max(0, iteration + 2 - self._first) :]

    def at(self, iteration: int) -> int:
        """Return how many are wanted in an iteration, counted from 0."""
        assert iteration >= self._first, "before it another plan's table holds"
        while len(self._wanted) <= iteration - self._first:
            self._wanted.append(self._next(self._first + len(self._wanted)))
        return self._wanted[iteration - self._first]

    def why(self, iteration: int) -> Mapping[str, Any]:
        """Return the lengths that an iteration's number rests on, and the forecasts there by number of replicas."""
        tokens = self._mean(iteration)
        row = self._table.row_of(tokens)
        return {
            "response_tokens": tokens,
            "forecast_tokens": row.tokens,
            "forecast_seconds": {str(each): row.seconds[each] for each in sorted(row.seconds)},
        }

    def _next(self, iteration: int) -> int:
        """Return the number of an iteration, given those before it."""
        rows, row_of = self._table.rows, self._table.row_of
        if iteration == self._first:
            return row_of(self._mean(iteration)).replicas
        present, measured = self._wanted[-1], self._measured(iteration)
        if len(measured) < FEWEST:
            return present
        mean = fmean(measured)
        error = ERRORS * stdev(measured) / sqrt(len(measured))
        first, last = (rows.index(row_of(each)) for each in (mean - error, mean + error))
        if present in {row.replicas for row in rows[first : last + 1]}:
            return present
        return row_of(mean).replicas

    def _mean(self, iteration: int) -> float:
        """Return the mean response tokens that an iteration's number rests on; where few are measured, those of the job's begin."""
        measured = self._measured(iteration)
        return fmean(measured) if len(measured) >= FEWEST else self._table.begins

    def _measured(self, iteration: int) -> list[float]:
        """Return the mean response tokens that an iteration's number rests on."""
        known = sorted(at for at in self._tokens if at < iteration - 1)
        return [self._tokens[at] for at in known[-NEWEST:]]
