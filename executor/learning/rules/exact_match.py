"""Reward the one right answer, which the prompt's row holds as `answer`."""

from typing import Any

from executor.data.prompt_files import ORIGIN
from rlplan.errors import FileError

# Columns of the data that it reads; a run without them is refused before it starts.
NEEDS = ("answer",)


def RULE(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: N802
    """Return 1 if the response equals the row's `answer` but for space around it, else 0.

    Raises:
        FileError: The row has no `answer`.
    """
    if "answer" not in row:
        origin = str(row.get(ORIGIN, f"prompt {prompt!r}"))
        raise FileError(
            origin, "is missing (the rule exact_match compares with it)", field="answer"
        )
    return float(response.strip() == str(row["answer"]).strip())
