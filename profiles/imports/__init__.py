"""Others' measurements as profiles: one file per format, whose name is what users type.

A format is a module of this folder with a function `read(source: Source) -> Imported`; a profile
that is made of it says where every point comes from.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from rlplan.errors import FileError
from rlplan.files.decoding import check_regular
from rlplan.plug_ins import PlugIns
from rlplan.profiles.catalog import load_device
from rlplan.profiles.tables.table import ALLOWED_TEXT, Key, Point, Profile, key_of, new_profile

# Standard deviations between the median and the 10th or 90th percentile of a normal distribution.
P90_DEVIATIONS: Final = 1.2816
UNKNOWN_MACHINE: Final = "measured by others; the machine is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Say what to import.

    Attributes:
        path: The table, the folder of tables, or None for what the format finds by itself.
        device: Name of the device sheet that the points are for.
        column_map: For `csv`: a YAML file that says which column is what.
    """

    path: Path | None
    device: str
    column_map: Path | None = None

    def require_path(self, format_name: str) -> Path:
        """Return the path.

        Raises:
            FileError: None was given, or there is nothing at it.
        """
        if self.path is None:
            raise FileError("PATH", f"is needed to import {format_name}")
        if not self.path.exists():
            raise FileError(str(self.path), "no such file or folder")
        return self.path


@dataclass
class Imported:
    """Collect points by table, the files they come from, and why rows were left out."""

    origin: str
    software: Mapping[str, str] = field(default_factory=dict)
    points: dict[tuple[str, Key], list[Point]] = field(default_factory=dict)
    files: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        file: Path,
        table: str,
        keys: Mapping[str, str | int],
        *,
        seconds: float,
        mean_seconds: float | None = None,
        deviation_seconds: float = 0.0,
        repeats: int = 1,
    ) -> None:
        """Add a measurement; several of one key are summed up by their medians.

        Args:
            seconds: The median, or the only value known.
        """
        for column, value in keys.items():
            allowed = ALLOWED_TEXT.get((table, column))
            if allowed and value not in allowed:
                self.leave_out(f"{table}: {column} {value!r} is not one of {', '.join(allowed)}")
                return
        if not (np.isfinite(seconds) and seconds > 0):
            self.leave_out(f"{table}: not measured, or shorter than the profiler's resolution")
            return
        reach = P90_DEVIATIONS * deviation_seconds
        point = Point(
            seconds_median=seconds,
            seconds_p10=max(0.0, seconds - reach),
            seconds_p90=seconds + reach,
            seconds_mean=mean_seconds or seconds,
            repeats=repeats,
        )
        self.points.setdefault((table, key_of(table, keys)), []).append(point)
        self.files[f"{file.parent.name}/{file.name} -> {table}"] += 1

    def leave_out(self, reason: str, rows: int = 1) -> None:
        """Count rows that have no place in a profile."""
        self.left_out[reason] += rows


def read_csv(path: Path) -> pd.DataFrame:
    """Return a CSV table.

    Raises:
        FileError: It is none.
    """
    check_regular(path)
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise FileError(str(path), f"is not a CSV table: {error}") from None


FORMATS = PlugIns[Callable[[Source], Imported]](
    __name__, __path__, kind="format", attribute="read", dashes=False
)


def import_profile(format_name: str, source: Source) -> tuple[Profile, Imported]:
    """Return others' measurements as a finished profile, and what was left out.

    Raises:
        UnknownNameError: The format or the device is not known.
        FileError: A file is missing, is not of this format, or holds no point.
    """
    read = FORMATS.load(format_name)
    load_device(source.device)
    found = read(source)
    if not found.points:
        reasons = "; ".join(found.left_out) or "it has no rows"
        raise FileError(str(source.path), f"holds nothing to import as {format_name}: {reasons}")
    files = "; ".join(f"{name} ({rows} rows)" for name, rows in sorted(found.files.items()))
    profile = new_profile(
        f"{format_name}-{source.device}",
        source.device,
        {"fingerprint": UNKNOWN_MACHINE},
        found.software,
        source=f"{found.origin}: {files}",
    )
    for (table, key), points in sorted(found.points.items()):
        profile.put(table, key, _summed_up(points))
    profile.finish()
    return profile, found


def _summed_up(points: list[Point]) -> Point:
    """Return one point for several measurements of the same thing."""
    if len(points) == 1:
        return points[0]
    median = float(np.median([point.seconds_median for point in points]))
    low = float(np.median([point.seconds_p10 for point in points]))
    high = float(np.median([point.seconds_p90 for point in points]))
    return Point(
        seconds_median=median,
        seconds_p10=min(low, median),
        seconds_p90=max(high, median),
        seconds_mean=float(np.median([point.seconds_mean for point in points])),
        repeats=sum(point.repeats for point in points),
    )
