"""Reward the right number: the last one that the response names is the row's `answer`."""

from typing import Any

from rlplan.errors import FileError
from rlplan.executor.learning.answers import answer_of, last_number, origin_of

# Columns of the data that it reads; a run without them is refused before it starts.
NEEDS = ("answer",)


def RULE(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: N802
    """Return 1 if the response's last number equals the last one of the row's `answer`, else 0.

    Raises:
        FileError: The row has no `answer`, or no number is in it.
    """
    answer = answer_of(row, prompt, "numeric_match")
    wanted = last_number(answer)
    if wanted is None:
        raise FileError(
            origin_of(row, prompt), "has no number", field="answer", value=answer, allowed="42"
        )
    return float(last_number(response) == wanted)
