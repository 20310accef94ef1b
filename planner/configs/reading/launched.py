"""Keys that stand beside the command line of a start: launchers' flags, other commands, files that keys name."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from rlplan.errors import FileError, unreadable
from rlplan.files.decoding import text_of
from rlplan.planner.configs.reading.composed import read_inherited
from rlplan.planner.configs.reading.given import Flat, GivenValue, flags_of, nested_leaves, place_of
from rlplan.planner.configs.reading.sheet import ConfigSheet, KeyFile
from rlplan.planner.configs.shell.commands import Command, above
from rlplan.planner.configs.shell.text import Gap, Text

# What a file says where the trainer is to take its own value.
AUTO: Final = "auto"
JSON: Final = ".json"
# A flag of one letter, which none of the keys is.
SHORT: Final = re.compile(r"-[A-Za-z]")
DASHED: Final = re.compile(r"[A-Za-z][\w-]*")
NOT_THERE: Final = "is not at hand: its values are not known"


def words_that_start(patterns: Iterable[str], words: Sequence[Text], place: int) -> int:
    """Return how many words from a place on are a start: one, or two that are a program and its command; 0 for none."""
    for pattern in patterns:
        parts = pattern.split(" ")
        given = [word.value for word in words[place : place + len(parts)]]
        if len(parts) > 1:
            given[:1] = [Path(each).name for each in given[:1]]
        if len(given) == len(parts) and all(map(fnmatchcase, given, parts)):
            return len(parts)
    return 0


def launcher_keys(
    sheet: ConfigSheet, words: Sequence[Text], variables: Iterable[tuple[str, Text]], file: str
) -> Flat:
    """Return the keys that stand in front of a start: flags of what launches it, and variables of its command or its Ray job.

    Args:
        words: In front of the start, in the same command.
    """
    launch = sheet.launch
    of_job = (each for name in launch.variables for each in _job_variable(name, words))
    found: Flat = {
        name: GivenValue(value=text.value, where=place_of(text, file), gaps=text.gaps)
        for name, text in (*variables, *of_job)
        if name in launch.variables
    }
    named = [Path(word.value).name for word in words]
    first = next((at for at, name in enumerate(named) if name in launch.launchers), None)
    if first is None:
        return found
    long = [word for word in words[first + 1 :] if not SHORT.fullmatch(word.value)]
    flags = with_underscores(flags_of(long, file))
    return {**found, **{name: flags[name] for name in flags if name not in launch.apart}}


def with_launchers_files(
    sheet: ConfigSheet, flat: Flat, launched: Flat, folder: Path
) -> tuple[Flat, tuple[str, ...]]:
    """Return keys with those of the files that they name, those that only launchers read as these have them; and what is said.

    A recipe of open-r1 has `num_processes` for its reader, where nothing reads it (accelerate gets a flag, or its own file).

    Args:
        launched: What the launcher's command line says.

    Raises:
        FileError: A file is broken.
    """
    last = {key: flat[key] for key in sheet.launch.of_launchers if key in flat}
    kept = {key: given for key, given in flat.items() if key not in last}
    first = {key: launched[key] for key in last if key in launched}
    found, notes = with_files(sheet, {**kept, **first}, folder)
    return {**last, **found}, notes


def as_named(sheet: ConfigSheet, flat: Flat) -> Flat:
    """Return keys as a sheet names them: by their names in Python where they are fields of dataclasses, as launchers' are."""
    return with_underscores(flat) if sheet.launch.launchers or sheet.launch.files else flat


def _job_variable(name: str, words: Iterable[Text]) -> Iterator[tuple[str, Text]]:
    """Yield a variable that `ray job submit` sets where a job runs (`--runtime-env-json`, `env_vars`)."""
    given = re.compile(rf"[\"']{re.escape(name)}[\"']\s*:\s*[\"']([^\"']*)[\"']")
    for word in words:
        found = given.search(word.value)
        if found is not None:
            # What is not known of the other variables says nothing of this one.
            yield name, Text(found[1], word.line)


def with_underscores(flat: Flat) -> Flat:
    """Return keys by their names in Python: argparse takes `--num-processes` for `num_processes`."""
    return {
        key.replace("-", "_") if DASHED.fullmatch(key) else key: given
        for key, given in flat.items()
    }


