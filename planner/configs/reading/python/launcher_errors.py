"""Errors of a Python program that is followed: what stops it, what its `try` handles, and what nobody knows to succeed."""

import ast
import builtins
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlplan.planner.configs.reading.python.syntax import (
    Function,
    dotted,
    module_beside,
    reset_names,
)
from rlplan.planner.configs.reading.python.values import Unknown

# What is raised where a variable of the environment is not set.
NO_VARIABLE: Final = "KeyError"


class StopError(Exception):
    """Leave the program: it raises an error itself, or ends.

    Attributes:
        kind: Class of the error that it raises; empty where it ends otherwise, which no `try` handles.
    """

    def __init__(self, line: int, reason: str, kind: str = "") -> None:
        super().__init__()
        self.line, self.reason, self.kind = line, reason, kind


def raised_by(node: ast.Raise) -> str:
    """Return the class of the error that a statement raises; that of all where it is raised again, or not named."""
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return dotted(raised).rpartition(".")[2] or "Exception" if raised is not None else "Exception"


def handler_of(node: ast.Try, kind: str) -> ast.ExceptHandler | None:
    """Return the handler of an error's class; None where there is none."""
    return next((each for each in node.handlers if kind and _handles(each.type, kind)), None)


def _handles(caught: ast.expr | None, kind: str) -> bool:
    if caught is None:
        return True
    if isinstance(caught, ast.Tuple):
        return any(_handles(each, kind) for each in caught.elts)
    name = dotted(caught).rpartition(".")[2]
    # A class of the program's own is taken for an Exception.
    raised, wanted = getattr(builtins, kind, Exception), getattr(builtins, name, None)
    if isinstance(raised, type) and isinstance(wanted, type):
        return issubclass(raised, wanted)
    return name == kind


def asks_for_what_is_not_set(node: ast.stmt, environment: Mapping[str, str]) -> bool:
    """Tell whether a statement reads a variable of the environment by `environ[NAME]` that is not set."""
    if isinstance(
        node, Function | ast.ClassDef | ast.If | ast.For | ast.While | ast.With | ast.Try
    ):
        return False  # what is inside may not come to be
    read = (part for part in ast.walk(node) if isinstance(part, ast.Subscript))
    return any(
        isinstance(part.ctx, ast.Load)
        and dotted(part.value).endswith("environ")
        and isinstance(part.slice, ast.Constant)
        and str(part.slice.value) not in environment
        for part in read
    )


def may_fail(body: Sequence[ast.stmt], held: Mapping[str, Any], path: Path) -> bool:
    """Tell whether nobody knows that a block comes to its end: it imports, calls, or sets what is not known.

    Args:
        held: Names and their values behind it.
        path: Of the program, beside which modules lie.
    """
    return any(_may_fail(each, held, path) for each in body)


def _may_fail(node: ast.stmt, held: Mapping[str, Any], path: Path) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        one = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        named = one or [each.name for each in node.names]
        return not all(_is_there(each, path) for each in named)
    if isinstance(node, ast.Expr | ast.If | ast.For | ast.While | ast.With | ast.Try):
        return True
    return any(isinstance(held.get(each), Unknown) for each in reset_names(node))


def _is_there(module: str, path: Path) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names or bool(module_beside(path, module))
