"""A profile: what operations cost on one device, measured. A folder with a header and CSV tables.

`docs/profile-format.md` describes the files. Tables are written sorted by key and floats so that
reading gives the same values, so two writes of one profile are the same bytes.
"""

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final, Literal

import numpy as np

from rlplan.errors import FileError, nearest_name
from rlplan.files.decoding import check_version, decode, load_yaml, read_text
from rlplan.files.frozen import FrozenDict, freeze
from rlplan.files.limits import NonNegativeInt, Positive
from rlplan.files.writing import plain, write_text, write_yaml
from rlplan.models import ModelArchitecture
from rlplan.probing import ModelPass

Key = tuple[str | int, ...]
PointSource = Literal["measured", "fitted"]

# Key columns by table, in the order of the files; `str` columns group, `int` columns interpolate.
TABLES: Final[Mapping[str, Mapping[str, type]]] = {
    "gemm": {"precision": str, "m": int, "k": int, "n": int},
    "attention": {
        "direction": str,
        "precision": str,
        "batch": int,
        "query_tokens": int,
        "cached_tokens": int,
        "q_heads": int,
        "kv_heads": int,
        "head_dim": int,
    },
    "norm": {"direction": str, "precision": str, "tokens": int, "hidden": int},
    "embedding": {"direction": str, "precision": str, "tokens": int, "hidden": int, "vocab": int},
    "optimizer": {"precision": str, "parameters": int},
    "collective": {"kind": str, "ranks": int, "ranks_per_node": int, "num_bytes": int},
    "copy": {"direction": str, "num_bytes": int},
    "call": {"kind": str, "num_bytes": int},
    "host_step": {"part": str, "tp": int, "sequences": int},
    "model_pass": {
        "name": str,
        "model": str,
        "num_layers": int,
        "head": str,
        "precision": str,
        "tp": int,
        "dp": int,
        "sequences": int,
        "tokens": int,
    },
}
# The kind of calls of storage actors.
QUEUE_CALL: Final = "queue_call"
VALUE_COLUMNS: Final = (
    "seconds_median",
    "seconds_p10",
    "seconds_p90",
    "seconds_mean",
    "repeats",
    "source",
)

# What a text column may hold, by (table, column); columns that are not here take any text.
_PASSES = ("forward", "backward")
_PRECISIONS = ("fp32", "bf16", "fp16")
ALLOWED_TEXT: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("gemm", "precision"): _PRECISIONS,
    ("attention", "precision"): _PRECISIONS,
    ("norm", "precision"): _PRECISIONS,
    ("embedding", "precision"): _PRECISIONS,
    ("optimizer", "precision"): _PRECISIONS,
    ("model_pass", "precision"): _PRECISIONS,
    ("model_pass", "head"): ("lm", "scalar"),
    ("attention", "direction"): _PASSES,
    ("norm", "direction"): _PASSES,
    ("embedding", "direction"): _PASSES,
    ("copy", "direction"): ("host_to_device", "device_to_host", "device_to_device"),
    ("collective", "kind"): (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "send_recv",
    ),
}


# The tables of a profile: their key columns, what those may hold, and one point.
#
# `docs/profile-format.md` describes the files.


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Hold the seconds of one operation over its repeats.

    Attributes:
        seconds_mean: The mean, repeats beyond the 90th percentile counted as that. Look-ups answer
            with it: a task is a sum of many operations, the expected sum is the sum of the means,
            and on a machine whose speed changes medians add up to less.
    """

    seconds_median: float
    seconds_p10: float
    seconds_p90: float
    seconds_mean: float
    repeats: int
    source: PointSource = "measured"

    @property
    def spread_seconds(self) -> float:
        """Return one standard deviation in seconds, as if the repeats were normal.

        A normal distribution has 2.563 standard deviations between its 10th and 90th percentile.
        """
        return (self.seconds_p90 - self.seconds_p10) / 2.563


def key_of(table: str, keys: Mapping[str, str | int]) -> Key:
    """Return a point's keys in the order of the table's columns."""
    columns = TABLES[table]
    assert set(keys) == set(columns), f"{table} is keyed by {list(columns)}, not {list(keys)}"
    return tuple(kind(keys[column]) for column, kind in columns.items())


def model_pass_keys(model_pass: ModelPass) -> dict[str, str | int]:
    """Return the keys under which a pass of a model is stored in `model_pass`."""
    return {
        "name": model_pass.name,
        "model": architecture_digest(model_pass.model),
        "num_layers": model_pass.model.num_layers,
        "head": model_pass.head,
        "precision": model_pass.precision,
        "tp": model_pass.tp,
        "dp": model_pass.dp,
        "sequences": model_pass.sequences,
        "tokens": model_pass.tokens,
    }


@cache
def architecture_digest(model: ModelArchitecture) -> str:
    """Return a short digest of an architecture without its name, source and number of layers."""
    left_out = ("name", "source", "num_layers")
    content = {key: value for key, value in plain(model).items() if key not in left_out}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


_SOURCES: Mapping[str, PointSource] = {"measured": "measured", "fitted": "fitted"}


def table_text(table: str, points: Mapping[Key, Point]) -> str:
    """Return the CSV text of a table's points, in their order."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*TABLES[table], *VALUE_COLUMNS))
    for key, point in points.items():
        # `repr` of a float reads back as the same float.
        values = (getattr(point, field.name) for field in fields(point))
        writer.writerow((*key, *(repr(v) if isinstance(v, float) else v for v in values)))
    return stream.getvalue()


