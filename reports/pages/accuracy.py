"""The accuracy page: errors of every table, rows fitted on and held back apart, misses with causes."""

from collections.abc import Sequence
from pathlib import Path

from reports.pictures.accuracy import accuracy_picture
from reports.tables.accuracy import error_summary_table, miss_table, skipped_table
from reports.tables.plans import markdown_lines
from rlplan.files.writing import write_text
from rlplan.results.accuracy import TableFindings

PAGE = "accuracy.md"
PICTURES = "accuracy"


def write_accuracy_page(folder: Path, findings: Sequence[TableFindings], command: str) -> Path:
    """Write `accuracy.md` with its pictures into a folder, and return its path.

    Args:
        command: What made the page, for whoever wants to make it again.
    """
    lines = _head(findings, command)
    for found in findings:
        lines += _section(folder, found)
    path = folder / PAGE
    write_text(path, "\n".join(lines).rstrip() + "\n")
    return path


def _head(findings: Sequence[TableFindings], command: str) -> list[str]:
    held = [found.held for found in findings if found.held.rows]
    rows = sum(each.rows for each in held)
    inside = sum((each.coverage or 0.0) * each.rows for each in held)
    coverage = f"{inside / rows:.0%} of {rows} rows" if rows else "no row"
    return [
        "# Forecasts against published measurements",
        "",
        f"Made by `{command}`. Errors are fractions of the measured values. Every table has two",
        "lines: rows that a constant of rlplan was fitted on, and rows held back from every fit;",
        "judge by the second. Where constants were fitted, a row's settings decide on which side of",
        "the split it stands, never its value; its reader in `planner/evaluation/` says how. Where a",
        "split or a constant was chosen with all rows in view, the table's own section says so:",
        "those held-back errors are no clean test.",
        "",
        f"Of the rows held back, {coverage} lie between the p10 and the p90 of their forecast",
        "(80 % would be perfect calibration).",
        "",
        "## Rows held back",
        "",
        *markdown_lines(error_summary_table([found.held for found in findings])),
        "",
        "## Rows fitted on",
        "",
        *markdown_lines(
            error_summary_table([found.fitted for found in findings if found.fitted.rows])
        ),
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
            "Rows held back, by kind:",
            "",
            *markdown_lines(error_summary_table(found.kinds)),
            "",
        ]
    if found.misses:
        title = f"Misses (errors above {found.miss_fraction:.0%}), fitted rows among them:"
        lines += [title, "", *markdown_lines(miss_table(found)), ""]
    if found.whole.skipped:
        lines += ["Rows without a forecast:", "", *markdown_lines(skipped_table([found.whole])), ""]
    return lines
