"""Lengths in a trace: a column of a file of rows, in tokens."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlplan.errors import FileError, nearest_name, unreadable
from rlplan.files.decoding import check_regular
from rlplan.workload import Empirical, TraceFile

# The csv module files surplus fields of a row under None.
Row = dict[str | None, Any]
# A plan holds a copy of its lengths; more would make it slow to read and to hash, and quantiles
# this fine move no mean or tail by more than one part in a thousand.
MAX_VALUES = 4096


def read_trace(trace: TraceFile, file: Path) -> Empirical:
    """Return the lengths of a trace's column, in tokens, cut at `trace.max`.

    Of more than 4,096 lengths as many quantiles are kept, the longest among them.

    Raises:
        FileError: The file or its column is missing, or an entry is no whole number from 1.
    """
    rows = _json_rows if file.suffix.lower() in (".jsonl", ".ndjson") else _csv_rows
    if file.suffix.lower() not in (".jsonl", ".ndjson", ".csv"):
        raise FileError(str(file), "is no trace", value=file.suffix, allowed=".csv, .jsonl")
    check_regular(file, None)
    try:
        values = [_tokens(file, trace.column, line, row) for line, row in rows(file)]
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(file), error) from None
    except csv.Error as error:
        raise FileError(str(file), f"cannot be read: {error}") from None
    if not values:
        raise FileError(str(file), "has no rows", field=trace.column)
    if trace.max is not None:
        values = [min(value, trace.max) for value in values]
    return Empirical(values=_at_most(values, MAX_VALUES))


def _at_most(values: list[int], count: int) -> tuple[int, ...]:
    if len(values) <= count:
        return tuple(values)
    places = np.linspace(0, len(values) - 1, count).round().astype(int)
    ordered = sorted(values)
    return tuple(ordered[place] for place in places)


def _csv_rows(file: Path) -> Iterator[tuple[int, Row]]:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream, skipinitialspace=True)
        for row in reader:
            yield reader.line_num, row


def _json_rows(file: Path) -> Iterator[tuple[int, Row]]:
    with file.open(encoding="utf-8") as stream:
        for line, text in enumerate(stream, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except json.JSONDecodeError as error:
                raise FileError(
                    str(file), f"is not JSON: {error.msg}", field=f"line {line}"
                ) from None
            if not isinstance(row, dict):
                raise FileError(str(file), "is not a JSON object", field=f"line {line}")
            yield line, row


def _tokens(file: Path, column: str, line: int, row: Row) -> int:
    if column not in row:
        known = [key for key in row if key is not None]
        raise FileError(
            str(file),
            "has no such column",
            field=f"line {line}",
            value=column,
            allowed=", ".join(known),
            nearest=nearest_name(column, known),
        )
    found = row[column]
    try:
        number = float("nan") if isinstance(found, bool) else float(found)
    except (TypeError, ValueError):
        number = float("nan")
    if number < 1 or not number.is_integer():
        raise FileError(
            str(file),
            "is not a length in tokens",
            field=f"line {line}, {column}",
            value="nothing" if found is None else found,
            allowed="a whole number from 1",
        )
    return int(number)
