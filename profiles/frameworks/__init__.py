"""Data of each framework, in a folder `profiles/frameworks/NAME/`. Any part may be absent.

`steps/` has a sheet for each trainer and version, with the parts of a step that are the framework's own; `sync/` its methods of
weight sync; `log.yaml` the names of a step's figures in its log, and `keys.yaml` the meaning of the keys of its
configurations. Its code is in `planner/frameworks/`, under the same name.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, Literal, get_args

DataPart = Literal["steps", "sync", "log", "keys"]
DATA_PARTS: Final[tuple[DataPart, ...]] = get_args(DataPart)


def data_files(part: DataPart) -> Mapping[str, Path]:
    """Return the files of a part of all frameworks; none is opened.

    They are by the sheet's name where a framework has several, in `steps` and `sync`, else by the framework's.
    """
    return _files(part, tuple(__path__))


def frameworks_with_data(part: DataPart) -> tuple[str, ...]:
    """Return the names of the frameworks whose folders have a part."""
    return _with_data(part, tuple(__path__))


def framework_of_sheet(part: Literal["steps", "sync"], name: str) -> str | None:
    """Return the name of the framework that has a sheet; None where none has it."""
    path = data_files(part).get(name)
    return None if path is None else path.parent.parent.name


@cache
def _with_data(part: DataPart, folders: tuple[str, ...]) -> tuple[str, ...]:
    places = (path.parent for path in _files(part, folders).values())
    return tuple(
        dict.fromkeys(each.parent.name if each.name == part else each.name for each in places)
    )


@cache
def _files(part: DataPart, folders: tuple[str, ...]) -> Mapping[str, Path]:
    """Return a part's files; folders are listed once."""
    found: dict[str, Path] = {}
    for folder in sorted(
        each for home in folders for each in Path(home).iterdir() if each.is_dir()
    ):
        if (folder / f"{part}.yaml").is_file():
            found[folder.name] = folder / f"{part}.yaml"
        found |= {path.stem: path for path in sorted((folder / part).glob("*.yaml"))}
    return found
