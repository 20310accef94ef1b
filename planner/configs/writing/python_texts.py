"""The text of a Python program with one key's value: a literal of a call or a mapping, in the place that its syntax says.

Comments, blanks and all other words stay: only the literal's own characters are replaced, or a keyword is put behind the last of a call.
"""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from rlplan.planner.configs.reading.sheet import LaunchSheet

# Of places that are alike so many are tried.
MOST_PLACES: Final = 6
# Behind the last word of a call: its comma, and a comment up to the end of the line.
BEHIND_THE_LAST: Final = re.compile(rb",?([ \t]*(?:#[^\n]*)?)(?=\n)")


def in_python(
    text: str, launch: LaunchSheet, key: str, value: object, line: int | None
) -> Iterator[str]:
    """Yield a program's text in which a key has a value: in its place, or in a call that may give it; without it where the value is None.

    Args:
        launch: Whose calls give keys, and with which prefixes.
        line: Where the program says the key as it is, counted from 1; None where it does not.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    places = _Places(text)
    given = [
        each for prefix, name in _names(launch, key) for each in _given(tree, launch, prefix, name)
    ]
    given.sort(key=lambda each: each.lineno != line)
    for node in given[:MOST_PLACES]:
        if value is None:
            return
        if isinstance(node, ast.Name):
            yield from _constant(tree, places, node.id, value)
        yield places.replaced(node, value)
    if value is None or given:
        return
    for prefix, name in _names(launch, key):
        for call in _calls(tree, launch, prefix)[:MOST_PLACES]:
            yield from places.added(call, name, value)


def _names(launch: LaunchSheet, key: str) -> Iterator[tuple[str, str]]:
    """Yield the prefixes of calls by which a key may be given, with the keyword of each."""
    for prefix in dict.fromkeys(each.prefix for each in launch.calls.values()):
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and name.isidentifier():
            yield prefix, name


def _calls(tree: ast.AST, launch: LaunchSheet, prefix: str) -> list[ast.Call]:
    """Return the calls that give keys with a prefix, those that start a training first."""
    found = list[tuple[bool, ast.Call]]()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        callee = ast.unparse(node.func)
        last = callee.rpartition(".")[2]
        pattern = next(
            (each for each in launch.calls if fnmatchcase(callee, each) or fnmatchcase(last, each)),
            None,
        )
        if pattern is not None and launch.calls[pattern].prefix == prefix:
            found.append((pattern not in launch.starts, node))
    return [node for _, node in sorted(found, key=lambda each: (each[0], -each[1].lineno))]


def _given(tree: ast.AST, launch: LaunchSheet, prefix: str, name: str) -> Iterator[ast.expr]:
    """Yield what calls with a prefix, and mappings, give a keyword: literals, names and what else stands there."""
    for call in _calls(tree, launch, prefix):
        yield from (each.value for each in call.keywords if each.arg == name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    yield value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "dict":
            yield from (each.value for each in node.keywords if each.arg == name)


def _constant(tree: ast.Module, places: "_Places", name: str, value: object) -> Iterator[str]:
    """Yield a text in which a name that a module sets once, to a literal, has another one."""
    found = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id == name for each in node.targets)
    ]
    if len(found) == 1 and isinstance(found[0], ast.Constant):
        yield places.replaced(found[0], value)


class _Places:
    """Find in a text what its syntax tree names: lines from 1, columns in bytes."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line: int | None, column: int | None) -> int:
        """Return the byte at which a line's column stands."""
        assert line is not None, "nodes of a parsed text have places"
        assert column is not None, "and columns"
        return self.starts[line - 1] + column

    def replaced(self, node: ast.expr, value: object) -> str:
        """Return the text with a literal in a node's place."""
        start = self.at(node.lineno, node.col_offset)
        end = self.at(node.end_lineno, node.end_col_offset)
        return (self.data[:start] + repr(value).encode() + self.data[end:]).decode()

    def added(self, call: ast.Call, name: str, value: object) -> Iterator[str]:
        """Yield the text with a keyword more: behind the last of a call, in a line of its own where that has one."""
        word = f"{name}={value!r}".encode()
        last = max(
            (*call.args, *(each.value for each in call.keywords)),
            key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0),
            default=None,
        )
        if last is None:
            end = self.at(call.end_lineno, call.end_col_offset) - 1
            yield (self.data[:end] + word + self.data[end:]).decode()
            return
        end = self.at(last.end_lineno, last.end_col_offset)
        first = min(each.lineno for each in (*call.args, *(each.value for each in call.keywords)))
        if first == call.lineno:
            yield (self.data[:end] + b", " + word + self.data[end:]).decode()
            return
        start = self.starts[last.lineno - 1]
        line = self.data[start:end]
        indent = line[: len(line) - len(line.lstrip())]
        behind = BEHIND_THE_LAST.match(self.data, end)
        comment = b"" if behind is None else behind[1]
        after = end if behind is None else behind.end()
        comma = b"" if behind is None else b","  # in a line of its own, as the others have it
        new = b"," + comment + b"\n" + indent + word + comma
        yield (self.data[:end] + new + self.data[after:]).decode()
