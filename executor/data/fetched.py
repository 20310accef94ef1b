"""Folders of models behind URLs, as this machine keeps them: fetched once, and anew where they have changed."""

import hashlib
import os
from functools import cache, partial
from pathlib import Path

from rlplan.errors import FileError
from rlplan.executor.data.remote_folders import RemoteFolder, fetched_once

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
