"""What a reader makes of a table: rows, each forecast or skipped with a reason."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rlplan.estimate import Estimate
from simulator.intervals import interval_seconds

Record = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Hold one measurement with its forecast.

    Attributes:
        table: Name of the reader; `read_table` puts the file's name in its place.
        index: Position of the record in the file, from 0; a record may hold several measurements.
        label: What was measured, for people ("7B TP2 PP1 DP4, micro-batch 8").
        kind: Measurements of a table that are judged apart (an operator, an engine, a system).
        measured_seconds: None where a skipped record holds no number.
        forecast: None for a skipped row.
        skipped: Why there is no forecast.
        fitted: Whether a constant of ours was fitted on this row.
        note: What was searched or assumed where the table does not say it.
        interval_seconds: (p10, p90) of the forecast; None for a skipped row.
    """

    table: str
    index: int
    label: str
    kind: str = ""
    measured_seconds: float | None = None
    forecast: Estimate | None = None
    skipped: str | None = None
    fitted: bool = False
    note: str = ""
    interval_seconds: tuple[float, float] | None = None

    @property
    def error_fraction(self) -> float | None:
        """Return (forecast - measured) / measured; None for a skipped row."""
        if self.forecast is None or self.measured_seconds is None:
            return None
        return (self.forecast.seconds - self.measured_seconds) / self.measured_seconds

    @property
    def inside_interval(self) -> bool | None:
        """Tell whether the measurement lies between p10 and p90; None for a skipped row."""
        if self.interval_seconds is None or self.measured_seconds is None:
            return None
        return self.interval_seconds[0] <= self.measured_seconds <= self.interval_seconds[1]


class TableReader(Protocol):
    """Know a table by its columns and forecast its rows.

    Attributes:
        name: The schema's name, equal to the reader's file.
        about: One line for people: what is measured and what the forecast takes as given.
    """

    name: str
    about: str

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
