"""What the syntax of a Python program says by itself: what statements set, what calls give, which files stand beside it."""

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError, unreadable
from rlplan.files.decoding import load_yaml, text_of

# Bytes of another file that a program reads or imports.
MOST_BYTES: Final = 1_000_000
VALUES: Final = (".yaml", ".yml", ".json")
# Folders in which a program's files are looked for: its own, and those above.
FOLDERS: Final = 3

# Where packages lie that are installed from a checkout.
SOURCES: Final = "src"
# The module that a package is.
PACKAGE: Final = "__init__.py"
# Methods of a mapping that change it.
CHANGES: Final = ("update", "setdefault", "pop", "popitem", "clear", "__setitem__", "__delitem__")
# Calls and methods that hand back the model which they are given, or of which they are; `cast` gets it behind its type.
HANDS_BACK: Final = ("prepare_model_for_kbit_training", "get_peft_model", "cast")
LEAVES_MODEL: Final = ("to", "cuda", "eval", "train", "bfloat16", "half", "requires_grad_")
# Stands for attributes of an object of which it is not said which ones are set.
ANY_ATTRIBUTE: Final = "**"

NOTEBOOK: Final = ".ipynb"
# What a notebook has in place of a statement of Python's: commands of a shell, and magics, also as a value.
MAGIC: Final = re.compile(r"^(\s*)(?:[\w, ]+=\s*)?[%!].*$")
# Magics of a whole cell that is Python all the same.
PLAIN_CELLS: Final = ("%%capture", "%%time")
SHELL_CELLS: Final = ("%%bash", "%%sh", "%%shell", "%%script bash")
# By how much the numbers of lines of one cell differ from those of the next.
LINES_OF_A_CELL: Final = 10_000
LONGEST_VALUE: Final = 60

# A function of a program.
Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_beside(path: Path, name: str) -> Path | None:
    """Return the file of a module that a program imports, beside it or in a folder above; None where it is not there."""
    inner = Path(name.replace(".", "/"))
    above = list(path.resolve().parents)[:FOLDERS]
    folders = [*above, *(each / SOURCES for each in above)]
    files = (folder / each for folder in folders for each in (f"{inner}.py", inner / PACKAGE))
    return next((file for file in files if name and _is_read(file)), None)


def _is_read(path: Path) -> bool:
    """Tell whether a file is there, and no larger than what is read."""
    try:
        return path.is_file() and path.stat().st_size <= MOST_BYTES
    except (OSError, ValueError):
        return False


def is_program_with(pattern: re.Pattern[str], path: Path) -> bool:
    """Tell whether a file is a Python program, of no more than what is read, in whose text a pattern is found."""
    try:
        is_read = path.suffix == ".py" and _is_read(path)
        return is_read and pattern.search(text_of(path, "replace")) is not None
    except (OSError, ValueError):
        return False


# What makes an object anew with other attributes, and what `setattr` is given.
REPLACES: Final = ("dataclasses.replace", "replace")
SETATTR: Final = 3


def set_in(node: ast.AST) -> Iterator[tuple[ast.expr, ast.AST]]:
    """Yield what a statement, or an item of `with`, sets: a target and what it is set to."""
    attributes = list(_attributes_set(node))
    if attributes:
        yield from attributes
    elif isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        if not isinstance(node.op, ast.BitOr):  # which changes a mapping
            yield node.target, node
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield node.target, node  # one value after another
    elif isinstance(node, ast.NamedExpr):
        yield node.target, node.value
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def _attributes_set(node: ast.AST) -> Iterator[tuple[ast.expr, ast.AST]]:
    """Yield the attributes that are set otherwise than by `x.name = value`.

    By `setattr(x, "name", value)`, `x = dataclasses.replace(x, name=value)`, and `vars(x)` or `x.__dict__` as mappings.
    Those whose name is no constant stand for any, with the call that sets them.
    """
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        target = node.targets[0]
        holder = attributes_held_by(target.value)
        if holder is not None:
            yield _attribute(holder, target.slice, node.value), node.value
        return
    call = node.value if isinstance(node, ast.Expr | ast.Assign) else None
    if not isinstance(call, ast.Call):
        return
    viewed = attributes_held_by(call.func.value) if isinstance(call.func, ast.Attribute) else None
    if viewed is not None and isinstance(call.func, ast.Attribute) and call.func.attr == "update":
        for key, value in _given_as_items(call):
            yield _attribute(viewed, key, value), value
        return
    yield from _attributes_of_call(node, call)


