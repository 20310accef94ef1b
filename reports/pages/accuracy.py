"""The accuracy page: errors of every table, rows fitted on and held back apart, misses with causes."""

from collections.abc import Sequence
from pathlib import Path

from rlplan.files.writing import write_text
from rlplan.reports.pages.accuracy_content import accuracy_content
from rlplan.reports.pages.report import html
from rlplan.reports.pictures.accuracy import accuracy_picture
from rlplan.reports.tables.accuracy import (
    error_summary_table,
    errors_table,
    miss_table,
    skipped_table,
)
from rlplan.reports.tables.plans import markdown_lines
from rlplan.results.accuracy import Summary, TableFindings

PAGE = "accuracy.md"
PICTURES = "accuracy"


def write_accuracy_page(folder: Path, findings: Sequence[TableFindings], command: str) -> Path:
    """Write `accuracy.md` with its pictures, and `accuracy.html`, into a folder; return the first one's path.

    Args:
        command: What made the page, for whoever wants to make it again.
    """
    lines = _head(findings, command)
    for found in findings:
        lines += _section(folder, found)
    path = folder / PAGE
    write_text(path, "\n".join(lines).rstrip() + "\n")
    write_text(path.with_suffix(".html"), html(accuracy_content(findings, command)))
    return path


def _head(findings: Sequence[TableFindings], command: str) -> list[str]:
    held = [found.held for found in findings if found.held.rows]
    unseen = [found.unseen for found in findings if found.unseen.rows]
    rows = sum(each.rows for each in held)
    inside = sum((each.coverage or 0.0) * each.rows for each in held)
    coverage = f"{inside / rows:.0%} of {rows} rows" if rows else "no row"
    return [
        "# Forecasts against published measurements",
        "",
        f"Made by `{command}`. Errors are fractions of the measured values. A row of a table is one",
        "that a constant of rlplan was fitted on, one held back from every fit, or unseen: in no",
        "table that rlplan holds or was fitted on. Judge by the last two. Where constants were",
        "fitted, a row's settings decide on which side of the split it stands, never its value; its",
        "reader in `evals/tables/` says how. Where a split or a constant was chosen with all",
        "rows in view, the table's own section says so: those held-back errors are no clean test.",
        "",
        f"Of the rows held back, {coverage} lie between the p10 and the p90 of their forecast",
        "(80 % would be perfect calibration).",
        "",
        *_errors("Rows held back", [found.held for found in findings]),
        *(_errors("Rows unseen", unseen) if unseen else []),
        *_calibrated([found.whole for found in findings]),
        *_errors("Rows fitted on", [found.fitted for found in findings if found.fitted.rows]),
    ]


def _errors(title: str, summaries: Sequence[Summary]) -> list[str]:
    return [f"## {title}", "", *markdown_lines(error_summary_table(summaries)), ""]


def _calibrated(summaries: Sequence[Summary]) -> list[str]:
    """Return the errors of rows that were forecast after a calibration on one other row."""
    found = {
        each.table: each.after_calibration for each in summaries if each.after_calibration.rows
    }
    if not found:
        return []
    return [
        "## Rows after calibration",
        "",
        "Each row was forecast after `rlplan calibrate` on one other row of its framework and GPU,",
        "never on itself. With several such rows, its error is the median over them; rows without one",
        "are left out.",
        "",
        *markdown_lines(errors_table("Table", found)),
        "",
    ]


def _section(folder: Path, found: TableFindings) -> list[str]:
    lines = [f"## {found.whole.table}", "", found.about, ""]
    for note, count in found.whole.notes.items():
        lines += [f"- {note} ({count} rows)"]
    if found.whole.notes:
        lines += [""]
    if found.whole.rows:
        drawn = accuracy_picture(found.whole.table, found.rows)
        write_text(folder / PICTURES / drawn.file_name, drawn.file_text)
        lines += [f"![{drawn.title}]({PICTURES}/{drawn.file_name})", ""]
    if len(found.kinds) > 1:
        lines += [
            "Rows that nothing was fitted on, by kind:",
            "",
            *markdown_lines(error_summary_table(found.kinds)),
            "",
        ]
    if found.whole.stages:
        table = errors_table("Stage", found.whole.stages)
        lines += ["Stages of the step, before calibration:", "", *markdown_lines(table), ""]
    if found.misses:
        title = f"Misses (errors above {found.miss_fraction:.0%}), fitted rows among them:"
        lines += [title, "", *markdown_lines(miss_table(found)), ""]
    if found.whole.skipped:
        lines += ["Rows without a forecast:", "", *markdown_lines(skipped_table([found.whole])), ""]
    return lines
