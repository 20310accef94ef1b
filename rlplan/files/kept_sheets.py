"""Sheets of this package, decoded once: what came of each is kept, as Python keeps bytecode.

A sheet is read as YAML and checked against types, which takes longer than most answers that need it. What came of it lies
in the `__pycache__` of this folder, a file for each sheet. It counts only while all files of the package that decide it
have the content that they had: the sheet, those that it is a variant of, the modules that say what may stand in it, and the one
that puts it together.
Where nothing can be written, sheets are read each time. Whoever can write there can write this package's code as well.
"""

import ast
import json
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from hashlib import blake2b
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

PACKAGE: Final = Path(__file__).parents[1]
# Files that changed later than this may be newer than what this process has read of them: nothing is kept of those.
# Times of files are the clock of the day's, some of whole seconds.
_STARTED_NS: Final = time.time_ns() - 2 * 10**9


def folder() -> Path:
    """Return where sheets are kept."""
    return Path(cache_from_source(__file__)).parent / "sheets"


def read_sheet(kind: type[T], path: Path) -> T:
    """Return a YAML file of this package as `kind`.

    Raises:
        FileError: The file is missing, is no YAML, or does not hold a `kind`.
    """
    from rlplan.files.decoding import read_yaml

    return kept(kind, path, lambda: (read_yaml(kind, path), (path,)))


def kept(kind: type[T], path: Path, read: Callable[[], tuple[T, Iterable[Path]]]) -> T:
    """Return what a file of this package holds as `kind`, which is read only where it is not kept.

    Args:
        read: Returns it, and all files that it was read from; the module that it stands in decides it too.
    """
    place = _place_of(kind, path)
    if place is None:
        return read()[0]
    found = _known(kind, place)
    if found is None:
        found, files = read()
        if not sys.dont_write_bytecode:
            _keep(place, found, (kind.__module__, read.__module__), files)
    return found


def _place_of(kind: type[T], path: Path) -> Path | None:
    """Return where a sheet is kept; None where it is no file of this package."""
    if not path.is_relative_to(PACKAGE):
        return None
    name = blake2b(str(path.relative_to(PACKAGE)).encode(), digest_size=8).hexdigest()
    return folder() / f"{kind.__name__}-{name}.{sys.implementation.cache_tag}"


def _known(kind: type[T], place: Path) -> T | None:
    """Return what is kept at a place; None where nothing is, or it is not what would be read now."""
    try:
        head, _, body = place.read_bytes().partition(b"\n")
        said = json.loads(head)
        files = said["files"]
        is_whole = said["place"] == place.name and said["body"] == _digest(body)
        if not is_whole or any(_digest_of(PACKAGE / each) != files[each] for each in files):
            return None
        found = pickle.loads(body)  # noqa: S301 -- our own, as bytecode is
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ImportError,
        pickle.UnpicklingError,
    ):
        return None
    return found if isinstance(found, kind) else None


def _keep(place: Path, value: object, modules: Iterable[str], files: Iterable[Path]) -> None:
    """Keep a value with the content of the files that decide it, if they have not just changed and it can be written.

    Args:
        modules: That decide it, with what they import.
        files: That it was read from.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(place.parent, os.W_OK):  # what follows takes longer than reading a sheet
            return
        every = sorted({*files, *(each for module in modules for each in _modules_of(module))})
        if any(_changed_ns(each) > _STARTED_NS for each in every):
            return
        body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        digests = {str(each.relative_to(PACKAGE)): _digest_of(each) for each in every}
        head = json.dumps({"place": place.name, "files": digests, "body": _digest(body)})
        _write(place, head.encode() + b"\n" + body)
    except (OSError, ValueError, pickle.PicklingError):
        return


def _changed_ns(path: Path) -> int:
    """Return when a file was changed or put in its place; tools that copy files set the first of these times back."""
    found = path.stat()
    return max(found.st_mtime_ns, found.st_ctime_ns)


def _write(place: Path, content: bytes) -> None:
    """Write a file whole or not at all, readable by whom the package's code is readable by, as bytecode is."""
    with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
        written = Path(file.name)
    try:
        written.write_bytes(content)
        written.chmod(Path(__file__).stat().st_mode & 0o666)
        written.replace(place)
    except OSError:
        written.unlink(missing_ok=True)
        raise


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


@cache
def _digest_of(path: Path) -> str:
    """Return a file's digest; it is read once, as the sheet in it is."""
    return _digest(path.read_bytes())


@cache
def _modules_of(module: str) -> frozenset[Path]:
    """Return the files of a module, of the decoder, and of all of this package's modules that they import at their top."""
    found: dict[str, Path] = {}
    left = [module, "rlplan.files.decoding"]
    while left:
        name = left.pop()
        path = None if name in found else _file_of(name)
        if path is not None:
            found[name] = path
            left += _imported_by(path)
    return frozenset(found.values())


def _file_of(module: str) -> Path | None:
    """Return the file of one of this package's modules; None of another's."""
    first, *rest = module.split(".")
    if first != PACKAGE.name:
        return None
    place = PACKAGE.joinpath(*rest)
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((each for each in files if each.is_file()), None)


def _imported_by(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports at its top, and names that it takes of them, which may be modules."""
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
