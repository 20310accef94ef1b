"""The CSV text of one table of a profile: written stably, read strictly."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from profiles.tables.points import ALLOWED_TEXT, TABLES, VALUE_COLUMNS, Key, Point, PointSource
from rlplan.errors import FileError, nearest_name
from rlplan.files.reading import read_text

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
