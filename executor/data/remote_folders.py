"""Folders on storage that a URL names (`s3://bucket/runs/first`), reached by fsspec.

A folder behind a URL is no path: nothing in it is renamed or appended to. It is sent and fetched as a whole, the file that
makes it whole last. Which storage there is depends on what is installed beside fsspec (`s3fs`, `gcsfs`, `adlfs`, ...), and
who may use it on what those libraries read (environment, configuration files).
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from filelock import FileLock
from fsspec.core import url_to_fs

from rlplan.errors import FileError
from rlplan.files.places import is_url

_Found = TypeVar("_Found")
EXAMPLES = "a URL such as s3://bucket/folder or gs://bucket/folder"


def child_url(url: str, name: str) -> str:
    """Return the URL of what has a name in a folder."""
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
        self._files, root = self._asked("cannot be reached", lambda: url_to_fs(url))
        self._root: str = root.rstrip("/")

    def names(self) -> list[str]:
        """Return the names of all files in it, relative to it; none where it is not there.

        Raises:
            FileError: It cannot be listed.
        """
        return self._asked("cannot be listed", self._names)

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
            self._asked("cannot be written", partial(self._put, folder / name, name))

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
            self._asked("cannot be read", partial(self._files.get_file, there, str(target)))

    def write(self, name: str, text: str) -> None:
        """Write a small file of ASCII.

        Raises:
            FileError: It cannot be written.
        """
        self._asked("cannot be written", lambda: self._write(name, text))

    def _write(self, name: str, text: str) -> None:
        self._files.makedirs(self._root, exist_ok=True)
        self._files.pipe_file(f"{self._root}/{name}", text.encode("ascii"))

    def read(self, name: str) -> str:
        """Return what is in a small file.

        Raises:
            FileError: It is not there, or cannot be read.
        """
        there = f"{self._root}/{name}"
        found = self._asked("cannot be read", lambda: self._files.cat_file(there))
        return str(found, "utf-8", "replace")

    def state(self) -> str:
        """Return what changes where a file does: names, sizes and what the storage says of versions.

        Raises:
            FileError: It cannot be listed.
        """
        return self._asked("cannot be listed", self._state)

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
        self._asked("cannot be removed", lambda: self._remove(f"{self._root}/{name}".rstrip("/")))

    def _remove(self, there: str) -> None:
        self._files.invalidate_cache()
        if self._files.exists(there):
            self._files.rm(there, recursive=True)

    def _asked(self, problem: str, call: Callable[[], _Found]) -> _Found:
        """Return what a call of the storage returns; its failures, of as many kinds as there are libraries, as ours."""
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
