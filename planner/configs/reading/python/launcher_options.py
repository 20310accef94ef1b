"""Options of a Python program that is followed: what a command line, and variables, give them."""

import ast
from abc import ABC
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError
from rlplan.planner.configs.reading.given import scalar
from rlplan.planner.configs.reading.python.launcher_values import CommandLine, LauncherValues, Made
from rlplan.planner.configs.reading.python.options import parsed
from rlplan.planner.configs.reading.python.syntax import option_names
from rlplan.planner.configs.reading.python.values import (
    NO_CONSTANT,
    NOT_GIVEN,
    Unknown,
    UnknownValueError,
)

OF_CONFIG: Final[Mapping[str, Any]] = {
    "cuda_core_dump": False, "num_nodes": 1, "extra_env_vars": "", "output_dir": "shared_data",
}  # fmt: skip
# What stands before a field's name in a variable that gives it a value.
PREFIXES: Final = ("MILES_SCRIPT_", "SLIME_SCRIPT_")
# Options that are named though they are not given.
MOST_OPTIONS: Final = 8


class LauncherOptions(LauncherValues, ABC):
    """Give a program its options.

    Attributes:
        path: The program.
        words: What stands behind it.
        defaults: Options that are not given, with what they are taken to be.
    """

    path: Path
    words: list[str]
    defaults: dict[str, Any]

    def _take(self, options: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Note options that are not given and may say what is started: words, numbers and switches, no paths."""
        for name, value in options.items():
            plain = isinstance(value, int | float) or (
                isinstance(value, str) and value.isprintable()
            )
            if (
                plain
                and name not in given
                and (name == "num_nodes" or name not in OF_CONFIG)
                and "/" not in str(value)
                and value != ""
            ):
                self.defaults[name] = value

    def taken(self) -> str:
        """Return what is to be said of options that are not given; empty where there are none."""
        named = [f"{name}={value}" for name, value in self.defaults.items()]
        more = ", ..." if len(named) > MOST_OPTIONS else ""
        return ", ".join(named[:MOST_OPTIONS]) + more

    def _options(self, names: Mapping[str, object]) -> dict[str, Any]:
        """Return the options that are given, by the names of what they set.

        Raises:
            FileError: There is no such option.
        """
        found = {
            name: scalar(self.environment[f"{prefix}{name.upper()}"])
            for name in names
            for prefix in PREFIXES
            if f"{prefix}{name.upper()}" in self.environment
        }
        words = list(self.words)
        while words:
            word, equals, value = words.pop(0).partition("=")
            name = word.removeprefix("--").replace("-", "_")
            turned_off = name.removeprefix("no_") if name not in names else name
            if not word.startswith("--") or turned_off not in names:
                raise FileError(str(self.path), f"has no option {word}", allowed=", ".join(names))
            if equals:
                found[turned_off] = scalar(value)
            elif turned_off != name:
                found[turned_off] = False
            elif words and (" " in words[0] or not words[0].startswith("--")):
                found[turned_off] = scalar(words.pop(0))
            else:
                found[turned_off] = True
        return found

    def _call_typer(self, _node: ast.Call, _depth: int) -> CommandLine:
        return CommandLine({})

    _call_argumentparser = _call_typer

    def _call_add_argument(self, node: ast.Call, depth: int) -> None:
        held = self.entry(node.func.value, depth) if isinstance(node.func, ast.Attribute) else None
        names = option_names(node)
        if isinstance(held, CommandLine) and names:
            held.options[names[-1]] = node

    def _call_parse_args(self, node: ast.Call, depth: int) -> Made:
        held = self.value(node.func.value, depth) if isinstance(node.func, ast.Attribute) else None
        if not isinstance(held, CommandLine):
            raise UnknownValueError(NO_CONSTANT)
        fields = dict[str, Any]()
        for name, call in held.options.items():
            named = {word.arg: word.value for word in call.keywords}
            switch, default, needed = map(named.get, ("action", "default", "required"))
            is_switch = isinstance(switch, ast.Constant) and str(switch.value).startswith("store_")
            if isinstance(needed, ast.Constant) and needed.value is True:
                fields[name] = Unknown(f"is what --{name} says, {NOT_GIVEN}", name)
                continue
            fields[name] = is_switch and switch.value == "store_false"  # type: ignore[union-attr]
            if default is not None or not is_switch:
                fields[name] = None if default is None else self.whole(default)
        given = self._options(fields)
        for name in given:
            try:
                given[name] = parsed(held.options[name], given[name])
            except UnknownValueError as error:
                given[name] = Unknown(str(error), name)
        self._take(fields, given)
        return Made(None, fields | given)
