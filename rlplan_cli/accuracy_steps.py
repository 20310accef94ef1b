"""The steps of `rlplan accuracy`: each calls one room and puts its answer into the next one's hands."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlplan.results.accuracy import Row
    from rlplan_cli.terminal import Progress

Found = dict[str, list["Row"]]

ROW_COLUMNS = (
    "table", "index", "label", "kind", "measured_seconds", "forecast_seconds", "error_fraction",
    "p10_seconds", "p90_seconds", "source", "outside_range", "fitted", "skipped", "note",
)  # fmt: skip


def forecast_tables(tables: Sequence[Path], device: str, progress: Progress) -> Found:
    """Return the rows of each table by its name; of the tables that rlplan holds if none is given.

    Raises:
        FileError: A file is no table of a known schema.
        UnknownNameError: There is no such device.
    """
    from planner.evaluation.reading import held_tables, read_table
    from profiles.catalog import load_device

    if device:
        device = load_device(device).name
    paths = list(tables) or list(held_tables())
    names = table_names(paths)
    found: Found = {}
    for done, (path, name) in enumerate(zip(paths, names, strict=True)):
        progress(done, len(paths), name)
        found[name] = read_table(path, device=device, name=name)
    return found


def table_names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each path: the file's, with its folder where two files are named alike."""
    stems = Counter(path.stem for path in paths)
    names = [
        path.stem if stems[path.stem] == 1 else f"{path.resolve().parent.name}/{path.stem}"
        for path in paths
    ]
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return unique


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write every row with its forecast as CSV."""
    from rlplan.files.writing import write_text

    text = io.StringIO()
    writer = csv.DictWriter(text, ROW_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_cells(row) for row in rows)
    write_text(path, text.getvalue())


def _cells(row: Row) -> Mapping[str, object]:
    forecast, interval = row.forecast, row.interval_seconds
    return {
        "table": row.table,
        "index": row.index,
        "label": row.label,
        "kind": row.kind,
        "measured_seconds": row.measured_seconds,
        "forecast_seconds": forecast.seconds if forecast else None,
        "error_fraction": row.error_fraction,
        "p10_seconds": interval[0] if interval else None,
        "p90_seconds": interval[1] if interval else None,
        "source": forecast.source.label if forecast else None,
        "outside_range": forecast.outside_range if forecast else None,
        "fitted": row.fitted,
        "skipped": row.skipped,
        "note": row.note,
    }


def write_page(folder: Path, found: Mapping[str, Sequence[Row]], command: str) -> Path:
    """Write the accuracy page with its plots, and return its path."""
    from planner.evaluation.reading import about
    from planner.evaluation.summary import findings_of
    from reports.pages.accuracy import write_accuracy_page

    findings = [findings_of(name, rows, about(rows)) for name, rows in found.items()]
    return write_accuracy_page(folder, findings, command)
