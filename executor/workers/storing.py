"""A rank's part of a checkpoint: written into a folder or sent to a URL, fetched once a node."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlplan.executor.data.remote_folders import RemoteFolder, checksums, fetch_whole, fetched_once
from rlplan.executor.workers.calls import RANDOM_FOLDER, StoreCall


def store(call: StoreCall, write: Callable[[StoreCall], None]) -> Mapping[str, str]:
    """Write a rank's part of a checkpoint.

    Returns:
        Checksums of the files that were sent to a URL, by their paths; none of what lies in a folder.

    Raises:
        FileError: It cannot be written.
    """
    if not call.url:
        write(call)
        return {}
    with tempfile.TemporaryDirectory(prefix="rlplan-stored-") as made:
        folder = Path(made)
        (folder / RANDOM_FOLDER).mkdir()
        write(replace(call, folder=folder, url=""))
        RemoteFolder(call.url).send(folder)
        return checksums(folder)


def fetch(call: StoreCall) -> None:
    """Fetch a checkpoint from its URL to this node, if no other rank has done so.

    Raises:
        FileError: It cannot be read, or a file of it is not as it was written.
    """
    if not call.url:
        return
    fetched_once(_copy(call.url), partial(fetch_whole, call.url))


def fetched(call: StoreCall) -> StoreCall:
    """Return a call whose folder is on this node."""
    return replace(call, folder=_copy(call.url), url="") if call.url else call


def clear(call: StoreCall) -> None:
    """Clear away what was fetched."""
    if call.url:
        shutil.rmtree(_copy(call.url), ignore_errors=True)


def _copy(url: str) -> Path:
    """Return where this node keeps what it fetches from a URL."""
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"rlplan-fetched-{os.getuid()}", name)