def _attributes_of_call(node: ast.AST, call: ast.Call) -> Iterator[tuple[ast.expr, ast.AST]]:
    """Yield the attributes that `setattr` and `dataclasses.replace` set."""
    if not call.args or not isinstance(call.args[0], ast.Name):
        return
    holder, called = call.args[0], dotted(call.func)
    if isinstance(node, ast.Expr) and called == "setattr" and len(call.args) == SETATTR:
        named = isinstance(call.args[1], ast.Constant)
        value = call.args[2] if named else call
        yield _attribute(holder, call.args[1], value), value
        return
    given = [word.arg for word in call.keywords]
    targets = node.targets if isinstance(node, ast.Assign) else []
    itself = [isinstance(each, ast.Name) and each.id == holder.id for each in targets]
    if itself == [True] and called in REPLACES and None not in given:
        for word in call.keywords:
            yield ast.Attribute(value=holder, attr=str(word.arg)), word.value


def _attribute(holder: ast.expr, name: ast.expr | None, value: ast.expr) -> ast.expr:
    """Return an attribute of an object by its name; any of them where that is no constant."""
    text = name.value if isinstance(name, ast.Constant) else None
    named = text if isinstance(text, str) else ANY_ATTRIBUTE
    return ast.copy_location(ast.Attribute(value=holder, attr=named), value)


def _given_as_items(call: ast.Call) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    """Yield the keys and values that `update` is given, and None with what may hold any."""
    for each in call.args:
        if isinstance(each, ast.Dict):
            yield from zip(each.keys, each.values, strict=True)
        else:
            yield None, each
    for word in call.keywords:
        yield (None if word.arg is None else ast.Constant(value=word.arg)), word.value


def attributes_held_by(node: ast.AST) -> ast.expr | None:
    """Return the object whose attributes an expression holds as a mapping: `vars(x)` or `x.__dict__`."""
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        return node.value
    if isinstance(node, ast.Call) and dotted(node.func) == "vars" and len(node.args) == 1:
        return node.args[0]
    return None


def root_of(node: ast.AST) -> str | None:
    """Return the name whose value, or a part of it, an expression stands for."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


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
        text = text_of(path)
        return _tree_of_notebook(text) if path.suffix == NOTEBOOK else ast.parse(text)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise FileError(str(path) if line is None else f"{path}:{line}", "is not Python") from None


def handed_back(node: ast.AST) -> ast.AST:
    """Return the expression of the model that calls hand back which they are given: adapters and devices leave it what it is."""
    while isinstance(node, ast.Call):
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in LEAVES_MODEL and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif dotted(node.func).rpartition(".")[2] in HANDS_BACK and node.args:
            node = node.args[-1] if dotted(node.func).endswith("cast") else node.args[0]
        else:
            break
    return node


def fits(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a dotted name, or its end, fits one of some patterns."""
    parts = name.split(".")
    ends = [".".join(parts[at:]) for at in range(len(parts))]
    return bool(name) and any(fnmatchcase(end, each) for end in ends for each in patterns)


def class_fields(node: ast.ClassDef) -> dict[str, ast.expr | None]:
    """Return what a class sets in its body, by name: None where a field has a type alone."""
    found = dict[str, ast.expr | None]()
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found[each.target.id] = each.value
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            found[each.targets[0].id] = each.value
    return found


def default_of_field(value: ast.expr | None) -> ast.expr | None:
    """Return the default of a data class's field; None where it has none, or one that is made anew."""
    if not isinstance(value, ast.Call):
        return value
    if dotted(value.func).rpartition(".")[2] not in {"field", "Field"}:
        return value
    named = {word.arg: word.value for word in value.keywords}
    factory = named.get("default_factory")
    made = factory.body if isinstance(factory, ast.Lambda) else None
    return named.get("default", made)


def decorators_of(function: Function) -> Iterator[tuple[str, ast.Call | None]]:
    """Yield the names of what is put around a function, each with its call where it is one."""
    for each in function.decorator_list:
        call = each if isinstance(each, ast.Call) else None
        yield dotted(each if call is None else call.func), call


def option_names(call: ast.Call) -> list[str]:
    """Return the names by which a program knows an option of argparse or click: its long flags, and what it is stored as."""
    words = [each.value for each in call.args if isinstance(each, ast.Constant)]
    long = [str(word).removeprefix("--") for word in words if str(word).startswith("--")]
    stored = next((word.value for word in call.keywords if word.arg == "dest"), None)
    also = [str(stored.value)] if isinstance(stored, ast.Constant) else []
    return [name.replace("-", "_") for name in (*long, *also)]


def _tree_of_notebook(text: str) -> ast.Module:
    """Return the cells of a notebook that hold Python as one program; lines count anew in each cell.

    Raises:
        ValueError: It is no notebook.
    """
    body = list[ast.stmt]()
    for number, source in _cells_of(text):
        if source.startswith("%%") and not source.startswith(PLAIN_CELLS):
            continue
        lines = (MAGIC.sub(r"\1pass", line) for line in source.splitlines())
        try:
            tree = ast.parse("\n".join(lines))
        except SyntaxError:
            continue
        body += ast.increment_lineno(tree, number * LINES_OF_A_CELL).body
    return ast.Module(body=body, type_ignores=[])


