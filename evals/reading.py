"""Published tables beside users' own: their readers, those that the project holds, and what is known of their misses."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlplan.evals.tables import READERS
from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.planner.measured import reading
from rlplan.planner.measured.reading import KnownTables, Loaded, load_table, own_tables
from rlplan.planner.measured.rows import KnownCauses, TableReader
from rlplan.results.accuracy import Row

HELD = Path(__file__).parent / "held"
# Reported runs with their outcome; each one's files lie in a folder of its name beside it.
HELD_CASES = HELD / "fit" / "cases.csv"
CAUSES = HELD / "causes.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class CausesFile:
    """Hold the causes of misses by table. The file `held/causes.yaml`."""

    tables: FrozenDict[str, KnownCauses]


def held_tables() -> tuple[Path, ...]:
    """Return the tables that the project holds, by name."""
    return tuple(sorted(HELD.glob("*.csv")))


def all_tables() -> KnownTables:
    """Return users' own tables and all published ones."""
    return KnownTables(
        readers=_readers(), paths=held_tables(), published=_held_of, causes=_causes()
    )


def read_table(path: Path, *, device: str = "", name: str = "") -> list[Row]:
    """Return the rows of a table, each forecast or skipped with a reason.

    Args:
        device: Device sheet for tables that do not name the device that they were measured on;
            empty takes it from the names of the folders in the path.
        name: What the rows' `table` says; empty takes the file's name.

    Raises:
        FileError: The file is no table, no schema has its columns, or a cell is not what its
            column holds.
    """
    return reading.read_table(path, all_tables(), device=device, name=name)


def _readers() -> dict[str, TableReader]:
    published = {name: READERS.load(name) for name in READERS.names()}
    return dict(sorted({**own_tables().readers, **published}.items()))


@cache
def _causes() -> FrozenDict[str, KnownCauses]:
    return read_yaml(CausesFile, CAUSES).tables


@cache
def _held_of(schema: str) -> tuple[Loaded, ...]:
    """Return the columns and records of the tables of a schema that the project holds."""
    tables = [load_table(path) for path in held_tables()]
    reader = _readers()[schema]
    return tuple(
        (columns, list(reader.merged(records)) if reader.merged else records)
        for columns, records in tables
        if reader.matches(frozenset(columns))
    )
