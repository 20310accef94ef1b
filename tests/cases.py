"""Which cases of a matrix run by default; `pytest --full` runs all of them."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Return parameters of which the first ones run by default."""
    values = list(values)
    return only(values[:count], values)


def only(chosen: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return parameters of which the chosen ones run by default.

    Args:
        cases: Values, or tuples of the values of several parameters.
    """
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(case if case in chosen else pytest.param(*values, marks=pytest.mark.full))
    return marked
