"""What a reader makes of a table: rows, each forecast or skipped with a reason, fitted on or held back.

Constants are fitted on half of the rows, by a hash of what was measured: of the settings of a row, never
its measured value. So a row keeps its side whatever file it stands in, and fits and reports agree without
a list of rows.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from rlplan.estimate import Estimate
from rlplan.results.accuracy import Row
from simulator.timeline.intervals import interval_seconds

Record = Mapping[str, str]

NO_DEVICE = "the table does not name its device: give it with --device"


class TableReader(Protocol):
    """Know a table by its columns and forecast its rows."""

    @property
    def name(self) -> str:
        """Return the schema's name, equal to the reader's file."""
        ...

    @property
    def about(self) -> str:
        """Return what is measured and what the forecast takes as given, for people."""
        ...

    def matches(self, columns: frozenset[str]) -> bool:
        """Tell whether a table with these columns is of this schema."""
        ...

    def rows(self, records: Sequence[Record]) -> Iterable[Row]:
        """Yield the forecast of every measurement of a table, in the order of its records.

        Each record has, beside the table's own columns, `device`: the device sheet that the user
        named or that a folder of the table's path names (`a100`, `h100`); empty if neither does.
        A cell that is no number where one is needed raises ValueError or KeyError, which
        `read_table` turns into a message with file, row and column.
        """
        ...


def forecast_row(
    reader: TableReader,
    index: int,
    label: str,
    measured_seconds: float,
    forecast: Estimate,
    *,
    kind: str = "",
    fitted: bool = False,
    note: str = "",
) -> Row:
    """Return a row with a forecast and the interval that its spread gives."""
    return Row(
        table=reader.name,
        index=index,
        label=label,
        kind=kind,
        measured_seconds=measured_seconds,
        forecast=forecast,
        fitted=fitted,
        note=note,
        interval_seconds=interval_seconds(forecast),
    )


def skipped_row(
    reader: TableReader,
    index: int,
    label: str,
    reason: str,
    *,
    kind: str = "",
    measured_seconds: float | None = None,
) -> Row:
    """Return a row without a forecast, with the reason."""
    return Row(
        table=reader.name,
        index=index,
        label=label,
        kind=kind,
        measured_seconds=measured_seconds,
        skipped=reason,
    )


def row_key(record: Record, columns: Sequence[str]) -> str:
    """Return the text that identifies a record: its values in these columns."""
    return "|".join(record[column].strip() for column in columns)


def fitted_on(key: str, *, share: float = 0.5) -> bool:
    """Tell whether the row of that key belongs to the share of rows that constants are fitted on."""
    return zlib.crc32(key.encode()) / 2**32 < share
