"""Models that Hugging Face's cache on this machine holds, found by their ids; nothing is downloaded.

Layout and variables are those of huggingface_hub (its guide "Understand caching", and its reference of environment
variables): `models--<organisation>--<name>/snapshots/<commit>/`, `refs/<revision>` naming the commit.
"""

import os
import re
from pathlib import Path
from typing import Final

from rlplan.models import CONFIG_FILE

_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
_FOLDER: Final = re.compile(r"models--([\w.]|-(?!-))+--(?P<name>[\w.-]+)")
_MAIN: Final = "main"


def cached_config(name: str) -> Path | None:
    """Return the config.json of a model that is in the cache, by its id; None where there is none.

    Of several snapshots it is that of the revision `main`, else the one that was written last.
    """
    if not _ID.fullmatch(name):
        return None
    folder = _cache() / f"models--{name.replace('/', '--')}"
    snapshots, main = folder / "snapshots", folder / "refs" / _MAIN
    if main.is_file():
        config = snapshots / main.read_text(encoding="utf-8").strip() / CONFIG_FILE
        if config.is_file():
            return config
    found = [path for path in snapshots.glob(f"*/{CONFIG_FILE}") if path.is_file()]
    return max(found, key=lambda path: (path.stat().st_mtime, path.parent.name), default=None)


def cached_name(path: Path) -> str | None:
    """Return the name of the model whose folder of the cache a path lies in; None of other paths."""
    folders = (_FOLDER.fullmatch(part) for part in reversed(path.parts))
    return next((found["name"] for found in folders if found), None)


def _cache() -> Path:
    """Return the folder of the cache, as huggingface_hub looks for it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        told = os.environ.get(variable)
        if told:
            return Path(told).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return usual / "huggingface" / "hub"
