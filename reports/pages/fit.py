"""The page of reported runs: what happened, what is said of their memory, where it is wrong and why."""

from collections.abc import Sequence
from pathlib import Path

from rlplan.files.writing import write_text
from rlplan.reports.tables.fit import GROUPS, OUTCOMES, fit_table, fit_totals_table, totals_by_group
from rlplan.reports.tables.plans import Table, columns, markdown_lines
from rlplan.reports.tables.wording import signed_percent
from rlplan.results.fit import COUNTED, FitCase, FitRow

PAGE = "fit.md"
WORDS = {
    "host": "Outcomes of a node's host memory, whose size the report gives or the row assumes; said is of that alone.",
    "bug": "The reports find the cause in a fault of a version, not in the configuration; what is said of these "
    "configurations is shown, and counts for nothing.",
}
NO_CAUSE = "not known"
HEAD = (
    "Made by `{command}`. Each row is a configuration of a public report with its outcome, read as `rlplan check` "
    "reads it. Right is `fits` where it ran, and `does not fit` where it ran out; seen is a report of memory that ran "
    "out which is not called `fits`. Peaks are of the fullest GPU."
)
TARGETS = (
    "Aimed at: 90 % right, 97 % right or `may not fit`, 85 % of the reports of memory that ran out seen, measured peaks "
    "within 15 %, their median within 8 %."
)
FAR_FRACTION = 0.15


def write_fit_page(folder: Path, rows: Sequence[FitRow], note: str, command: str) -> Path:
    """Write `fit.md` into a folder, and return its path.

    Args:
        note: How the cases were chosen and used.
        command: What made the page, for whoever wants to make it again.
    """
    lines = [
        "# Does it fit: reported runs, and what is said of them",
        "",
        HEAD.format(command=command),
        "",
        *([note.strip(), ""] if note.strip() else []),
        *markdown_lines(fit_totals_table(totals_by_group(rows))),
        "",
        TARGETS,
        "",
        *_wrong(rows),
        *_far(rows),
    ]
    for group, title in GROUPS.items():
        found = [row for row in rows if row.case.group == group]
        if found:
            words = [WORDS[group], ""] if group in WORDS else []
            lines += [f"## {title}", "", *words, *markdown_lines(fit_table(found)), ""]
    lines += ["## Sources", "", *markdown_lines(_sources([row.case for row in rows])), ""]
    path = folder / PAGE
    write_text(path, "\n".join(lines).rstrip() + "\n")
    return path


def _wrong(rows: Sequence[FitRow]) -> list[str]:
    """Return the lines that list every wrong answer, with what is probably behind it."""
    wrong = [row for row in rows if row.score == "wrong" and row.case.group in (*COUNTED, "host")]
    table = Table(
        columns=columns("Case", "Happened", "Said", "Probable cause"),
        rows=tuple(
            (
                row.case.label,
                OUTCOMES[row.case.outcome],
                f"{row.said} ({row.why})" if row.why else row.said,
                row.case.if_wrong or NO_CAUSE,
            )
            for row in wrong
        ),
    )
    head = ["## Where it is wrong, and why as far as is known", ""]
    return [*head, *(markdown_lines(table) if wrong else ["Nowhere."]), ""]


def _far(rows: Sequence[FitRow]) -> list[str]:
    """Return the lines that list measured peaks which the forecast misses by more than is aimed at."""
    far = [row for row in rows if abs(row.error_fraction or 0.0) > FAR_FRACTION]
    if not far:
        return []
    table = Table(
        columns=columns("Case", "#Error of the peak", "Probable cause"),
        rows=tuple(
            (
                row.case.label,
                signed_percent(row.error_fraction or 0.0),
                row.case.if_wrong or NO_CAUSE,
            )
            for row in far
        ),
    )
    return [
        f"Measured peaks that are off by more than {FAR_FRACTION:.0%}:",
        "",
        *markdown_lines(table),
        "",
    ]


def _sources(cases: Sequence[FitCase]) -> Table:
    """Return where the cases are from, what was assumed of them, and how far they can be trusted, one row each."""
    each = {case.case: case for case in cases}
    return Table(
        columns=columns("Case", "Versions", "Trust", "Assumed", "Source"),
        rows=tuple(
            (name, case.version or "-", case.trust or "-", case.assumed or "-", case.source)
            for name, case in each.items()
        ),
    )