def _cells_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the cells of a notebook that hold code, each with its number.

    Raises:
        ValueError: It is no notebook.
    """
    held = json.loads(text)
    cells = held.get("cells") if isinstance(held, dict) else None
    if not isinstance(cells, list):
        raise ValueError("a notebook has cells")
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source", "")
            yield number, "".join(source) if isinstance(source, list) else str(source)


def commands_of_notebook(text: str) -> str:
    """Return what a notebook gives to a shell, as a script: lines behind `!`, and whole cells.

    Raises:
        ValueError: It is no notebook.
    """
    lines = list[str]()
    for _, source in _cells_of(text):
        first, *rest = source.splitlines() or [""]
        if first.startswith(SHELL_CELLS):
            lines += rest
            continue
        continued = False
        for line in (first, *rest):
            if continued or line.lstrip().startswith("!"):
                lines.append(line if continued else line.lstrip()[1:])
                continued = line.rstrip().endswith("\\")
    return "\n".join(lines) + "\n"


def place_in(path: Path, line: int) -> tuple[str, int]:
    """Return where a line of a program stands, for people, and its number there."""
    if path.suffix != NOTEBOOK:
        return f"{path}:{line}", line
    cell, inside = divmod(line, LINES_OF_A_CELL)
    return f"{path}: cell {cell}", inside


def shown(value: object) -> str:
    """Return a value as a message shows it, cut where it is long."""
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


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


def defaults_of(node: Function | ast.Lambda) -> dict[str, ast.expr | None]:
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


def reset_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a part of a program sets, or of which it sets an item or an attribute."""
    for each in ast.walk(node):
        held: ast.expr | None = None
        if isinstance(each, ast.Name | ast.Subscript | ast.Attribute) and isinstance(
            each.ctx, ast.Store | ast.Del
        ):
            held = each
        while isinstance(held, ast.Subscript | ast.Attribute):
            held = held.value
        if isinstance(held, ast.Name):
            yield held.id


def is_method(function: Function) -> bool:
    """Tell whether a function's first parameter is an object or a class, as methods name it."""
    return bool({"self", "cls"} & set(defaults_of(function)))


def changes_in(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names of mappings that a statement or call changes by entries or by a method, with what changes them."""
    held: ast.expr | None = None
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
        items = (each for each in targets if isinstance(each, ast.Subscript | ast.Attribute))
        held = next((each.value for each in items), None)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr) and held is None:
            held = node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        held = node.func.value if node.func.attr in CHANGES else None
    name = None if held is None else root_of(held)
    if name is not None:
        yield name, node


@dataclass(frozen=True, slots=True)
class Place:
    """Say where a part of a program stands.

    Attributes:
        function: The innermost function around it, by identity; 0 for none.
        holder: The class around it, by name; empty for none.
        repeats: Whether it is in a loop.
    """

    function: int = 0
    holder: str = ""
    repeats: bool = False


TOP: Final = Place()


def begins_with(flag: str) -> Callable[[str], bool]:
    """Return what tells whether an option begins as a flag does."""
    return lambda option: option.startswith(flag.replace("-", "_"))


def written_alike(one: ast.expr | None, other: ast.expr | None) -> bool:
    """Tell whether two expressions are written alike."""
    return one is not None and other is not None and ast.dump(one) == ast.dump(other)


def parts_set(
    target: ast.expr, value: ast.AST, is_meant: Callable[[str], bool]
) -> Iterator[tuple[ast.expr, ast.AST]]:
    """Yield what a statement sets, each with its part of the value; what a call that means something makes is not parted."""
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.expr):
        yield target, value
    elif isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
        yield from zip(target.elts, value.elts, strict=True)
    elif isinstance(value, ast.Call) and is_meant(dotted(value.func)):
        yield from ((each, value) for each in target.elts)
    else:
        for place, each in enumerate(target.elts):
            part = ast.Subscript(value=value, slice=ast.Constant(value=place), ctx=ast.Load())
            yield each, ast.copy_location(part, value)


def place_inside(node: ast.AST, place: Place) -> Place:
    """Return where parts of a node stand."""
    if isinstance(node, Function):
        return Place(function=id(node), holder=place.holder)
    if isinstance(node, ast.ClassDef):
        return Place(function=place.function, holder=node.name)
    if isinstance(node, ast.For | ast.AsyncFor | ast.While):
        return Place(function=place.function, holder=place.holder, repeats=True)
    return place


def with_self(call: ast.Call) -> ast.Call:
    """Return a call that makes an object as its first method is called: with the object in front."""
    return ast.Call(func=call.func, args=[ast.Name(id="self"), *call.args], keywords=call.keywords)
