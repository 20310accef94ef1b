r"""Reward the right answer in a box: the response's last `\boxed{...}` holds the row's `answer`."""

from typing import Any

from rlplan.executor.learning.answers import answer_of, last_boxed, same_answer

# Columns of the data that it reads; a run without them is refused before it starts.
NEEDS = ("answer",)


def RULE(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: N802
    r"""Return 1 if the response's last `\boxed{...}` holds the row's `answer`, else 0.

    They are compared as numbers if both are numbers, else as texts without LaTeX's spacing. If the answer itself
    has a box, as worked solutions do, the content of its last box is compared.

    Raises:
        FileError: The row has no `answer`.
    """
    answer, boxed = answer_of(row, prompt, "boxed_match"), last_boxed(response)
    wanted = last_boxed(answer)
    return float(boxed is not None and same_answer(boxed, answer if wanted is None else wanted))
