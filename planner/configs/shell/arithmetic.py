"""Arithmetic of a script: whole numbers of 64 bits, as `$((...))` and `((...))` compute them."""

import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rlplan.errors import cut
from rlplan.planner.configs.shell.text import Gap, Text

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


def _power(base: int, exponent: int) -> int:
    if exponent < 0:
        raise UnknownNumberError("has a negative exponent")
    wrapped: int = pow(base, exponent, 2**BITS)
    return wrapped


def _wrapped(number: int) -> int:
    """Return a number as a signed one of 64 bits holds it: a shell's wrap around."""
    half = 1 << BITS - 1
    return (number + half) % (2 * half) - half


BITS: Final = 64
# A number as shells write it: octal where it begins with 0.
_OCTAL: Final = re.compile(r"0[0-7]+")

OPERATORS: Final[dict[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": lambda left, right: left - right * _quotient(left, right),
    "**": _power,
    # As processors do it, places count modulo 64.
    "<<": lambda left, right: left << right % BITS,
    ">>": lambda left, right: left >> right % BITS,
    "==": lambda left, right: int(left == right),
    "!=": lambda left, right: int(left != right),
    "<": lambda left, right: int(left < right),
    "<=": lambda left, right: int(left <= right),
    ">": lambda left, right: int(left > right),
    ">=": lambda left, right: int(left >= right),
    "&&": lambda left, right: int(bool(left) and bool(right)),
    "||": lambda left, right: int(bool(left) or bool(right)),
}


def number_of(
    node: "Node",
    look_up: Callable[["Node"], Text],
    gaps: list[Gap],
    assign: Callable[[str, int, tuple[Gap, ...]], None] = lambda *_: None,
) -> int:
    """Return the value of an expression.

    Args:
        look_up: Returns the text of a variable or word of it.
        gaps: Gets what of it could not be evaluated.
        assign: Gives a variable a number, and what of it could not be evaluated.

    Raises:
        UnknownNumberError: A part of it is no number.
    """
    parts = [part for part in node.children if part.type not in {"(", ")"}]
    changed = _changed(
        node, parts, gaps, lambda part: number_of(part, look_up, gaps, assign), assign
    )
    if changed is not None:
        return changed
    if node.type == "binary_expression" and len(parts) == 3:  # noqa: PLR2004 -- left, sign, right
        sign = OPERATORS.get(parts[1].type)
        if sign is None:
            raise UnknownNumberError(f"{parts[1].type} is not understood")
        left, right = (number_of(part, look_up, gaps, assign) for part in (parts[0], parts[2]))
        return _wrapped(sign(left, right))
    if node.type == "parenthesized_expression" and len(parts) == 1:
        return number_of(parts[0], look_up, gaps, assign)
    if node.type == "unary_expression" and len(parts) == 2:  # noqa: PLR2004 -- sign, value
        value = number_of(parts[1], look_up, gaps, assign)
        return {"-": -value, "!": int(not value)}.get(parts[0].type, value)
    if node.type == "ternary_expression":
        chosen = [part for part in parts if part.is_named]
        if len(chosen) != 3:  # noqa: PLR2004 -- condition, value, other value
            raise UnknownNumberError("is not understood")
        holds = number_of(chosen[0], look_up, gaps, assign)
        return number_of(chosen[1] if holds else chosen[2], look_up, gaps, assign)
    if node.type == "number":
        return _literal((node.text or b"").decode("utf-8", "replace"))
    text = look_up(node)
    gaps.extend(text.gaps)
    return _literal(text.value or "0")


def _changed(
    node: "Node",
    parts: list["Node"],
    gaps: list[Gap],
    value_of: Callable[["Node"], int],
    assign: Callable[[str, int, tuple[Gap, ...]], None],
) -> int | None:
    """Give a variable the number that `i++`, `--i`, `i = 2` or `i += 2` says; return the expression's value.

    None of an expression that changes none.
    """
    signs = [part.type for part in parts if not part.is_named]
    named = [part for part in parts if part.is_named]
    sign = signs[0] if len(signs) == 1 else ""
    if sign in {"++", "--"} and len(named) == 1:
        before = value_of(named[0])
        after = _wrapped(before + (1 if sign == "++" else -1))
        assign(_name_of(named[0]), after, tuple(gaps))
        return before if node.type == "postfix_expression" else after
    if sign[-1:] == "=" and sign not in OPERATORS and len(named) == 2:  # noqa: PLR2004 -- variable, value
        value = value_of(named[1])
        if sign != "=":
            operation = OPERATORS.get(sign[:-1])
            if operation is None:
                raise UnknownNumberError(f"{sign} is not understood")
            value = _wrapped(operation(value_of(named[0]), value))
        assign(_name_of(named[0]), value, tuple(gaps))
        return value
    return None


def _name_of(node: "Node") -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _literal(text: str) -> int:
    try:
        return _wrapped(int(text, 8) if _OCTAL.fullmatch(text) else int(text, 0))
    except ValueError:
        raise UnknownNumberError(f"{cut(text)!r} is no whole number") from None
