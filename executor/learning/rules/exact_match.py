"""Reward the one right answer, which the prompt's row holds as `answer`."""

from typing import Any

from rlplan.executor.learning.answers import answer_of

# Columns of the data that it reads; a run without them is refused before it starts.
NEEDS = ("answer",)


def RULE(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: N802
    """Return 1 if the response equals the row's `answer` but for space around it, else 0.

    Raises:
        FileError: The row has no `answer`.
    """
    return float(response.strip() == answer_of(row, prompt, "exact_match"))
