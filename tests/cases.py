"""Which cases of a matrix run by default; `pytest --full` runs all of them, with `--part` a share of them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import settings

# Of a property, by default, and with `--full` (tests/conftest.py) or when it looks for new counterexamples.
FEW_EXAMPLES, FULL_EXAMPLES = 20, 120


def draws(few: int, full: int) -> int:
    """Return how many random cases a test draws: few by default, all of them with `--full`, a share with `--part`."""
    examples = settings().max_examples
    if examples <= FEW_EXAMPLES:
        return few
    return max(few, full * min(examples, FULL_EXAMPLES) // FULL_EXAMPLES)


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


def covering(options: Mapping[str, set[str]], costs: Mapping[str, float]) -> list[str]:
    """Return cheap cases that have, together, every option that any case has.

    Args:
        options: Of each case, by its name.
        costs: Of each case, in any unit.
    """
    left = set().union(*options.values())
    chosen = []
    while left:
        best = max(options, key=lambda name: len(left & options[name]) / costs[name])
        chosen.append(best)
        left -= options[best]
    return chosen
