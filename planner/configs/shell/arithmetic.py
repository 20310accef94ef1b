"""Arithmetic of a script: whole numbers, as `$((...))` and `((...))` compute them."""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from planner.configs.shell.text import Gap, Text

if TYPE_CHECKING:
    from tree_sitter import Node


class UnknownNumberError(Exception):
    """Say what of an expression is no whole number."""


def _quotient(left: int, right: int) -> int:
    """Return a quotient cut towards zero, as a shell's."""
    if right == 0:
        raise UnknownNumberError("divides by zero")
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


def _remainder(left: int, right: int) -> int:
    return left - right * _quotient(left, right)


OPERATORS: Final[dict[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": _remainder,
    "**": operator.pow,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "==": lambda left, right: int(left == right),
    "!=": lambda left, right: int(left != right),
    "<": lambda left, right: int(left < right),
    "<=": lambda left, right: int(left <= right),
    ">": lambda left, right: int(left > right),
    ">=": lambda left, right: int(left >= right),
    "&&": lambda left, right: int(bool(left) and bool(right)),
    "||": lambda left, right: int(bool(left) or bool(right)),
}


def number_of(node: "Node", look_up: Callable[["Node"], Text], gaps: list[Gap]) -> int:
    """Return the value of an expression.

    Args:
        look_up: Returns the text of a variable or word of it.
        gaps: Gets what of it could not be evaluated.

    Raises:
        UnknownNumberError: A part of it is no number.
    """
    parts = [part for part in node.children if part.type not in {"(", ")"}]
    if node.type == "binary_expression" and len(parts) == 3:  # noqa: PLR2004 -- left, sign, right
        sign = OPERATORS.get(parts[1].type)
        if sign is None:
            raise UnknownNumberError(f"{parts[1].type} is not understood")
        return sign(number_of(parts[0], look_up, gaps), number_of(parts[2], look_up, gaps))
    if node.type == "parenthesized_expression" and len(parts) == 1:
        return number_of(parts[0], look_up, gaps)
    if node.type == "unary_expression" and len(parts) == 2:  # noqa: PLR2004 -- sign, value
        value = number_of(parts[1], look_up, gaps)
        return {"-": -value, "!": int(not value)}.get(parts[0].type, value)
    if node.type == "ternary_expression":
        chosen = [part for part in parts if part.is_named]
        return number_of(
            chosen[1] if number_of(chosen[0], look_up, gaps) else chosen[2], look_up, gaps
        )
    if node.type == "number":
        return int((node.text or b"").decode(), 0)
    text = look_up(node)
    gaps.extend(text.gaps)
    try:
        return int(text.value or "0")
    except ValueError:
        raise UnknownNumberError(f"{text.value!r} is no whole number") from None
