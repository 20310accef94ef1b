"""What the syntax of a Python program says by itself: what statements set, what calls give, which files stand beside it."""

import ast
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError, unreadable
from rlplan.files.decoding import load_yaml

# Bytes of another file that a program reads or imports.
MOST_BYTES: Final = 1_000_000
VALUES: Final = (".yaml", ".yml", ".json")
# Folders in which a program's files are looked for: its own, and those above.
FOLDERS: Final = 3

# Methods of a mapping that change it.
CHANGES: Final = ("update", "setdefault", "pop", "popitem", "clear")

# A function of a program.
Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_beside(path: Path, name: str) -> Path | None:
    """Return the file of a module that a program imports, beside it or in a folder above; None where it is not there."""
    inner = Path(f"{name.replace('.', '/')}.py")
    folders = list(path.resolve().parents)[:FOLDERS]
    return next((folder / inner for folder in folders if name and _is_read(folder / inner)), None)


def _is_read(path: Path) -> bool:
    """Tell whether a file is there, and no larger than what is read."""
    try:
        return path.is_file() and path.stat().st_size <= MOST_BYTES
    except (OSError, ValueError):
        return False


def set_in(node: ast.AST) -> Iterator[tuple[ast.expr, ast.AST]]:
    """Yield what a statement, or an item of `with`, sets: a target and what it is set to."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target, node
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield node.target, node  # one value after another
    elif isinstance(node, ast.NamedExpr):
        yield node.target, node.value
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def opened_in(tree: ast.Module) -> dict[int, ast.expr]:
    """Return, by the identity of calls inside `with`, what the name stands for that they are given first."""
    found: dict[int, ast.expr] = {}
    for node in ast.walk(tree):
        items = node.items if isinstance(node, ast.With) else []
        named = {
            each.optional_vars.id: each.context_expr
            for each in items
            if isinstance(each.optional_vars, ast.Name)
        }
        for call in ast.walk(node) if named else ():
            first = call.args[0] if isinstance(call, ast.Call) and call.args else None
            if isinstance(first, ast.Name) and first.id in named:
                found[id(call)] = named[first.id]
    return found


def attributes_in(node: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that an expression is made of."""
    return (each for each in ast.walk(node) if isinstance(each, ast.Attribute))


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the names that an expression is made of, without those that it calls."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Name):
            yield part.id
        called = part.func if isinstance(part, ast.Call) else None
        waiting.extend(each for each in ast.iter_child_nodes(part) if each is not called)


def values_of(path: Path, named: str) -> Any:  # noqa: ANN401 -- whatever the file holds
    """Return what a YAML or JSON file holds that a program names, from the folder where it is started or its own.

    Raises:
        FileError: It is not there, too large, or none.
    """
    inside = not Path(named).is_absolute() and ".." not in Path(named).parts
    places = [base / named for base in (Path(), *list(path.resolve().parents)[:FOLDERS]) if inside]
    found = next((each for each in places if each.suffix in VALUES and _is_read(each)), None)
    if found is None:
        raise FileError(named, "is not at hand")
    return load_yaml(found)


def tree_of(path: Path) -> ast.Module:
    """Return a file as Python.

    Raises:
        FileError: It cannot be read, or is no Python of today.
    """
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise FileError(str(path) if line is None else f"{path}:{line}", "is not Python") from None


def dotted(node: ast.expr) -> str:
    """Return a name with what stands before its dots; empty where it is none."""
    parts = list[str]()
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def written(node: ast.AST) -> str:
    """Return an expression as it is written, in one line; one that is too deep is cut off."""
    try:
        return " ".join(ast.unparse(node).split())
    except RecursionError:
        return "..."


def defaults_of(node: Function) -> dict[str, ast.expr | None]:
    """Return a function's parameters with their defaults; None has none."""
    given = node.args
    placed = [*given.posonlyargs, *given.args]
    none: list[ast.expr | None] = [None] * (len(placed) - len(given.defaults))
    defaults = [*none, *given.defaults, *given.kw_defaults]
    named = zip([*placed, *given.kwonlyargs], defaults, strict=True)
    return {each.arg: default for each, default in named}


def given_by(call: ast.Call, function: Function) -> dict[str, ast.expr]:
    """Return what a call gives a function, by the names of its parameters.

    What `*` or `**` may give stands as it is written behind these: as `ast.Starred`.
    """
    placed = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    before = [*takewhile(lambda each: not isinstance(each, ast.Starred), call.args)]
    given = dict(zip(placed, before, strict=False))
    given |= {word.arg: word.value for word in call.keywords if word.arg}
    unpacked = next((word.value for word in call.keywords if word.arg is None), None)
    spread = unpacked if len(before) == len(call.args) else call.args[len(before)]
    if spread is None:
        return given
    names = placed if unpacked is None else defaults_of(function)
    return {name: ast.Starred(value=spread) for name in names} | given


def reset_in(function: Function) -> set[str]:
    """Return the names that a function sets itself: a parameter among them need not be what is given for it."""
    names = (each for each in ast.walk(function) if isinstance(each, ast.Name))
    return {each.id for each in names if isinstance(each.ctx, ast.Store)}


def is_method(function: Function) -> bool:
    """Tell whether a function's first parameter is an object or a class, as methods name it."""
    return bool({"self", "cls"} & set(defaults_of(function)))


def only_return_of(function: Function) -> ast.expr | None:
    """Return what a function returns where it always ends in one place, inside `with` at most; None where it may end in others."""
    waiting: list[ast.stmt] = [*function.body]
    ends = list[ast.Return]()
    while waiting:
        part = waiting.pop()
        waiting += part.body if isinstance(part, ast.With) else ()
        ends += [part] if isinstance(part, ast.Return) else ()
    count = sum(isinstance(each, ast.Return) for each in ast.walk(function))
    return ends[0].value if len(ends) == count == 1 else None


def changed_in(tree: ast.Module) -> set[str]:
    """Return the names of mappings that a program changes after it has made them, by their items or by a method."""
    found = set[str]()
    for node in ast.walk(tree):
        held = node.value if isinstance(node, ast.Subscript) and _is_set(node) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            held = node.func.value if node.func.attr in CHANGES else None
        while isinstance(held, ast.Subscript | ast.Attribute):
            held = held.value
        if isinstance(held, ast.Name):
            found.add(held.id)
    return found


def _is_set(node: ast.Subscript) -> bool:
    return isinstance(node.ctx, ast.Store | ast.Del)
