"""A profile: what operations cost on one device, measured. A folder with a header and CSV tables.

`docs/profile-format.md` describes the files. Tables are written sorted by key and floats so that
reading gives the same values, so two writes of one profile are the same bytes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import numpy as np

from profiles.tables.points import TABLES, Key, Point, key_of
from profiles.tables.table_rows import read_table, table_text
from rlplan.errors import FileError, nearest_name
from rlplan.files.decoding import check_version, decode, load_yaml
from rlplan.files.frozen import FrozenDict, freeze
from rlplan.files.limits import NonNegativeInt, Positive
from rlplan.files.writing import write_text, write_yaml

PROFILE_VERSION: Final = 1
HEADER_FILE: Final = "profile.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Say what a profile measured, where, when and with what.

    Attributes:
        device: Name of the device sheet that the points are for.
        created: Start of the measurement, ISO 8601 in UTC.
        machine: At least `fingerprint`; what else is known of the machine, for people.
        software: Versions of what ran, by name.
        source: Where the points come from, when they were not measured by `rlplan profile`.
        context_bytes: What a worker of the executor holds of a device beside models, at its peak; 0 if
            that was not measured.
        loop_flops_per_second: What the slowest device did in a fixed loop (`executor.probing.loop`), all of them
            busy: at the start and the end of each session; empty if that was not measured.
        nodes: Addresses of the nodes between which collectives of several nodes were measured; all else was measured
            on the first. Empty where none were.
        network: How these reached each other: `backend`, and the `interface` of each node.
        complete: Whether the whole set of points was finished.
    """

    version: Literal[1] = PROFILE_VERSION
    name: str
    device: str
    created: str
    machine: FrozenDict[str, str]
    software: FrozenDict[str, str] = FrozenDict()
    source: str = ""
    context_bytes: NonNegativeInt = 0
    loop_flops_per_second: tuple[Positive, ...] = ()
    nodes: tuple[str, ...] = ()
    network: FrozenDict[str, str] = FrozenDict()
    complete: bool = False


