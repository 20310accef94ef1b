"""Write files whole or not at all, and turn our types into what JSON and YAML hold.

Checks of where a command will write come before it works for minutes.
"""

import dataclasses
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from rlplan.errors import FileError

# Of a line that holds a whole layout.
FLAT_WIDTH = 140


def write_text(path: Path, text: str) -> None:
    """Write a file by way of a temporary one and a rename, so that no half-written file is ever seen.

    Raises:
        FileError: The file cannot be written; an earlier one of its name is still there.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a binary file by way of a temporary one and a rename.

    Raises:
        FileError: The file cannot be written; an earlier one of its name is still there.
    """
    check_replaceable(str(path), path)
    try:
        _replace(path, content)
    except OSError as error:
        raise FileError(str(path), f"cannot be written: {error.strerror or error}") from None


def check_replaceable(option: str, path: Path) -> None:
    """Refuse to replace what is no regular file: a rename would put one in place of a device or link.

    Args:
        option: What messages name, an option or the path itself.

    Raises:
        FileError: Says what is there.
    """
    try:
        mode = path.lstat().st_mode
    except (OSError, ValueError):
        return  # nothing is there, or writing will say what is wrong
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_IFDIR: "is a folder, not a file", stat.S_IFLNK: "is a symbolic link"}
    problem = kinds.get(stat.S_IFMT(mode), "is a device, pipe or socket")
    allowed = "a regular file, or a path where there is nothing"
    raise FileError(
        option, problem, value=None if option == str(path) else str(path), allowed=allowed
    )


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def plain(value: Any, *, drop_none: bool = True, drop_defaults: bool = False) -> Any:
    """Return a value as dicts, lists, strings and numbers; fields that are None are left out.

    Args:
        drop_defaults: Whether fields are left out that have their default: they are read again as such.
    """
    again = partial(plain, drop_none=drop_none, drop_defaults=drop_defaults)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {
            field.name: again(item)
            for field, item in items
            if (item is not None or not drop_none) and not (drop_defaults and _usual(field, item))
        }
    if isinstance(value, Mapping):
        return {str(key): again(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, (list, tuple)):
        return [again(item) for item in value]
    return value


def _usual(field: "dataclasses.Field[Any]", item: Any) -> bool:
    """Tell whether a field has its default; one that tells a union's kinds apart always stays."""
    if field.name in _KINDS or type(item) is not type(field.default):
        return False
    return bool(item == field.default)


# Fields by which a reader tells the kinds of a union apart (`rlplan.files.decoding`).
_KINDS = frozenset({"distribution"})


def to_json(value: Any) -> str:
    """Return a value as indented JSON with a final newline."""
    return json.dumps(plain(value), indent=2, allow_nan=False) + "\n"


def to_yaml(value: Any, *, flat: bool = False) -> str:
    """Return a value as YAML, keys in the order of their fields.

    Args:
        flat: Whether lists and mappings of single values stand on one line.
    """
    import yaml

    text: str = yaml.safe_dump(
        plain(value),
        sort_keys=False,
        allow_unicode=True,
        width=100 if not flat else FLAT_WIDTH,
        default_flow_style=None if flat else False,
    )
    return text


def write_json(path: Path, value: Any) -> None:
    """Write one of our types as JSON, whole or not at all."""
    write_text(path, to_json(value))


def write_yaml(path: Path, value: Any) -> None:
    """Write one of our types as YAML, whole or not at all."""
    write_text(path, to_yaml(value))


def check_files(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Refuse files that cannot be written, or that would replace what a command reads.

    Args:
        outputs: Files to write, by the option that names each; None where the option is not given.
        inputs: Files that the command reads.

    Raises:
        FileError: Names the option and the path.
    """
    taken = {path.resolve(): "what the command reads" for path in inputs if path is not None}
    for option, path in outputs.items():
        if path is None:
            continue
        check_replaceable(option, path)
        if path.resolve() in taken:
            problem = f"would replace {taken[path.resolve()]}"
            raise FileError(option, problem, value=str(path), allowed="another path")
        _check_parents(option, path, path.absolute().parents)
        taken[path.resolve()] = f"the file of {option}"


def check_folder(option: str, path: Path | None) -> None:
    """Refuse a folder that cannot be made or written into.

    Raises:
        FileError: Names the option and the path.
    """
    if path is not None:
        _check_parents(option, path, (path.absolute(), *path.absolute().parents))


def _check_parents(option: str, path: Path, folders: Iterable[Path]) -> None:
    """Look at the nearest folder that is there; those below it will be made.

    What begins with two dashes is the next option: the one before it was left without its path.
    """
    if str(path).startswith("--"):
        raise FileError(option, "has no path", value=str(path), allowed=f"{option} PATH {path}")
    nearest = next(each for each in folders if os.path.lexists(each))
    if not nearest.is_dir():
        problem = f"cannot be written: {nearest} is not a folder"
        raise FileError(option, problem, value=str(path))
    if not os.access(nearest, os.W_OK | os.X_OK):
        problem = f"cannot be written: no permission in {nearest}"
        raise FileError(option, problem, value=str(path))
