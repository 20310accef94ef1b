"""Read configurations: scripts, YAML files with what they inherit from, and command lines."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from planner.configs.reading.given import Flat, Given, place_of, scalar
from planner.configs.reading.inherited import (
    DOTTED,
    INHERITS,
    HydraFiles,
    missing_file,
    read_composed,
    read_inherited,
)
from planner.configs.reading.settings import Settings, fits_any
from planner.configs.reading.sheet import ConfigSheet, load_config_sheet, spelled
from planner.configs.shell.commands import Command, Evaluated
from planner.configs.shell.script import evaluate
from planner.configs.shell.text import Gap, Text
from rlplan.errors import FileError, unreadable

YAML_SUFFIXES = (".yaml", ".yml")
# `key=value`, with what hydra puts before a key that is new, or `group@package=choice`.
OVERRIDE = re.compile(r"^(\+\+|\+|~)?([\w@/.\-\[\]]+)=(.*)$", re.DOTALL)
# Flags that name a configuration's file, by all that they are written as.
CONFIG_FLAGS = {
    "--config": "--config",
    "--config-name": "--config-name",
    "-cn": "--config-name",
    "--config-path": "--config-path",
    "-cp": "--config-path",
    "--config-dir": "--config-dir",
    "-cd": "--config-dir",
}
# Where hydra's decorator says that a module has its configurations.
DECORATED = re.compile(r"hydra\.main\(([^)]*)\)")
NAMED = r"""{}\s*=\s*f?["']([^"']+)["']"""
HYDRA_FOLDER = "config"
NOT_FOUND = "its file is not found, and its keys are not known"
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
        return _of_yaml(sheet, path, [Text(word) for word in given[1:]])
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
                flat, doubts = _composed(sheet, word.value, rest, folder, flat)
                return Settings(sheet, flat, file, word.value, gaps, doubts=doubts)
            return Settings(sheet, _over_file(rest, folder, flat), file, word.value, gaps)
    return None


def _of_yaml(sheet: ConfigSheet, path: Path, words: list[Text]) -> Settings:
    """Return the settings of a YAML file with arguments behind it."""
    flat = _arguments(sheet, words, str(path))
    if not sheet.own_files:
        return Settings(sheet, read_inherited(path, flat), str(path))
    bases = (Path(), path.parent, *path.resolve().parents)
    files = HydraFiles(
        folders=(path.parent,),
        own_files=_own_files(sheet),
        bases=bases,
        telling=_telling(sheet),
    )
    found = read_composed(path.name, files, flat, removed=_removed(words), usual=_usual(sheet))
    assert found is not None, "the file is there"
    return Settings(sheet, _nearest(sheet, found, flat), str(path))


def _composed(
    sheet: ConfigSheet, start: str, words: list[Text], folder: Path, arguments: Flat
) -> tuple[Flat, dict[str, str]]:
    """Return a command line's arguments over the file that hydra composes, and what of that is not known.

    The file is the one that the command line names, or else the started module; the framework's own are not read.
    """
    bases = (Path(), folder, *folder.resolve().parents)
    module = _module_file(start, bases)
    usual_folder, usual_name = (None, None) if module is None else _decorated(module)
    named, placed, more = (_option(words, f"--config-{each}") for each in ("name", "path", "dir"))
    name = named.value if named is not None else usual_name
    if name is None:
        return arguments, {}
    wanted = (placed.value if placed is not None else usual_folder) or HYDRA_FOLDER
    folders = [] if module is None else [module.parent / wanted]
    folders += [] if more is None else _folders(more.value, bases)
    folders += _folders(wanted, bases)
    if placed is None:
        folders += [Path(), folder]
    files = HydraFiles(
        folders=tuple(dict.fromkeys(folders)),
        own_files=_own_files(sheet),
        own_folders=sheet.own_folders,
        bases=bases,
        telling=_telling(sheet),
    )
    found = read_composed(name, files, arguments, removed=_removed(words), usual=_usual(sheet))
    if found is not None:
        return _nearest(sheet, found, arguments), {}
    place = "" if placed is None else placed.value.rstrip("/")
    elsewhere = place.startswith(("/", "$", "`")) and not fits_any(place, sheet.own_folders)
    own = files.is_own(name) and not elsewhere
    if named is None or own:
        return arguments, {}
    missing = missing_file(name, arguments["--config-name"].where)
    return {**arguments, f"{INHERITS}: {name}": missing}, {"--config-name": NOT_FOUND}


def _own_files(sheet: ConfigSheet) -> tuple[str, ...]:
    return tuple(name for each in sheet.own_files for name in spelled(each, sheet.roles))


def _telling(sheet: ConfigSheet) -> frozenset[str]:
    return frozenset(key for each in sheet.settings.values() for key in each.keys)


def _module_file(start: str, bases: Iterable[Path]) -> Path | None:
    """Return the file of a started module or script, where it is at hand."""
    path = start if start.endswith(".py") else start.replace(".", "/") + ".py"
    return next((base / path for base in bases if (base / path).is_file()), None)


def _decorated(module: Path) -> tuple[str | None, str | None]:
    """Return the folder, as it stands in a module, and the name of the configuration that it starts with."""
    found = DECORATED.search(script_text(module))
    if found is None:
        return None, None
    folder, name = (
        re.search(NAMED.format(each), found[1]) for each in ("config_path", "config_name")
    )
    return folder and folder[1], name and name[1]


def _folders(named: str, bases: Sequence[Path]) -> list[Path]:
    """Return the folders that a path may mean: what leads to its known end may be of another machine."""
    scheme, _, place = named.rpartition("://")
    parts = [part for part in place.split("." if scheme == "pkg" else "/") if part]
    unknown = [at for at, part in enumerate(parts) if any(sign in part for sign in "$`)")]
    parts = parts[unknown[-1] + 1 :] if unknown else parts
    whole = [Path(place)] if place.startswith("/") and not unknown else []
    ends = [Path(*parts[at:]) for at in range(len(parts))] or [Path()]
    return [
        each for each in (*whole, *(base / end for end in ends for base in bases)) if each.is_dir()
    ]


def _removed(words: Iterable[Text]) -> tuple[str, ...]:
    """Return the keys that hydra's overrides take away."""
    return tuple(word.value[1:].partition("=")[0] for word in words if word.value.startswith("~"))


