"""Right answers of rows, and answers found in responses, for the rules that compare them."""

import re
from fractions import Fraction
from typing import Any

from rlplan.errors import FileError
from rlplan.executor.data.prompt_files import ORIGIN

# A sign counts unless it stands between two numbers ("7-3" ends with 3), and commas count where they separate thousands.
# Only ASCII digits count, up to this number: a longer number is no answer, and slow to compare.
MOST_FIGURES = 100
NUMBER = re.compile(
    r"(?:(?<![\w)\]}.,])[-+\u2212])?"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)"
)
BOX = re.compile(r"\\boxed\s*\{")
# What LaTeX writes around an answer without changing it.
SPACING = re.compile(r"\\[!,;: ]|\\(?:left|right|displaystyle)(?![A-Za-z])|[\s$]")
NAMED_FRACTION = re.compile(r"([-+]?)\\[dt]?frac\{([-+]?[0-9]+)\}\{([0-9]+)\}")
PLAIN_FRACTION = re.compile(r"([-+]?)([0-9]+)/([0-9]+)")


def answer_of(row: dict[str, Any], prompt: str, rule: str) -> str:
    """Return a row's `answer` as text, without space around it.

    Args:
        rule: Who asks, for the message.

    Raises:
        FileError: The row has none.
    """
    if row.get("answer") is None:
        raise FileError(
            origin_of(row, prompt), f"is missing (the rule {rule} compares with it)", field="answer"
        )
    return str(row["answer"]).strip()


def number_of(
    row: dict[str, Any], prompt: str, rule: str, allowed: str, *, behind: str = ""
) -> Fraction:
    """Return the last number of a row's `answer`.

    Args:
        rule: Who asks, for the message.
        allowed: An answer that has one, for the message.
        behind: What the number stands behind, where the answer has that.

    Raises:
        FileError: The row has no `answer`, or no number is in it.
    """
    answer = answer_of(row, prompt, rule)
    number = last_number(answer.rpartition(behind)[2] if behind else answer)
    if number is None:
        origin = origin_of(row, prompt)
        raise FileError(origin, "has no number", field="answer", value=answer, allowed=allowed)
    return number


def origin_of(row: dict[str, Any], prompt: str) -> str:
    """Return where a row is from, for messages."""
    return str(row.get(ORIGIN, f"prompt {prompt!r}"))


def last_number(text: str) -> Fraction | None:
    """Return the last number that a text names, in figures; None without any.

    `1,234.5` is one number, and so are `-3` and `.5`; in `7-3` the last one is 3.
    """
    found = None
    for found in NUMBER.finditer(text):  # noqa: B007  # the last one is wanted
        pass
    return None if found is None else _number(found.group())


def last_boxed(text: str) -> str | None:
    r"""Return what stands in a text's last `\boxed{...}` whose braces close; None without one."""
    for start in reversed([found.end() for found in BOX.finditer(text)]):
        depth = 1
        for position in range(start, len(text)):
            character, before = text[position], text[position - 1]
            if character in "{}" and before != "\\":
                depth += 1 if character == "{" else -1
            if depth == 0:
                return text[start:position]
    return None


def same_answer(ours: str, theirs: str) -> bool:
    r"""Tell whether two answers are one: equal as numbers, or as texts but for spacing.

    `\frac{1}{2}`, `1/2` and `0.5` are one number; nothing else is computed or simplified.
    """
    first, second = (SPACING.sub("", text) for text in (ours, theirs))
    numbers = as_number(first), as_number(second)
    return first == second or (numbers[0] is not None and numbers[0] == numbers[1])


def as_number(text: str) -> Fraction | None:
    """Return the number that a whole text is, or None."""
    fraction = NAMED_FRACTION.fullmatch(text) or PLAIN_FRACTION.fullmatch(text)
    if fraction is not None and len(text) <= MOST_FIGURES and int(fraction[3]) > 0:
        return Fraction(int(f"{fraction[1]}1") * int(fraction[2]), int(fraction[3]))
    found = NUMBER.fullmatch(text)
    return None if found is None else _number(found.group())


def _number(figures: str) -> Fraction | None:
    if len(figures) > MOST_FIGURES:
        return None
    return Fraction(figures.replace(",", "").replace("\u2212", "-"))
