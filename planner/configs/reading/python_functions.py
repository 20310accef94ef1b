"""What functions of a Python program return for known parameters: statement by statement, and nothing of it is run."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rlplan.planner.configs.reading.python_syntax import Function, reset_names
from rlplan.planner.configs.reading.python_values import Expressions, UnknownValueError

RETURNS: Final = "is what a call returns"
# Stands for the end of a block that returns nothing.
GOES_ON: Final = object()


class Scoped(Expressions):
    """Compute expressions of names that stand for parameters.

    Attributes:
        parameters: Expressions that names stand for; None is not known.
    """

    parameters: Mapping[str, ast.expr | None]


def returned_by(
    values: Scoped, function: Function, bound: Mapping[str, ast.expr | None], depth: int
) -> Any:  # noqa: ANN401 -- whatever Python has
    """Return what a function returns for its parameters.

    Conditions have to be known where what they decide matters, and nothing may be returned out of a loop or where an
    exception is handled.

    Raises:
        UnknownValueError: It is not known, or returns nothing.
    """
    outside, values.parameters = values.parameters, dict(bound)
    try:
        found = _block(values, function.body, depth)
    finally:
        values.parameters = outside
    if found is GOES_ON:
        raise UnknownValueError(RETURNS)
    return found


def _block(values: Scoped, body: Sequence[ast.stmt], depth: int) -> Any:  # noqa: ANN401
    for each in body:
        found = _statement(values, each, depth)
        if found is not GOES_ON:
            return found
    return GOES_ON


def _statement(values: Scoped, node: ast.stmt, depth: int) -> Any:  # noqa: ANN401
    """Return what a statement returns out of its function; else note what it sets."""
    if isinstance(node, ast.Return | ast.Raise):
        if not isinstance(node, ast.Return) or node.value is None:
            raise UnknownValueError(RETURNS)
        return values.value(node.value, depth)
    if isinstance(node, ast.If):
        return _branch(values, node, depth)
    if isinstance(node, ast.With | ast.Try):
        return _inside(values, node, depth)
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        _set(values, node, depth)
    elif isinstance(node, ast.Expr | ast.Delete):
        _change(values, node)
    else:
        if _returns(node) and not isinstance(node, Function | ast.ClassDef):
            raise UnknownValueError(RETURNS)
        _forget(values, (node,))
    return GOES_ON


def _inside(values: Scoped, node: ast.With | ast.Try, depth: int) -> Any:  # noqa: ANN401
    """Return what a block returns that is carried out once, as long as nothing is wrong."""
    if isinstance(node, ast.With):
        _forget(values, [each.optional_vars for each in node.items if each.optional_vars])
        return _block(values, node.body, depth)
    handled = [*node.handlers, *node.orelse, *node.finalbody]
    if any(map(_returns, handled)):
        raise UnknownValueError(RETURNS)
    found = _block(values, node.body, depth)
    if found is GOES_ON:
        _forget(values, handled)
    return found


def _branch(values: Scoped, node: ast.If, depth: int) -> Any:  # noqa: ANN401
    try:
        chosen = node.body if values.value(node.test, depth) else node.orelse
    except UnknownValueError:
        if any(map(_returns, (*node.body, *node.orelse))):
            raise
        _forget(values, (*node.body, *node.orelse))
        return GOES_ON
    return _block(values, chosen, depth)


def _set(values: Scoped, node: ast.Assign | ast.AnnAssign | ast.AugAssign, depth: int) -> None:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    target = targets[0]
    value = node.value
    if isinstance(node, ast.AugAssign) and isinstance(target, ast.Name):
        value = ast.BinOp(left=ast.Name(id=target.id), op=node.op, right=node.value)
    if len(targets) == 1 and isinstance(target, ast.Name) and value is not None:
        held = ast.Constant(value=values.entry(value, depth))
        values.parameters = {**values.parameters, target.id: held}
        return
    _forget(values, targets)


def _change(values: Scoped, node: ast.stmt) -> None:
    """Forget the names whose methods are called, or whose items are deleted: they may hold something else by then."""
    called = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    held = [each.func.value for each in called if isinstance(each.func, ast.Attribute)]
    deleted = node.targets if isinstance(node, ast.Delete) else []
    names = (
        name.id
        for each in (*held, *deleted)
        for name in ast.walk(each)
        if isinstance(name, ast.Name) and name.id in values.parameters
    )
    _forget_names(values, list(names))


def _forget(values: Scoped, nodes: Iterable[ast.AST]) -> None:
    """Forget the names that nodes set, or change an item or attribute of."""
    _forget_names(values, [name for each in nodes for name in reset_names(each)])


def _forget_names(values: Scoped, names: Iterable[str]) -> None:
    values.parameters = {**values.parameters, **dict.fromkeys(names)}


def _returns(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Return) for each in ast.walk(node))
