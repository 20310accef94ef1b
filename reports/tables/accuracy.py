"""Rows of the accuracy tables, as text: the page, its Markdown version and the terminal share them."""

import csv
import io
from collections.abc import Mapping, Sequence

from rlplan.calibration import Calibration
from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import percent, signed_percent
from rlplan.results.accuracy import Errors, Row, Summary, TableFindings

UNKNOWN = "-"
ROW_COLUMNS = (
    "table", "index", "label", "kind", "measured_seconds", "forecast_seconds", "error_fraction",
    "p10_seconds", "p90_seconds", "source", "outside_range", "fitted", "skipped", "note",
    "measured_bytes", "forecast_bytes", "measured_fits", "forecast_fits", "unseen", "group",
    "calibrated_error_fraction", "partners",
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
    return (
        summary.table,
        str(summary.rows),
        str(summary.skipped),
        *_percents(summary),
        UNKNOWN if summary.bias is None else signed_percent(summary.bias),
        UNKNOWN if summary.coverage is None else f"{summary.coverage:.0%}",
    )


def errors_table(title: str, found: Mapping[str, Errors]) -> Table:
    """Return errors by name, one row each.

    Args:
        title: What the names are of.
    """
    return Table(
        columns=columns(title, "#Rows", "#Median", "#Mean", "#p90", "#Worst"),
        rows=tuple((name, str(each.rows), *_percents(each)) for name, each in found.items()),
    )


def _percents(found: Errors | Summary) -> tuple[str, ...]:
    errors = (found.median_error, found.mean_error, found.p90_error, found.worst_error)
    return tuple(UNKNOWN if each is None else percent(each) for each in errors)


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
    """Return every row with its forecast as CSV; two columns more for each stage of a step."""
    stages = dict.fromkeys(name for row in rows for name in row.stages)
    own = tuple(column for name in stages for column in _stage_columns(name))
    text = io.StringIO()
    writer = csv.DictWriter(text, (*ROW_COLUMNS, *own), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_cells(row) for row in rows)
    return text.getvalue()


def _stage_columns(stage: str) -> tuple[str, str]:
    return f"{stage}_measured_seconds", f"{stage}_forecast_seconds"


def _cells(row: Row) -> Mapping[str, object]:
    forecast, interval = row.forecast, row.interval_seconds
    stages: dict[str, float | None] = {}
    for name, seconds in row.stages.items():
        measured, predicted = _stage_columns(name)
        stages[measured], stages[predicted] = seconds.measured_seconds, seconds.forecast_seconds
    return {
        **stages,
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
        "unseen": row.unseen,
        "group": row.group,
        "calibrated_error_fraction": row.calibrated_error,
        "partners": len(row.calibrated_errors),
    }


def factors_table(calibration: Calibration) -> Table:
    """Return a site's factors, one row each."""
    return Table(
        columns=columns("Factor", "#Times the sheet", "#Spread", "#Fitted on", "#Drawn to 1 by"),
        rows=tuple(
            (
                name,
                f"{each.value:.2f}",
                percent(each.spread),
                str(each.rows),
                percent(each.shrinkage),
            )
            for name, each in calibration.named()
        ),
    )