def service_keys(sheet: ConfigSheet, commands: Iterable[Command], file: str) -> Flat:
    """Return the keys of commands of their own that a script starts beside a training.

    Of several alike the last counts. Those before it have their number in their keys (`server.1.tp`) where a sheet knows all keys
    that begin so.
    """
    servers: dict[str, list[Flat]] = {}
    for command in commands:
        for pattern, prefix in sheet.launch.services.items():
            places = range(len(command.words))
            at = next(
                (at for at in places if words_that_start((pattern,), command.words, at)), None
            )
            if at is None:
                continue
            flags = flags_of(command.words[at + len(pattern.split(" ")) :], file)
            servers.setdefault(prefix, []).append(with_underscores(flags))
    known, found = frozenset(sheet.named_patterns()), dict[str, GivenValue]()
    for prefix, every in servers.items():
        for number, flags in enumerate(every, 1):
            apart = number < len(every) and f"{prefix}*" in known
            begins = f"{prefix}{number}." if apart else prefix
            found |= {f"{begins}{name}": given for name, given in flags.items()}
    return found


def with_files(sheet: ConfigSheet, flat: Flat, folder: Path) -> tuple[Flat, tuple[str, ...]]:
    """Return keys with those of the files that they name below them, and what is to be said of these.

    A file that is not at hand has what others of its name have, where that is known; else its key has a gap.

    Raises:
        FileError: A file is broken.
    """
    found, notes = _without_sections(sheet, flat), list[str]()
    for key, meant in sheet.launch.files.items():
        given = found.get(key)
        if given is None or given.gaps or not isinstance(given.value, str) or not given.value:
            continue
        path = at_hand(given.value, folder) if given.value not in meant.words else None
        if given.value in meant.words:
            below = _values_of(meant, meant.words[given.value], given.where)
        elif path is not None:
            below = _keys_of_file(path, meant)
        else:
            below = _values_of(meant, _preset(meant, given.value) or {}, given.where)
            if below:
                notes.append(f"{key}={given.value} is not at hand, and taken by its name")
            else:
                gap = Gap(line=0, source=given.value, reason=NOT_THERE)
                found[key] = GivenValue(value=given.value, where=given.where, gaps=(gap,))
                notes.append(f"{key}={given.value} {NOT_THERE}")
        found = {**below, **found}
    return found, tuple(notes)


def without_file(sheet: ConfigSheet, flat: Flat, key: str, folder: Path) -> Flat:
    """Return the keys without those read from the file that `key` names, so that another file can take its place."""
    given = flat.get(key)
    if given is None:
        return flat
    below, _ = with_files(sheet, {key: given}, folder)
    return {
        each: value
        for each, value in flat.items()
        if each not in below or not _is_of_file(value, below[each])
    }


def _is_of_file(given: GivenValue, read: GivenValue) -> bool:
    """Tell whether a value is the one that a file has, whose path may be written otherwise."""
    return given.value == read.value and Path(given.where).name == Path(read.where).name


def _without_sections(sheet: ConfigSheet, flat: Flat) -> Flat:
    """Return keys that stand in sections of a file by the names that they have outside; what stands there itself counts first."""
    found: Flat = {}
    for key, given in flat.items():
        sections = sheet.launch.sections.items()
        first = next(((head, name) for head, name in sections if key.startswith(head)), None)
        outside = key if first is None else first[1] + key.removeprefix(first[0])
        if outside == key or outside not in flat:
            found[outside] = given
    return found


def _values_of(meant: KeyFile, held: Mapping[str, object], where: str) -> Flat:
    """Return the keys of a file that is known by its name."""
    return {
        f"{meant.prefix}{name}": GivenValue(value=value, where=where)
        for name, value in held.items()
    }


def at_hand(name: str, folder: Path) -> Path | None:
    """Return the file of a name: as it stands, or below the script's folder or one above; else beside the script."""
    bases = (Path(), folder, *above(folder))
    paths = [base / name for base in bases] + [folder / Path(name).name]
    return next((path for path in paths if path.is_file()), None)


def _keys_of_file(path: Path, meant: KeyFile) -> Flat:
    """Return a file's keys without those that it leaves to the trainer."""
    read = _read_json(path) if path.suffix == JSON else read_inherited(path, repeats=True)
    return {
        f"{meant.prefix}{name}": given
        for name, given in read.items()
        if given.value is not None and given.value != AUTO
    }


def _read_json(path: Path) -> Flat:
    try:
        data = json.loads(text_of(path))
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None
    except (ValueError, RecursionError):
        raise FileError(str(path), "is not JSON") from None
    if not isinstance(data, dict):
        raise FileError(str(path), "is no mapping", allowed="keys with values")
    return {key: GivenValue(value=value, where=str(path)) for key, value in _leaves(data)}


def _leaves(data: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in data.items():
        yield from nested_leaves(name, value)


def _preset(meant: KeyFile, name: str) -> Mapping[str, object] | None:
    """Return what a file holds that is called so; None where no such name is known."""
    stem = Path(name).name.lower()
    stem = stem.removesuffix(JSON).removesuffix(".yaml").removesuffix(".yml")
    return next((held for each, held in meant.presets.items() if fnmatchcase(stem, each)), None)
