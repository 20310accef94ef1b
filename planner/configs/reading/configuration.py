"""Read configurations: scripts, YAML files with what they inherit from, and command lines."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from planner.configs.reading.composed import (
    CONFIG_FLAGS,
    composed,
    composed_yaml,
    config_option,
)
from planner.configs.reading.given import Flat, Given, place_of, scalar
from planner.configs.reading.inherited import read_inherited
from planner.configs.reading.settings import Settings, fits_any
from planner.configs.reading.sheet import ConfigSheet, load_config_sheet
from planner.configs.shell.commands import Command, Evaluated
from planner.configs.shell.script import evaluate
from planner.configs.shell.text import Gap, Text
from rlplan.errors import FileError, unreadable

YAML_SUFFIXES = (".yaml", ".yml")
# `key=value`, with what hydra puts before a key that is new, or `group@package=choice`.
OVERRIDE = re.compile(r"^(\+\+|\+|~)?([\w@/.\-\[\]]+)=(.*)$", re.DOTALL)
# What starts another script, and how many start one another at most.
STARTERS = ("exec", "bash", "/bin/bash", "sh", "/bin/sh")
MOST_SCRIPTS = 4


def read_configuration(
    sheet: ConfigSheet,
    words: Iterable[str],
    environment: Mapping[str, str],
    *,
    evaluated: Evaluated | None = None,
) -> Settings:
    """Return the settings that a file and what follows it, or a command line, amount to.

    Args:
        words: A script or YAML file and its arguments, or the arguments alone.
        environment: Variables of a script.
        evaluated: What a script does, if that is known already.

    Raises:
        FileError: The file cannot be read, starts no RL training, or stops before.
    """
    given = list(words)
    path = Path(given[0]) if given else Path()
    if not given:
        raise FileError(
            "FILE|ARGS", "is missing", allowed="a script, a YAML file, or a command line"
        )
    if path.suffix in YAML_SUFFIXES:
        if not path.is_file():
            raise FileError(str(path), "no such file")
        arguments = [Text(word) for word in given[1:]]
        flat = _arguments(sheet, arguments, str(path))
        if sheet.own_files:
            return Settings(sheet, composed_yaml(sheet, path, arguments, flat), str(path))
        return Settings(sheet, read_inherited(path, flat), str(path))
    if path.is_file():
        return _of_script(sheet, path, given[1:], environment, evaluated)
    if path.suffix == ".sh":
        raise FileError(str(path), "no such file")
    command = Command(line=0, words=tuple(Text(word) for word in given))
    file = "the command line"
    bare = Settings(sheet, _arguments(sheet, list(command.words), file), file)
    return _of_command(sheet, command, file, Path(), ()) or bare


def starts_of(framework: str, words: Iterable[str]) -> bool:
    """Tell whether a script's text, or a command line, names what starts a framework's training."""
    sheet, given = load_config_sheet(framework), list(words)
    path = Path(given[0])
    text = script_text(path).split() if path.is_file() else given
    return any(fits_any(word.strip("\"'"), sheet.starts) for word in text)


def script_text(path: Path) -> str:
    """Return a script's text.

    Raises:
        FileError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None


def _of_script(
    sheet: ConfigSheet,
    path: Path,
    arguments: Sequence[str | Text],
    environment: Mapping[str, str | Text],
    evaluated: Evaluated | None,
) -> Settings:
    found = evaluated or _evaluated(sheet, path, arguments, environment)
    settings = _of_commands(sheet, path, found, environment, 1)
    if settings is not None:
        return settings
    problem = f"starts no RL training of {sheet.title}"
    if found.gaps:
        problem += f"; not evaluated: {found.gaps[0]}"
    raise FileError(str(path), problem, allowed=f"a script that starts {', '.join(sheet.starts)}")


def _of_commands(
    sheet: ConfigSheet,
    path: Path,
    found: Evaluated,
    environment: Mapping[str, str | Text],
    scripts: int,
) -> Settings | None:
    """Return what a script starts training with, by itself or by another script; None where it starts none."""
    gaps = tuple(found.gaps)
    for command in reversed(found.commands):
        settings = _of_command(sheet, command, str(path), path.parent, gaps)
        if settings is not None:
            return settings
    if found.refusal is not None:
        line, message = found.refusal
        raise FileError(f"{path}:{line}", f"the script stops here: {message}")
    for command in reversed(found.commands if scripts < MOST_SCRIPTS else ()):
        other, arguments = _started_script(command, path.parent)
        if other is None:
            continue
        given = {**environment, **found.exported, **dict(command.variables)}
        inner = _evaluated(sheet, other, arguments, given)
        settings = _of_commands(sheet, other, inner, given, scripts + 1)
        if settings is not None:
            return settings
    return None


def _evaluated(
    sheet: ConfigSheet,
    path: Path,
    arguments: Sequence[str | Text],
    environment: Mapping[str, str | Text],
) -> Evaluated:
    """Return what a script would do, for its start of training."""

    def starts(command: Command) -> bool:
        return any(fits_any(word.value, sheet.starts) for word in _spread(command.words))

    return evaluate(script_text(path), arguments, environment, sheet.probes, starts)


