"""Scripts that were handed over: read in a private folder, with what controls change of them as further words or in place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from rlplan.errors import FileError
from rlplan_cli.serve.asked import PAGE, Asked, GivenFile
from rlplan_cli.typed.sources import Source

if TYPE_CHECKING:
    from rlplan.planner.configs.importing import ImportOptions
    from rlplan.planner.configs.reading.settings import Settings

# Which setting of a framework's sheet a control changes.
SETTINGS = {
    "gpus": "nodes",
    "prompts": "prompts",
    "samples_per_prompt": "samples",
    "prompt_tokens": "max_prompt",
    "response_tokens": "max_response",
}
GPUS_PER_NODE = "gpus_per_node"
# Endings by which readers tell what a file is; others are taken for shell scripts.
ENDINGS = frozenset({".sh", ".bash", ".yaml", ".yml", ".json", ".toml", ".py"})
LONGEST_NAME = 80
PREFIX = "rlplan-page-"
# From where a path begins, so that long words are looked through once.
IN_FOLDER = re.compile(rf"(?<![^\s'\"=:(\[,])[^\s'\"=:(\[,]*{PREFIX}\w+[\\/]")


class Written(NamedTuple):
    """Hold a script in its folder, as a source that is checked, with the words that stand for its changes.

    Attributes:
        text: Of the script, where changes are in it.
        words: What to type behind it, or beside its other keys, for the changes.
    """

    source: Source
    text: str
    words: tuple[str, ...]


def file_name(given: GivenFile) -> str:
    """Return the name under which a file is kept: letters, digits and `._-`, with an ending that readers know."""
    last = re.split(r"[\\/]", given.name)[-1]
    name = re.sub(r"[^\w.-]", "_", last, flags=re.ASCII).lstrip("._-")[-LONGEST_NAME:]
    if Path(name).suffix.lower() in ENDINGS:
        return name
    return f"{name or 'script'}.sh"


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a folder that nobody else may read, and remove it with all in it."""
    with TemporaryDirectory(prefix=PREFIX) as folder:
        yield Path(folder)


@contextmanager
def written(asked: Asked) -> Iterator[Written]:
    """Yield a script in a folder of its own, with what the controls change.

    Raises:
        UserError: It cannot be read, or a control's key is not to be changed.
    """
    assert asked.script is not None, "no script was handed over"
    with private_folder() as folder:
        path = folder / file_name(asked.script)
        path.write_text(asked.script.text, encoding="utf-8")
        source = Source(
            file=str(path),
            framework=asked.framework,
            gpu=asked.gpu,
            mean_response_tokens=asked.mean_response_tokens,
            mean_prompt_tokens=asked.mean_prompt_tokens,
        )
        is_changed = asked.changes or asked.taken
        source, words = _changed(source, path, asked) if is_changed else (source, ())
        if asked.mean_response_tokens is None and asked.mean_response_share is not None:
            source = replace(source, mean_response_tokens=_mean(source, asked.mean_response_share))
        yield Written(source, path.read_text(encoding="utf-8"), words)


def _mean(source: Source, share: float) -> float | None:
    """Return a share of the longest response that a script allows, in whole tokens; None where it says none."""
    longest = longest_response(settings_read(source)[0])
    return None if longest is None else float(max(1, round(share * longest)))


def longest_response(settings: Settings) -> int | None:
    """Return the longest response that a script allows, in tokens, which its control changes; None where it says none."""
    from rlplan.planner.configs.importing import run_of

    work = run_of(settings).work
    return work.max_response or work.turn_response or work.max_total


def settings_read(source: Source) -> tuple[Settings, ImportOptions]:
    """Return a script's settings and the options of its import.

    Raises:
        UserError: It is of no framework that is known, or cannot be read.
    """
    from rlplan.planner.configs.importing import settings_of

    framework, words, options = import_of(source)
    return settings_of(framework, words, options), options


def import_of(source: Source) -> tuple[str, list[str], ImportOptions]:
    """Return whose script it is, the words that name it, and the options of its import.

    Raises:
        FileError: It is a job's or a plan's file, or an option is missing.
    """
    from rlplan_cli.config_options import GivenOptions, framework_of, import_options

    words = [str(source.file), *source.arguments]
    framework, rest = framework_of(
        words if source.framework is None else [source.framework, *words]
    )
    if framework is None:
        raise FileError(
            PAGE, "is a job or a plan, whose file controls do not change", field="script"
        )
    given = GivenOptions(
        gpu=source.gpu,
        mean_response=source.mean_response_tokens,
        mean_prompt=source.mean_prompt_tokens,
    )
    return framework, rest, import_options(framework, rest, given)


