"""Checksums of the files of a folder, by which one tells whether it is as it was written."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlplan.errors import FileError
from rlplan.executor.data.remote_folders import RemoteFolder
from rlplan.files.decoding import decode, load_json
from rlplan.files.frozen import FrozenDict
from rlplan.files.reading import check_regular

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
    """Fetch all that is behind a URL, and refuse it where a file is not as the manifest there says.

    Raises:
        FileError: It cannot be read, or names the file that is another one.
    """
    RemoteFolder(url).fetch(into)
    check_whole(url, read_manifest(into), checksums(into))


def fetch_files(url: str, into: Path, written: Mapping[str, str]) -> None:
    """Fetch some of the files behind a URL, and refuse one that is not as it was written.

    Args:
        written: Their checksums of then, by name.

    Raises:
        FileError: One cannot be read, or is another one.
    """
    RemoteFolder(url).fetch(into, sorted(written))
    check_whole(url, written, checksums(into))


def check_whole(place: str, written: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Refuse a folder of which a file is not as it was written.

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
