"""Conditions of a script: `[ ... ]`, `[[ ... ]]`, `test` and `((...))`, true, false or unknown."""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlplan.planner.configs.shell.arithmetic import UnknownNumberError, number_of
from rlplan.planner.configs.shell.text import Gap, Text
from rlplan.planner.configs.shell.words import Words

if TYPE_CHECKING:
    from tree_sitter import Node

Truth = bool | None

_NUMBERS: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}
_TEXTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
}
_EQUAL = {"=", "=="}


def both(left: Truth, right: Truth) -> Truth:
    """Return whether both are true, as far as that is known."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def inverse(truth: Truth) -> Truth:
    """Return the opposite, as far as it is known."""
    return None if truth is None else not truth


def either(left: Truth, right: Truth) -> Truth:
    """Return whether one is true, as far as that is known."""
    return inverse(both(inverse(left), inverse(right)))


def truth_of(node: "Node", words: Words, *, if_unset: bool = False) -> Truth:
    """Return whether an expression of a test is true; None where that cannot be said.

    Args:
        if_unset: Take variables that nothing sets for empty, where it is asked whether they are.
    """
    return _Test(words, if_unset=if_unset).truth(node)


def number_is_true(node: "Node", words: Words) -> Truth:
    """Return whether an arithmetic expression is other than zero; None where that cannot be said."""
    gaps: list[Gap] = []
    try:
        value = number_of(node, words.number, gaps, words.assign)
    except UnknownNumberError:
        return None
    return None if gaps else value != 0


class _Test:
    """Answer a test.

    Args:
        words: The script's variables; arguments that it is not given are known to be empty.
        if_unset: Whether variables that nothing sets are taken for empty, where it is asked whether they are.
    """

    def __init__(self, words: Words, *, if_unset: bool) -> None:
        self._words = words
        self._empty = Gap.is_unset if if_unset else Gap.is_argument

    def truth(self, node: "Node") -> Truth:
        """Return whether an expression is true; None where that cannot be said."""
        parts = [
            part for part in node.children if part.type not in {"(", ")", "[", "]", "[[", "]]"}
        ]
        if node.type in {"test_command", "parenthesized_expression"}:
            return self.truth(parts[0]) if len(parts) == 1 else None
        if node.type == "negated_command":
            return None
        if node.type == "unary_expression" and len(parts) == 2:  # noqa: PLR2004 -- sign, value
            return self._of_one(parts[0], parts[1])
        if node.type == "binary_expression" and len(parts) == 3:  # noqa: PLR2004 -- left, sign, right
            return self._of_two(parts[0], parts[1], parts[2])
        if node.type == "binary_expression":
            return self._of_pattern(parts)
        return self._is_text(node)

    def _is_text(self, node: "Node") -> Truth:
        text = self._words.text(node).with_empty(self._empty)
        return None if text.gaps else bool(text.value)

    def _of_one(self, sign: "Node", operand: "Node") -> Truth:
        kind = (sign.text or b"").decode()
        if kind == "!":
            return inverse(self.truth(operand))
        if kind == "-v":
            return self._words.variables.get((operand.text or b"").decode()) is not None
        if kind in {"-f", "-d", "-e", "-s", "-r"}:
            return self._is_there(operand)
        if kind not in {"-n", "-z"}:
            return None  # of the machine on which it will run
        truth = self._is_text(operand)
        return truth if kind == "-n" else inverse(truth)

    def _is_there(self, operand: "Node") -> Truth:
        """Return true of a file that is there; what is not may be on the machine on which it will run."""
        path = self._words.text(operand)
        here = self._words.variables.get("PWD")
        if path.gaps or not path.value or not isinstance(here, Text):
            return None
        try:
            return True if (Path(here.value) / path.value).exists() else None
        except (OSError, ValueError):
            return None

    def _of_two(self, left: "Node", sign: "Node", right: "Node") -> Truth:
        kind = (sign.text or b"").decode()
        if kind in {"&&", "-a"}:
            return both(self.truth(left), self.truth(right))
        if kind in {"||", "-o"}:
            return either(self.truth(left), self.truth(right))
        first, second = (
            self._words.text(each).with_empty(Gap.is_argument) for each in (left, right)
        )
        if first.gaps or second.gaps:
            return None
        return compared(first.value, kind, second.value, literal=right.type == "string")

    def _of_pattern(self, parts: "list[Node]") -> Truth:
        """Compare with a pattern of several parts, some of them quoted, such as `*"--help"*`."""
        left, sign, *right = parts
        texts = [self._words.text(each).with_empty(Gap.is_argument) for each in (left, *right)]
        if any(each.gaps for each in texts):
            return None
        kind, pattern = (sign.text or b"").decode(), "".join(each.value for each in texts[1:])
        return compared(texts[0].value, kind, pattern, literal=False)


def compared(first: str, kind: str, second: str, *, literal: bool = True) -> Truth:
    """Return what a comparison says of two texts; None where there is none of that kind."""
    if kind in _EQUAL:
        return first == second if literal else fnmatchcase(first, second)
    if kind == "!=":
        return first != second if literal else not fnmatchcase(first, second)
    if kind == "=~":
        try:
            return re.search(second, first) is not None
        except re.error:
            return None
    if kind in _TEXTS:
        return _TEXTS[kind](first, second)
    try:
        return _NUMBERS[kind](int(first), int(second))
    except (KeyError, ValueError):
        return None
