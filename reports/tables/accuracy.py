"""Rows of the accuracy tables, as text: the page, its Markdown version and the terminal share them."""

import csv
import io
from collections.abc import Mapping, Sequence

from reports.tables.plans import Table, columns
from reports.tables.wording import percent, signed_percent
from rlplan.results.accuracy import Row, Summary, TableFindings

UNKNOWN = "-"
ROW_COLUMNS = (
    "table", "index", "label", "kind", "measured_seconds", "forecast_seconds", "error_fraction",
    "p10_seconds", "p90_seconds", "source", "outside_range", "fitted", "skipped", "note",
    "measured_bytes", "forecast_bytes", "measured_fits", "forecast_fits",
)  # fmt: skip


def error_summary_table(summaries: Sequence[Summary]) -> Table:
    """Return the errors of every table, one row each."""
    return Table(
        columns=columns(
            "Table", "#Rows", "#Skipped", "#Median", "#Mean", "#p90", "#Worst", "#Bias",
            "#In p10-p90",
        ),
        rows=tuple(_summary_row(each) for each in summaries),
    )  # fmt: skip


def _summary_row(summary: Summary) -> tuple[str, ...]:
    errors = (summary.median_error, summary.mean_error, summary.p90_error, summary.worst_error)
    return (
        summary.table,
        str(summary.rows),
        str(summary.skipped),
        *(UNKNOWN if each is None else percent(each) for each in errors),
        UNKNOWN if summary.bias is None else signed_percent(summary.bias),
        UNKNOWN if summary.coverage is None else f"{summary.coverage:.0%}",
    )


def skipped_table(summaries: Sequence[Summary]) -> Table:
    """Return why rows have no forecast, one row for each table and reason."""
    return Table(
        columns=columns("Table", "#Rows", "Reason"),
        rows=tuple(
            (summary.table, str(count), reason)
            for summary in summaries
            for reason, count in summary.skipped_reasons.items()
        ),
    )


def miss_table(found: TableFindings) -> Table:
    """Return the rows that miss, the worst first, many of one cause as one line."""
    causes: dict[str, list[Row]] = {}
    for row in found.misses:
        causes.setdefault(found.cause_of(row) or "no cause known yet", []).append(row)
    return Table(
        columns=columns("#Rows", "#Worst", "Worst row", "Cause"),
        rows=tuple(
            (
                str(len(rows)),
                signed_percent(rows[0].error_fraction or 0.0),
                f"{rows[0].kind} {rows[0].label}".strip(),
                cause,
            )
            for cause, rows in causes.items()
        ),
    )


def rows_csv(rows: Sequence[Row]) -> str:
    """Return every row with its forecast as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ROW_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_cells(row) for row in rows)
    return text.getvalue()


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
        "measured_bytes": row.measured_bytes,
        "forecast_bytes": row.forecast_bytes,
        "measured_fits": row.measured_fits,
        "forecast_fits": row.forecast_fits,
    }
