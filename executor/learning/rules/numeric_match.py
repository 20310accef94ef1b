"""Reward the right number: the last one that the response names is the row's `answer`."""

from fractions import Fraction
from typing import Any

from rlplan.executor.learning.answers import last_number, number_of

# Columns of the data that it reads; a run without them is refused before it starts.
NEEDS = ("answer",)


def RULE(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: N802
    """Return 1 if the response's last number equals the last one of the row's `answer`, else 0.

    Raises:
        FileError: The row has no `answer`, or no number is in it.
    """
    return float(last_number(response) == _wanted(prompt, row))


def CHECK(row: dict[str, Any]) -> None:  # noqa: N802
    """Refuse a row whose `answer` is no number.

    Raises:
        FileError: It has none.
    """
    _wanted(str(row["prompt"]), row)


def _wanted(prompt: str, row: dict[str, Any]) -> Fraction:
    return number_of(row, prompt, "numeric_match", "42")
