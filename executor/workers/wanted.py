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


class Wanted(Protocol):
    """Say how many replicas of the generating pool are wanted."""

    def at(self, iteration: int) -> int:
        """Return how many are wanted in an iteration, counted from 0."""


class WantedByLength:
    """Say how many replicas are wanted by how long responses are.

    The number of an iteration rests on the responses of those up to the one before the last, since what is wanted is started an
    iteration ahead. As long as these lengths, within their chance, speak for the number that there is, it stays.

    Args:
        table: How many replicas pay at which lengths.
    """

    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        self._tokens: dict[int, float] = {}
        self._wanted: list[int] = []

    def note(self, iteration: int, tokens: float) -> None:
        """Take note of the mean tokens of an iteration's responses; those of it and of later ones are forgotten."""
        self._tokens = {at: each for at, each in self._tokens.items() if at < iteration}
        self._tokens[iteration] = tokens
        del self._wanted[iteration + 2 :]

    def at(self, iteration: int) -> int:
        """Return how many are wanted in an iteration, counted from 0."""
        while len(self._wanted) <= iteration:
            self._wanted.append(self._next(len(self._wanted)))
        return self._wanted[iteration]

    def why(self, iteration: int) -> Mapping[str, Any]:
        """Return the lengths that an iteration's number rests on, and the forecasts there by number of replicas."""
        measured = self._measured(iteration)
        tokens = fmean(measured) if len(measured) >= FEWEST else self._table.begins
        row = self._table.row_of(tokens)
        return {
            "response_tokens": tokens,
            "forecast_tokens": row.tokens,
            "forecast_seconds": {str(each): row.seconds[each] for each in sorted(row.seconds)},
        }

    def _next(self, iteration: int) -> int:
        """Return the number of an iteration, given those before it."""
        rows, row_of = self._table.rows, self._table.row_of
        if not iteration:
            return row_of(self._table.begins).replicas
        present, measured = self._wanted[iteration - 1], self._measured(iteration)
        if len(measured) < FEWEST:
            return present
        mean = fmean(measured)
        error = ERRORS * stdev(measured) / sqrt(len(measured))
        first, last = (rows.index(row_of(each)) for each in (mean - error, mean + error))
        if present in {row.replicas for row in rows[first : last + 1]}:
            return present
        return row_of(mean).replicas

    def _measured(self, iteration: int) -> list[float]:
        """Return the mean response tokens that an iteration's number rests on."""
        known = sorted(at for at in self._tokens if at < iteration - 1)
        return [self._tokens[at] for at in known[-NEWEST:]]
