"""What is told of a table: errors of rows fitted on and held back, misses and their causes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.evaluation.summary import by_kind, summarise
from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.results.accuracy import Cause, Row, TableFindings

CAUSES = Path(__file__).parent / "held" / "causes.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCauses:
    """Hold what is known of the misses of one table.

    Attributes:
        miss_fraction: A row whose error is larger is a miss.
        note: What a reader must know of how rows were chosen before trusting the errors.
    """

    miss_fraction: float = 0.2
    causes: tuple[Cause, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausesFile:
    """Hold the causes by table. The file `held/causes.yaml`."""

    tables: FrozenDict[str, KnownCauses]


def findings_of(table: str, rows: Sequence[Row], about: str) -> TableFindings:
    """Return what is to be told of a table."""
    known = read_yaml(CausesFile, CAUSES).tables.get(table, KnownCauses())
    fitted = [row for row in rows if row.fitted]
    held = [row for row in rows if not row.fitted]
    return TableFindings(
        about=f"{about} {known.note}".strip(),
        rows=tuple(rows),
        whole=summarise(rows, table),
        fitted=summarise(fitted, f"{table}, fitted on"),
        held=summarise(held, f"{table}, held back"),
        kinds=tuple(by_kind(held)),
        miss_fraction=known.miss_fraction,
        causes=known.causes,
    )
