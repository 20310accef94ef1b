"""Functions and classes of a user's own file, named as `path/to/file.py:name`."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from rlplan.errors import LONGEST_PROBLEM, FileError, cut, nearest_name

# Of what a user's code returned messages show so many characters.
LONGEST_RETURNED = 80
# What a user's code fails with: `sys.exit()` too, which would end the process that called it without a word.
FAILURES = (Exception, SystemExit)


def is_in_a_file(spec: str) -> bool:
    """Tell whether a name is meant as one of a Python file."""
    return ":" in spec or spec.endswith(".py")


def load_from_file(spec: str, folder: Path) -> Any:
    """Return what a user's file defines under a name; the file is run.

    Load it in the process that calls it: a function of a user's file cannot be sent elsewhere.

    Args:
        spec: `path/to/file.py:name`.
        folder: What a relative path is relative to: the job file's folder.

    Raises:
        FileError: The file is missing or fails when it is imported, or has no such function.
    """
    file, _, name = spec.rpartition(":") if ":" in spec else (spec, ":", "")
    path = folder / file
    if not path.is_file():
        siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileError(str(path), "no such file", nearest=nearest_name(path.name, siblings))
    module = _run_module(path)
    functions = sorted(
        key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
    )
    if name not in functions:
        raise FileError(
            str(path),
            "has no such function",
            value=name,
            allowed=", ".join(functions) or None,
            nearest=nearest_name(name, functions),
        )
    return getattr(module, name)


class _LeavesNothing(SourceFileLoader):
    """Load a file of Python without writing bytecode beside it: the folder is the user's."""

    def set_data(self, *_: Any, **__: Any) -> None:
        """Write nothing."""


def _run_module(path: Path) -> Any:
    if path.suffix != ".py":
        raise FileError(str(path), "is not a Python file", allowed="path/to/file.py:name")
    name = f"rlplan_user_{path.stem}"
    loader = _LeavesNothing(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except FAILURES as error:
        raise FileError(str(path), f"cannot be imported: {in_words(error)}") from error
    return module


def in_words(error: BaseException) -> str:
    """Return an exception's type and message, in one line."""
    words = " ".join(str(error).split())
    return cut(
        f"{type(error).__name__}: {words}" if words else type(error).__name__, LONGEST_PROBLEM
    )


def shown(value: object) -> str:
    """Return what a user's code returned as a message shows it, in one line."""
    return cut(" ".join(repr(value).split()), LONGEST_RETURNED)
