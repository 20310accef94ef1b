"""Checks of where a command will write, before it works for minutes."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from rlplan.errors import FileError
from rlplan.files.writing import check_replaceable


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