def _started_script(command: Command, folder: Path) -> tuple[Path | None, list[Text]]:
    """Return the script that a command of another one starts, where it is at hand, and its arguments.

    Beside the one that starts it is looked for what stands in a folder that is not known.
    """
    words = list(command.words)
    while words and (words[0].value in STARTERS or words[0].value.startswith("-")):
        del words[0]
    if not words or not words[0].value.endswith(".sh"):
        return None, []
    named = Path(words[0].value)
    at_hand = (each for each in (named, folder / named, folder / named.name) if each.is_file())
    return next(at_hand, None), [replace(word, line=0) for word in words[1:]]


def _of_command(
    sheet: ConfigSheet, command: Command, file: str, folder: Path, gaps: tuple[Gap, ...]
) -> Settings | None:
    """Return what a command starts with; None where it starts no training."""
    for place, word in enumerate(_spread(command.words)):
        for pattern, what in sheet.refused_starts.items():
            if fnmatchcase(word.value, pattern):
                raise FileError(
                    f"{file}:{command.line}" if command.line else file,
                    f"{what}; rlplan reads {sheet.title}'s training with RL",
                    value=word.value,
                    allowed=", ".join(sheet.starts),
                )
        if fits_any(word.value, sheet.starts):
            rest = list(_spread(command.words))[place + 1 :]
            flat = _arguments(sheet, rest, file)
            if sheet.own_files:
                flat, doubts = composed(sheet, word.value, rest, folder, flat)
                return Settings(sheet, flat, file, word.value, gaps, doubts=doubts)
            return Settings(sheet, _over_file(rest, folder, flat), file, word.value, gaps)
    return None


def _spread(words: Iterable[Text]) -> Iterator[Text]:
    """Yield words; a command in quotes, as `bash -c` gets it, is spread out."""
    for word in words:
        if " -m " in word.value or ".py " in word.value:
            yield from (_part(word, part) for part in word.value.split())
        else:
            yield word


def _part(word: Text, part: str) -> Text:
    """Return a part of a word, with the gaps that stand in it."""
    gaps = tuple(gap for gap in word.gaps if gap.source in part)
    return replace(word, value=part, gaps=gaps)


def _over_file(words: list[Text], folder: Path, arguments: Flat) -> Flat:
    """Return a command line's arguments over the values of the YAML file that it names."""
    named = config_option(words, "--config")
    if named is None:
        return arguments
    for base in (Path(), folder, *folder.resolve().parents):
        for path in (base / named.value, base / Path(named.value).name):
            if path.is_file():
                return read_inherited(path, arguments)
    raise FileError(named.value, "no such file", field="--config")


def _arguments(sheet: ConfigSheet, words: list[Text], file: str) -> Flat:
    given = _flags(words, file) if sheet.arguments == "flags" else _overrides(words, file)
    return {
        sheet.older.get(key, key): replace(each, older=key) if key in sheet.older else each
        for key, each in given.items()
    }


def _overrides(words: list[Text], file: str) -> Flat:
    """Return the values of hydra's overrides."""
    flat: Flat = {}
    flag = ""
    for word in words:
        if flag or word.value in CONFIG_FLAGS:
            if flag and flag != "--config":
                flat[flag] = _given(word, word.value, file)
            flag = "" if flag else CONFIG_FLAGS[word.value]
            continue
        found = OVERRIDE.match(word.value)
        if word.value.startswith("-"):
            name, _, value = word.value.partition("=")
            long = CONFIG_FLAGS.get(name, f"--{name.lstrip('-')}")
            flat[long] = _given(word, value or "true", file)
        elif found is None:
            if word.value.startswith("~"):
                flat.pop(word.value[1:], None)
            elif word.value.strip():
                flat[word.value] = _given(word, "", file)
        elif found[1] == "~":
            flat.pop(found[2], None)
        else:
            flat[found[2]] = replace(_given(word, found[3], file), added=bool(found[1]))
    return flat


def _flags(words: list[Text], file: str) -> Flat:
    """Return the values of argparse's flags: one word, several, or none for a switch."""
    flat: Flat = {}
    name, values = "", list[Text]()

    def keep() -> None:
        if not name:
            return
        found = [scalar(word.value) for word in values]
        value = True if not found else found[0] if len(found) == 1 else found
        first = values[0] if values else None
        gaps = tuple(gap for word in values for gap in word.gaps)
        where = place_of(first or flag, file)
        flat[name] = Given(value=value, where=where, gaps=gaps)

    flag = Text("")
    for word in words:
        if word.value.startswith("--"):
            keep()
            head, equals, tail = word.value.removeprefix("--").partition("=")
            flag, name, values = word, head, [word.with_value(tail)] if equals else []
        elif word.value.strip() and word.value != "\\":
            values.append(word)
    keep()
    return flat


def _given(word: Text, value: str, file: str) -> Given:
    return Given(value=scalar(value), where=place_of(word, file), gaps=word.gaps)
