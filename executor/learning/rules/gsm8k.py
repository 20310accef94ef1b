"""Reward GSM8K's form of an answer: the response ends its reasoning with `#### 42`.

The form is that of the data set (Cobbe et al. 2021, arXiv:2110.14168, section 2).
"""

import re
from fractions import Fraction
from typing import Any

from rlplan.executor.learning.answers import as_number, number_of

MARKED = re.compile(r"####[ \t]*\$?[ \t]*([-+]?[0-9][0-9,]*(?:\.[0-9]+)?|[-+]?\.[0-9]+)")

# Columns of the data that it reads; a run without them is refused before it starts.
NEEDS = ("answer",)


def RULE(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: N802
    """Return 1 if the number behind the response's last `####` is that of the row's `answer`, else 0.

    The row's `answer` is the number, or the data set's own worked solution with its `#### 42`.

    Raises:
        FileError: The row has no `answer`, or no number is in it.
    """
    wanted, marked = _wanted(prompt, row), MARKED.findall(response)
    return float(bool(marked) and as_number(marked[-1].rstrip(",")) == wanted)


def CHECK(row: dict[str, Any]) -> None:  # noqa: N802
    """Refuse a row whose `answer` has no number.

    Raises:
        FileError: It has none.
    """
    _wanted(str(row["prompt"]), row)


def _wanted(prompt: str, row: dict[str, Any]) -> Fraction:
    return number_of(row, prompt, "gsm8k", "#### 42", behind="####")
