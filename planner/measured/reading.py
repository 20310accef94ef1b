"""Find the reader of a table by its columns, and let it forecast the rows."""

import csv
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rlplan.calibration import Calibration
from rlplan.errors import FileError
from rlplan.files.decoding import check_regular, encoding_of
from rlplan.files.frozen import FrozenDict
from rlplan.planner.measured.rows import (
    FIRST_LINE,
    NO_CAUSES,
    KnownCauses,
    Record,
    TableReader,
    findings_of,
)
from rlplan.planner.measured.tables import READERS
from rlplan.profiles.catalog import device_names, load_device
from rlplan.profiles.sheets import canonical_name
from rlplan.results.accuracy import Row, TableFindings
from rlplan.simulator.calibration import calibrate
from rlplan.simulator.observations import observations_of

# So many other rows are calibrated on, one at a time: more of a large group say the same.
MOST_PARTNERS = 8
# What readers and forecasts raise of a cell that they cannot take.
BAD_CELL = (ValueError, LookupError, ArithmeticError, TypeError, AssertionError)

# A table's columns and its records.
Loaded = tuple[list[str], list[Record]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownTables:
    """Hold which tables can be read, and what is known of them beside what they say.

    Attributes:
        readers: By the names of their schemas.
        paths: Tables that are read where none is named.
        published: Returns the tables of a schema whose rows constants may have been fitted on; None if there
            are none of any schema.
        causes: What is known of the misses of tables, by their names.
        elsewhere: Where readers of other tables are, for a message; empty if there are none.
    """

    readers: Mapping[str, TableReader]
    paths: tuple[Path, ...] = ()
    published: Callable[[str], Sequence[Loaded]] | None = None
    causes: FrozenDict[str, KnownCauses] = FrozenDict()
    elsewhere: str = ""

    def findings(self, table: str, rows: Sequence[Row]) -> TableFindings:
        """Return what is to be told of a table of this name."""
        schemas = {row.schema for row in rows}
        about = next((self.readers[schema].about for schema in schemas if schema), "")
        return findings_of(table, rows, about, self.causes.get(table, NO_CAUSES))


def own_tables(elsewhere: str = "") -> KnownTables:
    """Return the tables that users write of their own steps: no constant rests on any of their rows."""
    readers = {name: READERS.load(name) for name in READERS.names()}
    return KnownTables(readers=readers, elsewhere=elsewhere)


def read_tables(
    paths: Sequence[Path],
    known: KnownTables,
    device: str,
    progress: Callable[[int, int, str], None],
) -> dict[str, list[Row]]:
    """Return the rows of each table by its name; of all that are known by their paths if none is given.

    Args:
        progress: Called with (done, total, table) before each.

    Raises:
        FileError: A file is no table of a known schema.
        UnknownNameError: There is no such device.
    """
    device = load_device(device).name if device else device
    named = table_names(list(paths) or list(known.paths))
    found: dict[str, list[Row]] = {}
    for done, (name, path) in enumerate(named.items()):
        progress(done, len(named), name)
        found[name] = read_table(path, known, device=device, name=name)
    return found


def table_names(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the paths by a name each: the file's, with its folder where two files are named alike."""
    stems = Counter(path.stem for path in paths)
    named: dict[str, Path] = {}
    for path in paths:
        alone = stems[path.stem] == 1
        name = path.stem if alone else f"{path.resolve().parent.name}/{path.stem}"
        again = sum(each.partition(" (")[0] == name for each in named)
        named[f"{name} ({again + 1})" if again else name] = path
    return named


def read_table(path: Path, known: KnownTables, *, device: str = "", name: str = "") -> list[Row]:
    """Return the rows of a table, each forecast or skipped with a reason.

    Args:
        device: Device sheet for tables that do not name the device that they were measured on;
            empty takes it from the names of the folders in the path.
        name: What the rows' `table` says; empty takes the file's name.

    Raises:
        FileError: The file is no table, no schema has its columns, or a cell is not what its
            column holds.
    """
    table = open_table(path, known, device)
    forecast = table.rows()
    rows = [
        dataclasses.replace(row, table=name or path.stem, schema=table.schema) for row in forecast
    ]
    seen = _published(table, known)
    rows = with_partners(table.reader, table.records, rows)
    return [
        row if seen[row.index] else dataclasses.replace(row, fitted=False, unseen=True)
        for row in rows
    ]


def with_partners(reader: TableReader, records: Sequence[Record], rows: Sequence[Row]) -> list[Row]:
    """Return rows with their errors after calibration on each of their partners, one at a time.

    Partners are the other rows of a row's group; of many, so many that lie evenly over the group.
    """
    if reader.calibrated_rows_of is None:
        return list(rows)
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        if row.group and row.error_fraction is not None:
            groups.setdefault(row.group, []).append(place)
    found = list(rows)
    for members in groups.values():
        for place in members:
            others = [other for other in members if other != place]
            chosen = others[:: -(-len(others) // MOST_PARTNERS)] if others else []
            errors = tuple(
                _error_after(reader, records, rows, place, partner) for partner in chosen
            )
            found[place] = dataclasses.replace(rows[place], calibrated_errors=errors)
    return found


def _error_after(
    reader: TableReader, records: Sequence[Record], rows: Sequence[Row], place: int, partner: int
) -> float:
    """Return the signed error of a row that is forecast after calibration on another."""
    row = rows[place]
    site = calibrate(observations_of(rows[partner])).calibration
    first = next(i for i, each in enumerate(rows) if each.index == row.index)
    error = row_at_site(reader, records[row.index], place - first, site).error_fraction
    assert error is not None, "a row is forecast with factors as without"
    return error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenTable:
    """Hold a table of a known schema."""

    path: Path
    columns: list[str]
    schema: str
    reader: TableReader
    records: list[Record]

    def rows(self) -> list[Row]:
        """Return the rows of the records, each forecast or skipped with a reason.

        Raises:
            FileError: A cell is not what its column holds.
        """
        try:
            return _forecast(self.reader, self.records)
        except BAD_CELL:
            raise _cell_error(self.path, self.schema, self.reader, self.records) from None


def open_table(path: Path, known: KnownTables, device: str = "") -> OpenTable:
    """Return a table with its records, each with its device.

    Raises:
        FileError: The file is no table, no schema has its columns, or a cell is not what its column holds.
    """
    columns, records = load_table(path)
    schema = _schema_of(path, columns, known)
    device, reader = device or _device_in(path), known.readers[schema]
    filled: list[Record] = [{"device": device, **record} for record in records]
    try:
        records = list(reader.merged(filled)) if reader.merged else filled
    except BAD_CELL:
        raise _cell_error(path, schema, reader, filled) from None
    return OpenTable(path=path, columns=columns, schema=schema, reader=reader, records=records)


def _forecast(reader: TableReader, records: Sequence[Record]) -> list[Row]:
    """Return the rows of records; sums beyond what numbers hold are errors, not warnings on a terminal."""
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        return list(reader.rows(records))


def row_at_site(reader: TableReader, record: Record, place: int, site: Calibration) -> Row:
    """Return a record's row, by its place among the record's, as it is forecast with a site's factors."""
    assert reader.calibrated_rows_of is not None, "rows of a group can be calibrated"
    return list(reader.calibrated_rows_of(record, site))[place]


def _published(table: OpenTable, known: KnownTables) -> list[bool]:
    """Tell which records stand in a published table, or in one that says it was fitted on."""
    reader, records = table.reader, table.records
    found = [reader.is_known is not None and reader.is_known(record) for record in records]
    tables = known.published(table.schema) if known.published else ()
    for published_columns, published_records in tables:
        shared = [column for column in published_columns if column in table.columns]
        published = {_cells(record, shared) for record in published_records}
        found = [
            each or _cells(record, shared) in published
            for each, record in zip(found, records, strict=True)
        ]
    return found


def _cells(record: Record, columns: Sequence[str]) -> tuple[str | float, ...]:
    """Return a record's values in these columns; numbers are the same however they are written."""
    return tuple(_number_or_text(record[column]) for column in columns)


def _number_or_text(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def load_table(path: Path) -> Loaded:
    """Return a table's columns and records, without spaces around cells.

    Raises:
        FileError: The file is no table.
    """
    check_regular(path)
    try:
        with path.open(encoding=encoding_of(path), newline="") as stream:
            table = csv.DictReader(stream, strict=True)
            columns = [column.strip() for column in table.fieldnames or []]
            table.fieldnames = columns
            records = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(str(path), f"is not a CSV table: {error}") from None
    if not columns:
        raise FileError(str(path), "is empty", allowed="a CSV table with a header line")
    for line, record in enumerate(records, start=FIRST_LINE):
        if None in record or None in record.values():
            raise FileError(
                str(path), "does not have as many cells as the header", field=f"line {line}"
            )
    return columns, [{key: value.strip() for key, value in record.items()} for record in records]


def _schema_of(path: Path, columns: list[str], known: KnownTables) -> str:
    found = [name for name, reader in known.readers.items() if reader.matches(frozenset(columns))]
    if not found:
        also = f"; {known.elsewhere}" if known.elsewhere else ""
        raise FileError(
            str(path),
            "has the columns of no table that rlplan knows",
            field="header",
            value=", ".join(columns)[:200],
            allowed=f"the columns of: {', '.join(known.readers)}{also}",
        )
    if len(found) > 1:
        problem = f"has the columns of several tables: {', '.join(found)}"
        raise FileError(str(path), problem, field="header", allowed="the columns of one")
    return found[0]


def _device_in(path: Path) -> str:
    """Return the device sheet that a name in the path tells, or that its words start with ("h100-80gb-sxm")."""
    for part in reversed(path.resolve().parts):
        words = part.lower().replace("_", "-").removesuffix(".csv").split("-")
        for first, word in enumerate(words):
            for end in range(len(words), first, -1):
                named = canonical_name("devices", "-".join(words[first:end]))
                if named in device_names():
                    return named
            known = [name for name in device_names() if name.split("-")[0] == word]
            if known and any(letter.isdigit() for letter in word):
                # Of a family's cards, the one with the most memory is the one that tables are of.
                return max(known, key=lambda name: load_device(name).memory_bytes)
    return ""


def _cell_error(
    path: Path, schema: str, reader: TableReader, records: Sequence[Record]
) -> FileError:
    """Name the first row that the reader cannot read."""
    for line, record in enumerate(records, start=FIRST_LINE):
        try:
            _forecast(reader, [record])
        except BAD_CELL as error:
            problem = f"cannot be read as {schema}: {type(error).__name__}: {error}"
            return FileError(str(path), problem, field=f"line {line}")
    return FileError(str(path), f"cannot be read as {schema}")