def changeable(settings: Settings) -> dict[str, str]:
    """Return the controls that a script's framework has a key for, with that key."""
    known = settings.sheet.settings
    return {
        control: key_for(settings, name)
        for control, name in SETTINGS.items()
        if name in known and (control != "gpus" or GPUS_PER_NODE in known)
    }


def key_for(settings: Settings, name: str) -> str:
    """Return the key that gives a setting, or that an export gives it by."""
    key, setting = settings.key_of(name), settings.sheet.settings[name]
    return key if key in settings.flat else setting.written.get("any", key)


def assignments_of(settings: Settings, asked: Asked) -> dict[str, object]:
    """Return the keys that taken proposals change, then those of the controls, with their values.

    Raises:
        FileError: The framework has no key for a control, or GPUs fill no whole nodes.
    """
    from rlplan.planner.configs.reading.laid_over import laid_over
    from rlplan.profiles.catalog import load_device

    keys = changeable(settings)
    _check_taken(settings, asked)
    taken = laid_over(replace(settings, flat={}), asked.taken)
    found: dict[str, object] = {key: taken.given(key) for key in taken.flat}
    for control, value in asked.changes.items():
        if control not in keys:
            title = settings.sheet.title
            problem = f"is said by no one key of {title}: change the script itself"
            raise FileError(PAGE, problem, field=control, value=value, allowed=", ".join(keys))
        if control != "gpus":
            found[keys[control]] = value
            continue
        node = load_device(asked.gpu).gpus_per_node
        if value > node and value % node:
            allowed = f"multiples of {node}, or fewer than that"
            raise FileError(
                PAGE, "do not fill whole nodes", field="gpus", value=value, allowed=allowed
            )
        found[keys[control]] = max(1, value // node)
        found[key_for(settings, GPUS_PER_NODE)] = min(value, node)
    return found


def _check_taken(settings: Settings, asked: Asked) -> None:
    """Refuse words of a link that change no key's value, such as one that leaves a key out (Hydra's `~key`).

    Raises:
        FileError: Names the word.
    """
    if settings.sheet.arguments != "hydra":
        return
    for word in asked.taken:
        if word.startswith("~") or "=" not in word:
            problem = "gives no key a value, and the page changes values alone: change the script itself, or undo the changes"
            raise FileError(PAGE, problem, field="taken", value=word, allowed="KEY=VALUE")


def _changed(source: Source, path: Path, asked: Asked) -> tuple[Source, tuple[str, ...]]:
    """Return a script's source with its changes: as words behind it where it hands these on, else in its text."""
    from rlplan.planner.configs.proposing.changes import argument

    settings, _ = settings_read(source)
    wanted = assignments_of(settings, asked)
    words: list[str] = []
    for key, value in wanted.items():
        words += argument(settings, key, value) or ()
    behind = replace(source, arguments=tuple(words))
    if _has(behind, wanted):
        return behind, tuple(words)
    _set_in_text(source, path, settings, wanted)
    if not _has(source, wanted):
        raise _unchanged(path, next(iter(wanted)))
    return source, tuple(words)


def _set_in_text(source: Source, path: Path, settings: Settings, wanted: dict[str, object]) -> None:
    """Give keys their values in a script's text: in their places, or beside other keys of the same command.

    Raises:
        FileError: It has no place there.
    """
    from rlplan.planner.configs.writing.in_place import text_with

    def read(new: str) -> Settings:
        path.write_text(new, encoding="utf-8")
        return settings_read(source)[0]

    text = path.read_text(encoding="utf-8")
    for assignment in wanted.items():
        new = text_with(text, path, settings, assignment, read)
        if new is None:
            raise _unchanged(path, assignment[0])
        text, settings = new
    path.write_text(text, encoding="utf-8")


def _unchanged(path: Path, key: str) -> FileError:
    problem = "is set in a way that the page does not change: change the script itself"
    return FileError(path.name, problem, field=key)


def _has(source: Source, wanted: dict[str, object]) -> bool:
    """Tell whether keys have their values; a script that hands no words on refuses them."""
    from rlplan.errors import UserError

    try:
        settings, _ = settings_read(source)
    except UserError:
        return False
    return all(settings.given(key) == value for key, value in wanted.items())


def without_folders(value: Any) -> Any:  # noqa: ANN401 -- a document of plain values
    """Return a document in which files of private folders have their names alone."""
    if isinstance(value, str):
        return IN_FOLDER.sub("", value)
    if isinstance(value, dict):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(each) for each in value]
    return value
