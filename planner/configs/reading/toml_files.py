"""Read TOML files and command lines that lay flags over them: `rl @ rl.toml --trainer @ train.toml --max-steps 50`."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from rlplan.errors import FileError, unreadable
from rlplan.files.decoding import text_of
from rlplan.planner.configs.reading.given import Flat, GivenValue, flags_of
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.configs.shell.commands import above
from rlplan.planner.configs.shell.text import Text

TOML: Final = ".toml"
# What stands before a file's name in a command line.
FILE: Final = "@"
# How TOML, which has no null, writes nothing.
NOTHING: Final = ("None", "null")


def toml_keys(
    sheet: ConfigSheet, words: Sequence[Text], folder: Path, file: str, program: str = ""
) -> Flat:
    """Return the keys of the files that words name, later ones over earlier ones, and of flags over all.

    Args:
        folder: Where files are looked for beside the one where one is.
        program: What is started with them: the name of a part reads files of that part.

    Raises:
        FileError: A file is missing or broken.
    """
    parts = {prefix.removesuffix("."): prefix for prefix in sheet.parts}
    usual = parts.get(program, "")
    flat, flags = Flat(), list[Text]()
    at, prefix = 0, usual
    while at < len(words):
        word = words[at].value
        behind = words[at + 1].value if at + 1 < len(words) else ""
        if word.startswith("--") and behind == FILE:
            prefix, at = f"{word.removeprefix('--')}.", at + 1
        elif word == FILE and behind:
            flat |= _of_file(sheet, behind, folder, prefix)
            prefix, at = usual, at + 2
        elif word.endswith(TOML) and not flags:
            flat |= _of_file(sheet, word, folder, prefix)
            at += 1
        else:
            flags.append(words[at])
            at += 1
    over = flags_of(flags, file)
    return with_flags(flat, {f"{usual}{key.replace('-', '_')}": each for key, each in over.items()})


def parts_beside(sheet: ConfigSheet, words: Sequence[str]) -> Sequence[Path]:
    """Return the files of the other parts that stand beside one part's file, where that is all that words name.

    A part of which several files stand there, or none, has none.
    """
    path = Path(words[0]) if len(words) == 1 else Path()
    own = "" if not (is_toml(path) and path.is_file()) else _prefix_of(sheet, path, toml_of(path))
    if not own:
        return ()
    near = sorted(each for each in path.parent.iterdir() if is_toml(each))
    by_part = (
        [each for each in near if _part_of(sheet, each.name) == part] for part in sheet.parts
    )
    others = (files for part, files in zip(sheet.parts, by_part, strict=True) if part != own)
    return tuple(files[0] for files in others if len(files) == 1)


def part_notes(sheet: ConfigSheet, words: Sequence[str]) -> tuple[str, ...]:
    """Return a note of the files of other parts that are read with one part's; none where none are."""
    beside = parts_beside(sheet, words)
    names = " and ".join(each.name for each in beside)
    verb = "is" if len(beside) == 1 else "are"
    return (f"{names} beside {Path(words[0]).name} {verb} read with it",) if beside else ()


def part_keys(sheet: ConfigSheet, words: Sequence[str], file: str) -> Flat:
    """Return the keys of files that are named themselves, with those of the other parts' files beside the one of a part."""
    named = [*words, *map(str, parts_beside(sheet, words))]
    return toml_keys(sheet, list(map(Text, named)), Path(words[0]).parent, file)


def _prefix_of(sheet: ConfigSheet, path: Path, flat: Flat) -> str:
    """Return the prefix of the part whose own file one is, by its name; empty for one of the whole, or of none."""
    wholes = {each.removesuffix(".") for each in sheet.parts}
    whole = any(key.partition(".")[0] in wholes for key in flat)
    return "" if whole else _part_of(sheet, path.name)


def with_flags(flat: Flat, flags: Flat) -> Flat:
    """Return keys with those of flags laid over them, each of which takes the place of a whole table."""
    for key in flags:
        flat = {name: each for name, each in flat.items() if not name.startswith(f"{key}.")}
    return {**flat, **{key: _read(given) for key, given in flags.items()}}


def is_toml(path: Path) -> bool:
    """Tell whether a path is that of a TOML file."""
    return path.suffix == TOML


def toml_of(path: Path) -> Flat:
    """Return a file's keys: tables by dots, tables of a list by their numbers.

    Raises:
        FileError: It cannot be read, or is no TOML.
    """
    try:
        data = tomllib.loads(text_of(path))
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FileError(str(path), f"is not TOML: {error}") from None
    rows = (each for name, value in data.items() for each in _leaves(name, value))
    return {key: _read(GivenValue(value=value, where=str(path))) for key, value in rows}


def _leaves(key: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        for number, each in enumerate(value):
            yield from _leaves(f"{key}.{number}", each)
    else:
        yield key, value


def _read(given: GivenValue) -> GivenValue:
    """Return a value; nothing where TOML writes that in words."""
    none = isinstance(given.value, str) and given.value in NOTHING
    return replace(given, value=None) if none else given


def _of_file(sheet: ConfigSheet, name: str, folder: Path, prefix: str) -> Flat:
    """Return a file's keys as those of the whole: a part's own file has no such prefix, and is told by its name."""
    bases = (Path(), folder, *above(folder))
    tries = [base / name for base in bases] + [folder / Path(name).name]
    path = next((each for each in tries if each.is_file()), None)
    if path is None:
        raise FileError(name, "no such file")
    flat = toml_of(path)
    prefix = prefix or _prefix_of(sheet, path, flat)
    return {f"{prefix}{key}": given for key, given in flat.items()}


def _part_of(sheet: ConfigSheet, name: str) -> str:
    """Return the prefix of the part whose files are called so; empty where none is."""
    for prefix, patterns in sheet.parts.items():
        if any(fnmatchcase(name.lower(), pattern) for pattern in patterns):
            return prefix
    return ""
