"""Any CSV table, by a map that says which of its columns is what.

    table: gemm                              # a table of the profile format
    columns: {m: tokens, k: inner, n: outer, seconds: milliseconds}
    constants: {precision: bf16}             # keys that no column holds
    seconds_per_unit: 0.001                  # of the times; 1 by default
    source: "who measured it, and how"

`columns` has every key of the table that `constants` lacks, and `seconds`; `deviation` (one
standard deviation) and `repeats` may be added.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd

from rlplan.errors import FileError, nearest_name
from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import Positive
from rlplan.profiles.imports import Imported, Source, read_csv
from rlplan.profiles.tables.table import TABLES

VALUES: Final = ("seconds", "deviation", "repeats")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMap:
    """Say which column of a table is what.

    Attributes:
        columns: Column by key of the profile's table, and by `seconds`, `deviation`, `repeats`.
        constants: Values of keys that are the same in every row.
    """

    table: str
    columns: FrozenDict[str, str]
    constants: FrozenDict[str, str | int] = FrozenDict()
    seconds_per_unit: Positive = 1.0
    source: str


def read(source: Source) -> Imported:
    """Return the points of a CSV table by its column map.

    Raises:
        FileError: The table or the map is missing or wrong.
    """
    path = source.require_path("csv")
    if source.column_map is None:
        raise FileError(str(path), "needs a column map to be imported as csv: give --map")
    column_map = read_yaml(ColumnMap, source.column_map)
    _check_map(source.column_map, column_map)
    table = _table(path, column_map)
    found = Imported(origin=column_map.source)
    for line, row in enumerate(table.to_dict("records"), start=2):
        cells = {key: row[column] for key, column in column_map.columns.items()}
        try:
            keys: dict[str, str | int] = {
                key: kind(cells[key] if key in cells else column_map.constants[key])
                for key, kind in TABLES[column_map.table].items()
            }
            unit = column_map.seconds_per_unit
            found.add(
                path,
                column_map.table,
                keys,
                seconds=float(cells["seconds"]) * unit,
                deviation_seconds=float(cells.get("deviation", 0.0)) * unit,
                repeats=max(1, int(cells.get("repeats", 1))),
            )
        except (ValueError, TypeError) as error:
            raise FileError(str(path), f"cannot be read: {error}", field=f"line {line}") from None
    return found


def _check_map(path: Path, column_map: ColumnMap) -> None:
    name = column_map.table
    if name not in TABLES:
        raise FileError(
            str(path),
            "unknown table",
            field="table",
            value=name,
            allowed=", ".join(TABLES),
            nearest=nearest_name(name, TABLES),
        )
    known = (*TABLES[name], *VALUES)
    given = (*column_map.columns, *column_map.constants)
    for key in given:
        if key not in known:
            raise FileError(
                str(path),
                f"is no key of {name}",
                field=f"columns.{key}",
                allowed=", ".join(known),
                nearest=nearest_name(key, known),
            )
    for key in (*TABLES[name], "seconds"):
        if key not in given:
            raise FileError(str(path), "is missing", field=f"columns.{key}")


def _table(path: Path, column_map: ColumnMap) -> pd.DataFrame:
    table = read_csv(path)
    for key, column in column_map.columns.items():
        if column not in table.columns:
            raise FileError(
                str(path),
                f"misses the column for {key}",
                field=column,
                allowed=", ".join(map(str, table.columns)),
                nearest=nearest_name(column, [*map(str, table.columns)]),
            )
    return table
