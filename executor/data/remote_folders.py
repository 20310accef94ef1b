"""Folders on remote storage, named by a URL (`s3://bucket/runs/first`) and reached by fsspec, with checksums of their files.

Nothing in such a folder is renamed or appended to. It is sent and fetched as a whole, and the file that marks it complete
comes last. Which kinds of storage there are depends on the packages that are installed for fsspec (`s3fs`, `gcsfs`, `adlfs`,
...); credentials are those that these packages read (environment, configuration files).
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from filelock import FileLock
from fsspec.core import url_to_fs

from rlplan.errors import FileError
from rlplan.files.decoding import check_regular, decode, is_url, load_json
from rlplan.files.frozen import FrozenDict

_Found = TypeVar("_Found")
EXAMPLES = "a URL such as s3://bucket/folder or gs://bucket/folder"


def child_url(url: str, name: str) -> str:
    """Return the URL of the entry of a folder with that name."""
    return f"{url.rstrip('/')}/{name}"


class RemoteFolder:
    """Send files to a folder behind a URL, and fetch them.

    Args:
        field: What people call the folder, for messages.

    Raises:
        FileError: Nothing that is installed reaches such a URL.
    """

    def __init__(self, url: str, field: str = "") -> None:
        self.url, self._field = url.rstrip("/"), field
        self._files, root = self._with_our_errors("cannot be reached", lambda: url_to_fs(url))
        self._root: str = root.rstrip("/")

    def names(self) -> list[str]:
        """Return the names of all files in it, relative to it; none where it is not there.

        Raises:
            FileError: It cannot be listed.
        """
        return self._with_our_errors("cannot be listed", self._names)

    def _names(self) -> list[str]:
        self._files.invalidate_cache()
        if not self._files.exists(self._root):
            return []
        found = [str(each) for each in self._files.find(self._root)]
        return sorted(each.removeprefix(self._root).lstrip("/") for each in found)

    def send(self, folder: Path, last: str | None = None) -> None:
        """Send all files of a folder of this machine, by their names in it.

        Args:
            last: The name of the file that is sent when all others are there.

        Raises:
            FileError: It cannot be written.
        """
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        names = [path.relative_to(folder).as_posix() for path in paths]
        names.sort(key=lambda name: name == last)
        for name in names:
            self._with_our_errors("cannot be written", partial(self._put, folder / name, name))

    def _put(self, path: Path, name: str) -> None:
        there = f"{self._root}/{name}"
        self._files.makedirs(there.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(path), there)

    def fetch(self, into: Path, names: list[str] | None = None) -> None:
        """Fetch files into a folder of this machine.

        Args:
            names: Those that are fetched; None: all.

        Raises:
            FileError: One of them is not there, or cannot be read.
        """
        for name in self.names() if names is None else names:
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            there = f"{self._root}/{name}"
            self._with_our_errors(
                "cannot be read", partial(self._files.get_file, there, str(target))
            )

    def write(self, name: str, text: str) -> None:
        """Write a small file of ASCII.

        Raises:
            FileError: It cannot be written.
        """
        self._with_our_errors("cannot be written", lambda: self._write(name, text))

    def _write(self, name: str, text: str) -> None:
        self._files.makedirs(self._root, exist_ok=True)
        self._files.pipe_file(f"{self._root}/{name}", text.encode("ascii"))

    def read(self, name: str) -> str:
        """Return what is in a small file.

        Raises:
            FileError: It is not there, or cannot be read.
        """
        there = f"{self._root}/{name}"
        found = self._with_our_errors("cannot be read", lambda: self._files.cat_file(there))
        return str(found, "utf-8", "replace")

    def state(self) -> str:
        """Return what changes where a file does: names, sizes and what the storage says of versions.

        Raises:
            FileError: It cannot be listed.
        """
        return self._with_our_errors("cannot be listed", self._state)

    def _state(self) -> str:
        names = self._names()
        return "\n".join(f"{name} {self._files.ukey(f'{self._root}/{name}')}" for name in names)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with what is in it; what is not there is no mistake.

        Args:
            name: Empty for the folder as a whole.

        Raises:
            FileError: It cannot be removed.
        """
        self._with_our_errors(
            "cannot be removed", lambda: self._remove(f"{self._root}/{name}".rstrip("/"))
        )

    def _remove(self, there: str) -> None:
        self._files.invalidate_cache()
        if self._files.exists(there):
            self._files.rm(there, recursive=True)

    def _with_our_errors(self, problem: str, call: Callable[[], _Found]) -> _Found:
        """Return the result of a call of the storage library; raise its errors as `FileError`."""
        try:
            return call()
        except FileError:
            raise
        except ImportError as error:
            missing = f"{problem}: {_words(error)}"
            raise FileError(self.url, missing, field=self._field or None) from None
        except Exception as error:  # noqa: BLE001 -- of each library's own kinds
            reason = getattr(error, "strerror", None) or _words(error)
            raise FileError(self.url, f"{problem}: {reason}", field=self._field or None) from None


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def fetched_once(there: Path, fetch: Callable[[Path], object]) -> None:
    """Have a folder of this machine, whole or not at all, whoever else of it asks for the same one.

    Args:
        fetch: Fills a folder that becomes this one; not called where it is there.
    """
    there.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(f"{there}.lock"):
        if there.exists():
            return
        partial = there.with_name(f".{there.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        fetch(partial)
        partial.rename(there)


def check_url(place: str, field: str) -> str:
    """Return a URL as it is.

    Raises:
        FileError: It is none.
    """
    if not is_url(place):
        raise FileError(field, "is no URL", value=place, allowed=EXAMPLES)
    return place


MANIFEST_FILE = "manifest.json"
VERSION = 2  # 1 had pickles in it, and no manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Hold the SHA-256 checksum of every other file of a checkpoint, by its path in the folder."""

    version: int = VERSION
    sha256: FrozenDict[str, str]


def checksums(folder: Path) -> FrozenDict[str, str]:
    """Return the checksum of every file of a folder but its manifest, by its path in the folder.

    Raises:
        FileError: A file cannot be read, or is none.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or name == MANIFEST_FILE:
            continue
        check_regular(path, None)
        with path.open("rb") as stream:
            found[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return FrozenDict(found)


def read_manifest(folder: Path) -> Mapping[str, str]:
    """Return the checksums that were written beside the files of a folder.

    Raises:
        FileError: There are none.
    """
    file = folder / MANIFEST_FILE
    return decode(Manifest, load_json(file), str(file)).sha256


def fetch_whole(url: str, into: Path) -> None:
    """Fetch the folder of a URL, and check its files against its manifest.

    Raises:
        FileError: It cannot be read, or a file differs; the file is named.
    """
    RemoteFolder(url).fetch(into)
    check_whole(url, read_manifest(into), checksums(into))


def fetch_files(url: str, into: Path, written: Mapping[str, str]) -> None:
    """Fetch some files of the folder of a URL, and check them.

    Args:
        written: Checksums of the files when they were written, by name.

    Raises:
        FileError: A file cannot be read, or differs.
    """
    RemoteFolder(url).fetch(into, sorted(written))
    check_whole(url, written, checksums(into))


def check_whole(place: str, written: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Refuse a folder in which a file differs from what was written.

    Args:
        place: The folder's path or URL.
        written: Checksums of then.
        there: Those of now.

    Raises:
        FileError: Names the file that is another one, or that is missing.
    """
    for name in sorted(written.keys() | there.keys()):
        if written.get(name) != there.get(name):
            problem = (
                "is not in the manifest" if name not in written else "is not as it was written"
            )
            raise FileError(f"{place}/{name}", problem if name in there else "is missing")


# As `huggingface_hub` names where caches are.
CACHE_HOME = "XDG_CACHE_HOME"


@cache
def fetched_folder(url: str, field: str = "") -> Path:
    """Return a folder of this machine with what lies behind a URL; a process looks for changes once.

    Args:
        field: What people call it, for messages.

    Raises:
        FileError: Nothing is there, or it cannot be read.
    """
    remote = RemoteFolder(url, field)
    names = remote.names()
    if not names:
        raise FileError(url, "no such folder", field=field or None)
    state = f"{remote.url}\n{remote.state()}"
    home = Path(os.environ.get(CACHE_HOME) or Path.home() / ".cache", "rlplan", "fetched")
    there = home / hashlib.sha256(state.encode()).hexdigest()[:24]
    try:
        fetched_once(there, partial(remote.fetch, names=names))
    except OSError as error:
        problem = f"cannot be kept in {home}: {error.strerror or error}"
        raise FileError(url, problem, field=field or None) from None
    return there
