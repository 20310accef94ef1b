"""What a profile holds: one row per table to print, one data frame per table to draw."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from rlplan.files.frozen import FrozenDict
from rlplan.profiles.tables.measurements import relative_spread
from rlplan.profiles.tables.table import TABLES, Key, Point, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary:
    """Say what one table of a profile covers.

    Attributes:
        ranges: By key column, its values: `8 to 512 (4 values)`, or the texts, or the one value.
        seconds_low: Shortest median.
        seconds_high: Longest median.
        spread_fraction: Median over the points of one standard deviation over the median.
    """

    table: str
    points: int
    ranges: FrozenDict[str, str]
    seconds_low: float
    seconds_high: float
    spread_fraction: float


def summarize(profile: Profile) -> tuple[TableSummary, ...]:
    """Return a row for every table that has points, in the order of the format."""
    tables = ((table, profile.points(table)) for table in TABLES)
    return tuple(_summary(table, points) for table, points in tables if points)


def frames(profile: Profile) -> dict[str, pd.DataFrame]:
    """Return every table that has points, with its key columns and the points' values."""
    return {
        table: pd.DataFrame(
            [
                {**dict(zip(TABLES[table], key, strict=True)), **asdict(point)}
                for key, point in profile.points(table).items()
            ]
        )
        for table in TABLES
        if profile.points(table)
    }


def _summary(table: str, points: Mapping[Key, Point]) -> TableSummary:
    columns = zip(TABLES[table], zip(*points, strict=True), strict=True)
    medians = [point.seconds_median for point in points.values()]
    spreads = [relative_spread(point) for point in points.values()]
    return TableSummary(
        table=table,
        points=len(points),
        ranges=FrozenDict({column: _range(values) for column, values in columns}),
        seconds_low=min(medians),
        seconds_high=max(medians),
        spread_fraction=float(np.median(spreads)),
    )


def _range(values: tuple[str | int, ...]) -> str:
    distinct = sorted(set(values))
    if len(distinct) == 1 or isinstance(distinct[0], str):
        return ", ".join(str(value) for value in distinct)
    return f"{distinct[0]} to {distinct[-1]} ({len(distinct)} values)"