def _usual(sheet: ConfigSheet) -> dict[str, object]:
    """Return the framework's defaults by key."""
    settings = (*sheet.settings.values(), *sheet.losses.values())
    sizes = (
        setting.of(prefix)
        for trainer in sheet.trainers.values()
        for setting in trainer.sizes.values()
        for prefix in sheet.roles.values()
    )
    return {
        key: each.default
        for each in (*sizes, *settings)
        for key in each.keys
        if each.default is not None and DOTTED.match(key) and "." in key
    }


def _nearest(sheet: ConfigSheet, flat: Flat, arguments: Flat) -> Flat:
    """Return values without those of files whose setting an argument gives by another of its keys."""
    settings = [*sheet.settings.values(), *sheet.losses.values()]
    for trainer in sheet.trainers.values():
        for prefix in sheet.roles.values():
            settings += [setting.of(prefix) for setting in trainer.sizes.values()]
    hidden = {
        key
        for each in settings
        if any(key in arguments for key in each.keys)
        for key in each.keys
        if key not in arguments and key != INHERITS
    }
    return {key: given for key, given in flat.items() if key not in hidden}


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
    named = _option(words, "--config")
    if named is None:
        return arguments
    for base in (Path(), folder, *folder.resolve().parents):
        for path in (base / named.value, base / Path(named.value).name):
            if path.is_file():
                return read_inherited(path, arguments)
    raise FileError(named.value, "no such file", field="--config")


def _option(words: list[Text], name: str) -> Text | None:
    for place, word in enumerate(words):
        flag, equals, value = word.value.partition("=")
        if CONFIG_FLAGS.get(flag) != name:
            continue
        if equals:
            return word.with_value(value)
        if place + 1 < len(words):
            return words[place + 1]
    return None


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