class Profile:
    """Hold the points of all tables, in memory; `write` and `read_profile` move them to disk."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self._tables: dict[str, dict[Key, Point]] = {table: {} for table in TABLES}
        self._home: Path | None = None
        self._changed: set[str] = set()

    @property
    def complete(self) -> bool:
        """Tell whether the whole set of points was finished."""
        return self.header.complete

    def finish(self) -> None:
        """Mark the set of points as finished; `write` stores it."""
        self.header = replace(self.header, complete=True)

    def note_context(self, context_bytes: int) -> None:
        """Say what a worker holds of a device beside models; `write` stores it."""
        self.header = replace(self.header, context_bytes=context_bytes)

    def note_loop(self, flops_per_second: float) -> None:
        """Say how fast the machine is now, beside what is known from before; `write` stores it."""
        rates = (*self.header.loop_flops_per_second, flops_per_second)
        self.header = replace(self.header, loop_flops_per_second=rates)

    def note_nodes(self, nodes: Sequence[str], network: Mapping[str, str]) -> None:
        """Say between which nodes collectives are measured, and over what; `write` stores it."""
        self.header = replace(self.header, nodes=tuple(nodes), network=freeze(network))

    def add(self, table: str, keys: Mapping[str, str | int], seconds: Sequence[float]) -> Point:
        """Store the seconds of each repeat of one operation, replacing an earlier point."""
        assert seconds, f"no repeats for {table} {dict(keys)}"
        assert all(math.isfinite(each) and each >= 0 for each in seconds), (table, keys, seconds)
        p10, median, p90 = (float(each) for each in np.percentile(seconds, (10, 50, 90)))
        point = Point(
            seconds_median=median,
            seconds_p10=min(p10, median),
            seconds_p90=max(p90, median),
            seconds_mean=float(np.minimum(seconds, p90).mean()),
            repeats=len(seconds),
        )
        self.put(table, key_of(table, keys), point)
        return point

    def put(self, table: str, key: Key, point: Point) -> None:
        """Store a point as it is."""
        self._tables[table][key] = point
        self._changed.add(table)

    def get(self, table: str, keys: Mapping[str, str | int]) -> Point | None:
        """Return this very point, or None when it was not measured."""
        return self._tables[table].get(key_of(table, keys))

    def points(self, table: str) -> Mapping[Key, Point]:
        """Return all points of a table by key, sorted by key."""
        return dict(sorted(self._tables[table].items()))

    def __len__(self) -> int:
        return sum(len(points) for points in self._tables.values())

    def write(self, folder: Path) -> None:
        """Write the profile; each file whole or not at all, and only the tables that changed.

        The header comes last: a folder has one only when its tables are this profile's.
        """
        if folder != self._home:
            self._changed = set(TABLES)
            (folder / HEADER_FILE).unlink(missing_ok=True)
        for table in sorted(self._changed):
            path = folder / f"{table}.csv"
            if self._tables[table]:
                write_text(path, table_text(table, self.points(table)))
            else:
                path.unlink(missing_ok=True)
        write_yaml(folder / HEADER_FILE, self.header)
        self._home = folder
        self._changed = set()

    def settle(self, folder: Path) -> None:
        """Take `folder` as the place that already holds all points of this profile."""
        self._home = folder
        self._changed = set()


def new_profile(
    name: str,
    device: str,
    machine: Mapping[str, str],
    software: Mapping[str, str],
    *,
    source: str = "",
) -> Profile:
    """Return a profile without points, created now.

    Args:
        machine: What identifies the machine; holds at least `fingerprint`.
    """
    assert "fingerprint" in machine, machine
    return Profile(
        Header(
            name=name,
            device=device,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=freeze(machine),
            software=freeze(software),
            source=source,
        )
    )


def read_profile(folder: Path) -> Profile:
    """Return the profile of a folder (or of its `profile.yaml`).

    Raises:
        FileError: A file is missing, of another version, or holds something that is not allowed.
    """
    folder = folder.parent if folder.name == HEADER_FILE else folder
    if not folder.is_dir():
        siblings = [each.name for each in folder.parent.glob("*") if each.is_dir()]
        raise FileError(
            str(folder),
            "is no profile: no such folder",
            nearest=nearest_name(folder.name, siblings),
        )
    profile = Profile(_read_header(folder / HEADER_FILE))
    for path in sorted(folder.glob("*.csv")):
        if path.stem not in TABLES:
            raise FileError(
                str(path),
                "unknown table",
                allowed=", ".join(TABLES),
                nearest=nearest_name(path.stem, TABLES),
            )
        for key, point in read_table(path):
            profile.put(path.stem, key, point)
    profile.settle(folder)
    return profile


def read_profiles(folder: Path) -> tuple[Profile, ...]:
    """Return the profile of a folder, or those of a cluster's devices: one in each folder inside.

    Raises:
        FileError: As `read_profile`, or two of them are of one device.
    """
    inside = sorted(path.parent for path in folder.glob(f"*/{HEADER_FILE}"))
    if folder.name == HEADER_FILE or (folder / HEADER_FILE).exists() or not inside:
        return (read_profile(folder),)
    found = tuple(read_profile(each) for each in inside)
    for place, profile in enumerate(found):
        device = profile.header.device
        if device in (each.header.device for each in found[:place]):
            problem = "is a second profile of this device"
            raise FileError(str(inside[place] / HEADER_FILE), problem, field="device", value=device)
    return found


def _read_header(path: Path) -> Header:
    data = load_yaml(path)
    check_version(data, PROFILE_VERSION, str(path), "profile")
    header = decode(Header, data, str(path))
    if "fingerprint" not in header.machine:
        raise FileError(str(path), "is missing", field="machine.fingerprint")
    return header
