"""What statements may change that are not followed since only a run would decide whether, or how often, they run."""

import ast
from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

from rlplan.planner.configs.reading.python.launcher import Launcher
from rlplan.planner.configs.reading.python.launcher_values import (
    CHANGED,
    CHANGING,
    OTHERS,
    Code,
    Made,
)
from rlplan.planner.configs.reading.python.syntax import (
    CHANGES,
    Function,
    defaults_of,
    dotted,
    reset_in,
    reset_names,
    root_of,
)
from rlplan.planner.configs.reading.python.values import Unknown

LOST: Final = Unknown(CHANGED, "")
# Functions that change what they are given first.
OF_ATTRIBUTES: Final = ("setattr", "delattr")


def lose_changed(program: Launcher, node: ast.AST) -> None:
    """Know nothing any more of the lists, mappings and objects that a statement may change, itself or by the program's functions."""
    names = [*program.around(), program.names]
    parts = {id(part): (name, key) for part, name, key in _parts_set_in(node)}
    for name, key in parts.values():
        _lose_part(_held(names, name), key)
    for name in (*_changed_in(node, parts), *_changed_by_another_name(node)):
        _lose(_held(names, name))
    for call, code in _called_in(node, names):
        if _changes_given(code, set()):
            given = [*call.args, *(word.value for word in call.keywords), call.func]
            for name in filter(None, map(root_of, given)):
                _lose(_held(names, name))


def held_by_parts(program: Launcher, node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield the names of which a statement sets nothing but single attributes or items, with the objects that they are."""
    names = [*program.around(), program.names]
    parts = {id(part): name for part, name, _ in _parts_set_in(node)}
    others = {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)
    }
    others |= {*_changed_in(node, parts), *_changed_by_another_name(node)}
    for name in {*parts.values()} - others:
        held = _held(names, name)
        if isinstance(held, dict | Made):
            yield name, held


def _changed_by_another_name(node: ast.AST) -> Iterator[str]:
    """Yield the names of what may be changed by a name that the statements themselves give it, or by a function that they define."""
    changed = {*_changed_in(node)}
    own = {each.name for each in ast.walk(node) if isinstance(each, Function)}
    for part in ast.walk(node):
        held: ast.AST | None = None
        if isinstance(part, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            held = part.value if changed & {*reset_names(part)} else None
        elif isinstance(part, ast.For | ast.AsyncFor | ast.comprehension):
            held = part.iter if changed & {*reset_names(part.target)} else None
        elif isinstance(part, ast.Call) and root_of(part.func) in own:
            held = part
        if held is not None:
            yield from (each.id for each in ast.walk(held) if isinstance(each, ast.Name))


def _parts_set_in(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    """Yield the one attribute or item that is set of what a name holds, with the name and what the part is called."""
    for part in ast.walk(node):
        if not isinstance(part, ast.Subscript | ast.Attribute) or isinstance(part.ctx, ast.Load):
            continue
        key: object = part.attr if isinstance(part, ast.Attribute) else part.slice
        key = key.value if isinstance(key, ast.Constant) else key
        if isinstance(part.value, ast.Name) and isinstance(key, str):
            yield part, part.value.id, key


def _lose_part(held: Any, key: str) -> None:  # noqa: ANN401
    """Know nothing any more of one attribute or item; of a list, of nothing in it."""
    if isinstance(held, dict):
        held[key] = LOST
    elif isinstance(held, Made):
        held.fields[key] = LOST
    else:
        _lose(held)


def _changed_in(node: ast.AST, known: Container[int] = ()) -> Iterator[str]:
    """Yield the names of what is changed in place: by its items and attributes, by methods, and by what is added to it.

    Args:
        known: Parts that are set of which no more is to be said, by their identity.
    """
    for part in ast.walk(node):
        held: ast.AST | None = None
        if id(part) in known:
            continue
        if isinstance(part, ast.Subscript | ast.Attribute) and not isinstance(part.ctx, ast.Load):
            held = part
        elif isinstance(part, ast.AugAssign):
            held = part.target
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            held = part.func.value if part.func.attr in {*CHANGING, *CHANGES} else None
        elif isinstance(part, ast.Call) and dotted(part.func) in OF_ATTRIBUTES and part.args:
            held = part.args[0]
        name = None if held is None else root_of(held)
        if name is not None:
            yield name


def _called_in(node: ast.AST, names: list[dict[str, Any]]) -> Iterator[tuple[ast.Call, Code]]:
    """Yield the calls of the program's own functions, and of methods of its objects."""
    for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
        held = _held(names, root_of(call.func) or "")
        if isinstance(held, Made) and isinstance(call.func, ast.Attribute):
            held = _method(held, call.func.attr)
        elif isinstance(held, Launcher) and isinstance(call.func, ast.Attribute):
            held = held.names.get(call.func.attr)
        if isinstance(held, Code):
            yield call, held


def _method(made: Made, name: str) -> Code | None:
    kind = made.kind
    parts = [] if kind is None else kind.node.body
    found = (each for each in parts if isinstance(each, Function) and each.name == name)
    node = next(found, None)
    return None if kind is None or node is None else Code(kind.home, node, made)


def _changes_given(code: Code, seen: set[int]) -> bool:
    """Tell whether a function may change what it is given; what it changes elsewhere is not known any more."""
    if id(code.node) in seen:
        return False
    seen.add(id(code.node))
    node = code.node
    own = {*defaults_of(node), *(reset_in(node) if isinstance(node, Function) else ())}
    names = [*code.around, code.home.names]
    outside = {
        name
        for part in ast.walk(node)
        if isinstance(part, ast.Global | ast.Nonlocal)
        for name in part.names
    }
    for name in outside:
        holder: dict[str, Any] = next((each for each in names if name in each), code.home.names)
        holder[name] = LOST
    changed = set(_changed_in(node)) - outside
    for name in changed - own:
        _lose(_held(names, name))
    inner = [_changes_given(each, seen) for _, each in _called_in(node, names)]
    return bool(changed & own) or any(inner)


def _held(names: list[dict[str, Any]], name: str) -> Any:  # noqa: ANN401 -- whatever Python has
    return next((each[name] for each in names if name in each), None)


def _lose(held: Any) -> None:  # noqa: ANN401
    """Know nothing any more of an object's parts, and of parts of these."""
    waiting, seen = [held], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen or not isinstance(each, dict | list | Made):
            continue
        seen.add(id(each))
        parts: Mapping[str, Any] = each.fields if isinstance(each, Made) else {}
        waiting += each if isinstance(each, list) else parts.values()
        if isinstance(each, dict):
            waiting += each.values()
            each |= dict.fromkeys([*each, OTHERS], LOST)
        elif isinstance(each, list):
            each[:] = [LOST]
        else:
            each.fields |= dict.fromkeys(each.fields, LOST)
