"""Which frameworks there are, and which parts of each are known: what stands in its two folders.

`profiles/frameworks/NAME/` has its data, `planner/frameworks/NAME/` its code. Listing them imports no framework.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final, Literal, get_args

from rlplan.errors import MissingPartError, UnknownNameError
from rlplan.profiles.frameworks import (
    DATA_PARTS,
    DataPart,
    data_files,
    framework_of_sheet,
    frameworks_with_data,
)
from rlplan.profiles.sheets import canonical_name

CodePart = Literal["reading", "writing", "rules"]
Part = DataPart | CodePart
CODE_PARTS: Final[tuple[CodePart, ...]] = get_args(CodePart)
PACKAGE: Final = "rlplan.planner.frameworks"
# Versions stand behind the names of framework sheets.
VERSION: Final = re.compile(r"-\d+(\.\d+)*$")

# What is not done for a framework without a part.
ABSENT: Final[Mapping[Part, str]] = {
    "steps": "no sheet of a step of {} is known: its steps are not forecast",
    "sync": "no weight sync of {} is known: no way of its own is forecast",
    "log": "no log of {} is known: its logs are not read",
    "keys": "no keys of {} are known: its configurations are neither read nor written",
    "reading": "no reading of {} is known: its configurations are not imported",
    "writing": "no writing of {} is known: plans are not exported to it",
    "rules": "no rules of {} are known: settings are not checked",
}


def frameworks_with(*parts: Part) -> tuple[str, ...]:
    """Return the names of the frameworks that have all of some parts, sorted; without parts those of all."""
    by_part = _by_part()
    found = frozenset[str]().union(*by_part.values())
    return tuple(sorted(found.intersection(*(by_part[part] for part in parts))))


def framework_of_steps(steps: str) -> str:
    """Return the framework whose steps a sheet describes: `nemo-rl` of `nemo-rl-megatron-0.3`; the sheet's own name where none has it."""
    name = canonical_name("frameworks", steps)
    return framework_of_sheet("steps", name) or name


def names_in_words(*parts: Part) -> str:
    """Return the names of the frameworks that have all of some parts, as help texts list them."""
    *names, last = frameworks_with(*parts) or ("none yet",)
    return f"{', '.join(names)} or {last}" if names else last


def steps_in_words() -> str:
    """Return the names of what steps are forecast of, by trainer; earlier versions are left out."""
    return ", ".join(name for name in sorted(data_files("steps")) if not VERSION.search(name))


def has(name: str, part: Part) -> bool:
    """Tell whether a part of a framework is known."""
    return name in _by_part()[part]


def absent(name: str, part: Part) -> str:
    """Return, in words, what is not done for a framework of which a part is not known."""
    return ABSENT[part].format(name)


def check_parts(name: str, *parts: Part) -> None:
    """Refuse a framework of which a part is not known.

    Raises:
        UnknownNameError: No such framework is known.
        MissingPartError: It has no such part.
    """
    if name not in frameworks_with():
        raise UnknownNameError("framework", name, frameworks_with(*parts))
    for part in parts:
        if not has(name, part):
            raise MissingPartError(absent(name, part), frameworks_with(*parts))


def load_part(name: str, part: CodePart) -> ModuleType:
    """Return a part of a framework's code.

    Raises:
        UnknownNameError: No such framework is known.
        MissingPartError: It has no such part.
    """
    check_parts(name, part)
    return import_module(f"{PACKAGE}.{name.replace('-', '_')}.{part}")


def _by_part() -> Mapping[Part, frozenset[str]]:
    """Return the names of the frameworks that have a part, by part."""
    found: dict[Part, frozenset[str]] = {
        part: frozenset(frameworks_with_data(part)) for part in DATA_PARTS
    }
    return {**found, **_with_code(tuple(import_module(PACKAGE).__path__))}


@cache
def _with_code(folders: tuple[str, ...]) -> Mapping[Part, frozenset[str]]:
    """Return the names of the frameworks that have a part of code, by part; folders are listed once."""
    packages = [each for home in folders for each in Path(home).iterdir() if each.is_dir()]
    return {
        part: frozenset(
            each.name.replace("_", "-")
            for each in packages
            if (each / f"{part}.py").is_file() or (each / part / "__init__.py").is_file()
        )
        for part in CODE_PARTS
    }