def read_table(path: Path) -> Iterable[tuple[Key, Point]]:
    """Yield the points of a table's file, whose name is the table's.

    Raises:
        FileError: A column, a row or a cell is not as it must be; the message names its place.
    """
    columns = (*TABLES[path.stem], *VALUE_COLUMNS)
    reader = csv.reader(io.StringIO(read_text(path)), strict=True)
    seen: set[Key] = set()
    try:
        header = next(reader, [])
        _check_columns(path, header, columns)
        for cells in reader:
            row = _Row(path, reader.line_num, header, cells)
            key = row.key()
            if key in seen:
                raise FileError(str(path), "holds a point twice", field=f"row {row.number}")
            seen.add(key)
            yield key, row.point()
    except csv.Error as error:
        raise FileError(str(path), f"is not CSV: {error}", field=f"row {reader.line_num}") from None


def _check_columns(path: Path, header: Sequence[str], columns: Sequence[str]) -> None:
    for column in columns:
        if column not in header:
            raise FileError(str(path), "misses a column", field=column, allowed=", ".join(columns))
    for column in header:
        if column not in columns or header.count(column) > 1:
            raise FileError(
                str(path),
                "has a column twice" if column in columns else "has an unknown column",
                field=column,
                allowed=", ".join(columns),
                nearest=None if column in columns else nearest_name(column, columns),
            )


class _Row:
    """Read one row of a table, with messages that name its place."""

    def __init__(self, path: Path, number: int, header: list[str], cells: list[str]) -> None:
        self.path, self.number = path, number
        if len(cells) != len(header):
            raise FileError(
                str(path),
                "has a row of another length than the header",
                field=f"row {number}",
                value=len(cells),
                allowed=f"{len(header)} cells",
            )
        self.cells = dict(zip(header, cells, strict=True))

    def key(self) -> Key:
        table = self.path.stem
        return tuple(
            self._whole(column) if kind is int else self._text(table, column)
            for column, kind in TABLES[table].items()
        )

    def point(self) -> Point:
        median, p10, p90, mean = (self._seconds(column) for column in VALUE_COLUMNS[:4])
        if not p10 <= median <= p90:
            raise self._error("seconds_median", "must lie between seconds_p10 and seconds_p90")
        source = _SOURCES.get(self.cells["source"])
        if source is None:
            raise self._error("source", "is not known", ", ".join(_SOURCES))
        repeats = self._whole("repeats")
        if repeats < 1:
            raise self._error("repeats", "must be at least 1")
        return Point(
            seconds_median=median,
            seconds_p10=p10,
            seconds_p90=p90,
            seconds_mean=mean,
            repeats=repeats,
            source=source,
        )

    def _text(self, table: str, column: str) -> str:
        value = self.cells[column]
        allowed = ALLOWED_TEXT.get((table, column))
        if not value or (allowed and value not in allowed):
            raise self._error(column, "is not known", ", ".join(allowed) if allowed else "a name")
        return value

    def _whole(self, column: str) -> int:
        text = self.cells[column]
        if not (text.isascii() and text.isdigit()):
            raise self._error(column, "is not a whole number", "0, 1, 2, ...")
        return int(text)

    def _seconds(self, column: str) -> float:
        try:
            value = float(self.cells[column])
        except ValueError:
            raise self._error(column, "is not a number", "seconds") from None
        if not (math.isfinite(value) and value >= 0):
            raise self._error(column, "must be finite and not negative", "seconds")
        return value

    def _error(self, column: str, problem: str, allowed: str | None = None) -> FileError:
        return FileError(
            str(self.path),
            problem,
            field=f"row {self.number}, column {column}",
            value=self.cells[column],
            allowed=allowed,
        )


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
        loop_flops_per_second: What the slowest device did in a fixed loop (`rlplan.executor.probing`), all of them
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
