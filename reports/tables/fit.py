"""Reported runs and what is said of their memory, as text: the page and the terminal share them."""

import csv
import io
from collections.abc import Mapping, Sequence

from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import percent, signed_percent
from rlplan.results.fit import COUNTED, FitRow, FitTotals, totals_of
from rlplan.units import show_bytes, show_filled

OUTCOMES = {"runs": "ran", "oom": "ran out"}
GROUPS = {
    "shown": "Rows that were shown",
    "collected": "Rows that were collected",
    "host": "Host memory",
    "bug": "Faults of one version, not counted",
}
NONE = "-"
ALL = "both"
ROW_COLUMNS = (
    "case", "file", "group", "outcome", "said", "score", "forecast_bytes", "capacity_bytes", "measured_bytes",
    "error_fraction", "during", "stage", "why",
)  # fmt: skip


def totals_by_group(rows: Sequence[FitRow]) -> dict[str, FitTotals]:
    """Return the totals of each group whose answers count, and of all of them."""
    counted = [row for row in rows if row.case.group in COUNTED]
    found: dict[str, FitTotals] = {
        group: totals_of([row for row in counted if row.case.group == group])
        for group in COUNTED
        if any(row.case.group == group for row in counted)
    }
    return {**found, ALL: totals_of(counted)} if len(found) > 1 else found


def fit_totals_table(totals: Mapping[str, FitTotals]) -> Table:
    """Return how many answers are right, one row a group."""
    return Table(
        columns=columns(
            "Rows", "#Number", "#Right", "#Right or may not fit", "#Wrong", "#OOM reports", "#Seen",
            "#Peaks", "#Median error", "#Worst",
        ),
        rows=tuple((name, *_totals(each)) for name, each in totals.items()),
    )  # fmt: skip


def _totals(each: FitTotals) -> tuple[str, ...]:
    return (
        str(each.rows),
        _share(each.right, each.rows),
        _share(each.right + each.may, each.rows),
        str(each.wrong),
        str(each.oom),
        _share(each.oom_seen, each.oom),
        str(each.peaks),
        NONE if each.median_error is None else percent(each.median_error),
        NONE if each.worst_error is None else percent(each.worst_error),
    )


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else NONE


def fit_table(rows: Sequence[FitRow]) -> Table:
    """Return what happened and what is said, one row a case."""
    return Table(
        columns=columns(
            "Case", "Happened", "Said", "Score", "#Forecast peak", "#Measured", "#Error",
            "Said to run out in", "Reported stage",
        ),
        rows=tuple(_row(row) for row in rows),
    )  # fmt: skip


def _row(row: FitRow) -> tuple[str, ...]:
    measured, error = row.case.peak_bytes, row.error_fraction
    return (
        row.case.label,
        OUTCOMES[row.case.outcome],
        row.said,
        row.score,
        _filled(row),
        NONE if measured is None else show_bytes(measured),
        NONE if error is None else signed_percent(error),
        row.during or NONE,
        row.case.stage or NONE,
    )


def _filled(row: FitRow) -> str:
    if row.forecast_bytes is None or row.capacity_bytes is None:
        return NONE
    return show_filled(row.forecast_bytes, row.capacity_bytes)


def fit_rows_csv(rows: Sequence[FitRow]) -> str:
    """Return every case with what is said of it as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ROW_COLUMNS)
    for row in rows:
        case = row.case
        writer.writerow(
            (
                case.case, case.file, case.group, case.outcome, row.said, row.score, row.forecast_bytes,
                row.capacity_bytes, case.peak_bytes, row.error_fraction, row.during, case.stage, row.why,
            )
        )  # fmt: skip
    return text.getvalue()
