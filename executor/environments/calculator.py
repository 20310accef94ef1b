"""A tool: what stands between `<calc>` and `</calc>` is computed and handed back; other responses are answers.

An answer is judged by the row's `answer`: 1 where its last number is that number, else 0.
"""

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from rlplan.executor.environments import Step

CALL = re.compile(r"<calc>(.*?)(?:</calc>|$)", re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
OPERATIONS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
# Longer ones are none that a lesson in arithmetic asks for, and the parser's depth is limited.
LONGEST_EXPRESSION = 100
CLOSE = 1e-6


class Environment:
    """Compute what a model asks for, and judge its answer."""

    def reset(self, prompt: str, row: dict[str, Any]) -> str:  # noqa: ARG002  # the row has the answer
        """Remember the right answer."""
        self._answer = row.get("answer")
        return ""

    def step(self, response: str) -> Step:
        """Return the result of a calculation, or judge an answer."""
        call = CALL.search(response)
        if call is not None:
            return Step(observation=f" = {computed(call[1])}\n")
        numbers = NUMBER.findall(response)
        right = NUMBER.findall(str(self._answer)) if self._answer is not None else []
        correct = bool(numbers and right) and abs(float(numbers[-1]) - float(right[-1])) < CLOSE
        return Step(reward=float(correct), ends=True)


def computed(expression: str) -> str:
    """Return the value of an expression of numbers, brackets and + - * /, or what is wrong with it."""
    if len(expression) > LONGEST_EXPRESSION:
        return "too long"
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except ZeroDivisionError:
        return "division by zero"
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return "not understood"
    return f"{value:g}"


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in {int, float}:
        return float(node.value)  # type: ignore[arg-type]  # one of both
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.operand))
    raise ValueError("an operation that is none of arithmetic")
