"""Level 1 of earlier searches, kept on disk by what it depends on: never read once anything differs.

A file holds the fronts of one job's roles, in a folder `rlplan` of `XDG_CACHE_HOME` or `~/.cache`. Its
name is a hash over the job (its name, objective and limits aside), what the user fixed, the sheets of
devices and engines, and the contents of all files that price. Devices with a measured profile are not
kept. What is broken, or cannot be written, is as if it were not there. `RLPLAN_CACHE=off` turns it off.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from planner.layouts.role_options import Home, RoleOption, Tally
from planner.placements.host import RULE_TASK
from profiles.facts import DeviceFacts, Facts
from rlplan.errors import FileError
from rlplan.files.writing import plain, write_bytes
from rlplan.job import Job, Role
from rlplan.plan import TaskDraft, TaskPlan
from rlplan.specs import NO_SPECS
from simulator.site import Site

SWITCH = "RLPLAN_CACHE"
ROOMS = ("rlplan", "profiles", "simulator", "planner")
PRICING_FILES = (".py", ".yaml", ".json", ".csv")

# A job's file is some 0.1 to 1 MB.
MOST_FILES = 64
MOST_FILE_BYTES = 8 * 2**20

LAYOUT_FIELDS = tuple(item.name for item in fields(TaskPlan))


@dataclass(frozen=True, slots=True)
class KeptFront:
    """Hold the front of one role on one site, with what making it looked at.

    Attributes:
        least: Bytes of the leanest layout (see `OptionTable.least_bytes`).
    """

    options: list[RoleOption]
    least: tuple[int, int] | None
    tally: Tally


class KeptFronts:
    """Hold what is known of one job's fronts; nothing is written before `save`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries = _read(path)
        self._is_new = False

    def find(self, role: Role, site: Site) -> KeptFront | None:
        """Return a role's front on a site, None if it is not kept."""
        entry = self._entries.get(_entry_key(role, site))
        try:
            return None if entry is None else _decoded(entry)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            return None

    def keep(self, role: Role, site: Site, front: KeptFront) -> None:
        """Remember a role's front on a site."""
        self._entries[_entry_key(role, site)] = _encoded(front)
        self._is_new = True

    def save(self) -> None:
        """Write what is new; a folder that cannot be written is left as it is."""
        if not self._is_new:
            return
        body = json.dumps(self._entries, allow_nan=False).encode()
        if len(body) > MOST_FILE_BYTES:
            return
        try:
            write_bytes(self.path, _digest(body).encode() + b"\n" + body)
            for old in _oldest_first(self.path.parent)[:-MOST_FILES]:
                old.unlink(missing_ok=True)
        except (OSError, FileError):
            return
        self._is_new = False


def kept_fronts(
    job: Job, facts: Facts, drafts: Mapping[str, TaskDraft], usable_fraction: float
) -> KeptFronts | None:
    """Return what is kept of a job's fronts; None where nothing is to be kept."""
    folder = _folder()
    devices = [facts.device(group.gpu) for group in job.cluster]
    own = type(facts) is Facts and all(type(each) is DeviceFacts for each in devices)
    if folder is None or not own or any(each.profile is not None for each in devices):
        return None
    fixed = (draft.engine for name, draft in drafts.items() if name != RULE_TASK)
    engines = {job.engines.train, job.engines.generate, *fixed}
    everything = {
        "sources": _sources(),
        "numpy": np.__version__,
        "job": plain(replace(job, name="", objective="throughput", specs=NO_SPECS)),
        "drafts": plain(drafts),
        "usable": usable_fraction,
        "devices": [plain(each.sheet) for each in devices],
        "engines": [plain(facts.engine(name)) for name in sorted(filter(None, engines))],
    }
    text = json.dumps(everything, sort_keys=True, default=repr)
    return KeptFronts(folder / f"{_digest(text.encode())}.json")


def _folder() -> Path | None:
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no", "false"):
        return None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "rlplan" / "fronts"
    except RuntimeError:  # there is no home
        return None


@cache
def _sources() -> str:
    """Return a hash over the contents of all files that decide what layouts cost."""
    root = Path(__file__).resolve().parents[2]
    found = hashlib.sha256()
    for path in sorted(_pricing_files(root)):
        found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def _pricing_files(root: Path) -> Iterator[Path]:
    for room in ROOMS:
        for path in (root / room).rglob("*"):
            if path.suffix in PRICING_FILES:
                yield path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    """Return the entries of a file, none if it is missing or not as it was written."""
    try:
        digest, _, body = path.read_bytes().partition(b"\n")
        if digest.decode() != _digest(body):
            return {}
        entries = json.loads(body)
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _oldest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))


def _entry_key(role: Role, site: Site) -> str:
    return repr((role, *astuple(site)))


def _encoded(front: KeptFront) -> dict[str, Any]:
    layouts: dict[TaskPlan, int] = {}
    options = [
        [
            [[name, layouts.setdefault(layout, len(layouts))] for name, layout in each.layouts],
            each.preparation_seconds,
            each.training_seconds,
            each.resident_bytes,
            each.transient_bytes,
            each.home,
        ]
        for each in front.options
    ]
    return {
        "layouts": [[getattr(layout, name) for name in LAYOUT_FIELDS] for layout in layouts],
        "options": options,
        "least": front.least,
        "considered": front.tally.considered,
        "pruned": front.tally.pruned,
    }


def _decoded(entry: dict[str, Any]) -> KeptFront:
    layouts = [TaskPlan(**dict(zip(LAYOUT_FIELDS, row, strict=True))) for row in entry["layouts"]]
    options = [
        RoleOption(
            tuple((name, layouts[place]) for name, place in chosen),
            prepare,
            train,
            resident,
            transient,
            None if home is None else Home(*home),
        )
        for chosen, prepare, train, resident, transient, home in entry["options"]
    ]
    least = entry["least"]
    tally = Tally(entry["considered"], entry["pruned"])
    return KeptFront(options, None if least is None else (least[0], least[1]), tally)
