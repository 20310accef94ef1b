"""Reward a response's form: the row's `format`, or reasoning in `<think>` with the answer in `<answer>` behind it."""

import re
from functools import cache
from typing import Any

from rlplan.errors import FileError
from rlplan.executor.learning.answers import origin_of

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
THINK_ANSWER = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)


def RULE(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: N802
    """Return 1 if the whole response is of the form that is wanted, else 0.

    The row's `format` is a regular expression of Python, in which a dot is a new line as well. Without one,
    the response is `<think>...</think> <answer>...</answer>`, each of the four tags once, with nothing
    but space around them.

    Raises:
        FileError: The row's `format` is no regular expression.
    """
    pattern = row.get("format")
    if pattern is None:
        once = all(response.count(tag) == 1 for tag in TAGS)
        return float(once and THINK_ANSWER.fullmatch(response) is not None)
    allowed = "a regular expression"
    if not isinstance(pattern, str):
        raise FileError(
            origin_of(row, prompt), "is no text", field="format", value=pattern, allowed=allowed
        )
    try:
        compiled = _compiled(pattern)
    except re.error as error:
        problem = f"cannot be read: {error}"
        raise FileError(
            origin_of(row, prompt), problem, field="format", value=pattern, allowed=allowed
        ) from None
    return float(compiled.fullmatch(response) is not None)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)
