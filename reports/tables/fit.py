"""Reported runs and measured stages beside what is said of them, as text: the page and the terminal share them."""

import csv
import io
from collections.abc import Mapping, Sequence

from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import counted, interval, percent, signed_percent
from rlplan.results.fit import COUNTED, FitRow, FitTotals, totals_of
from rlplan.results.step_check import StageCheck, StepCheck
from rlplan.units import show_bytes, show_filled, show_seconds

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


def step_check_table(found: StepCheck) -> Table:
    """Return a row for each stage, then what is in no stage, the step last."""
    rows = [_stage_row(each) for each in found.stages]
    rows += [
        (name, show_seconds(seconds), "", "", "", "") for name, seconds in found.others.items()
    ]
    rows += [_stage_row(found.step)] if found.step else []
    return Table(
        columns=columns("Stage", "#Measured", "#Forecast", "#Times", "#Normal range", "Verdict"),
        rows=tuple(rows),
        strong_rows=frozenset({len(rows) - 1} if found.step else ()),
    )


def _stage_row(stage: StageCheck) -> tuple[str, ...]:
    return (
        stage.name,
        show_seconds(stage.measured_seconds),
        show_seconds(stage.forecast_seconds),
        f"{stage.times:.2f}",
        interval(stage.normal_seconds),
        stage.verdict,
    )


def measured_words(found: StepCheck) -> str:
    """Return what was measured: `24 steps of verl: 220 prompt and 1,536 response tokens on average`."""
    lengths = " and ".join(
        f"{tokens:,.0f} {what}"
        for what, tokens in (("prompt", found.prompt_tokens), ("response", found.response_tokens))
        if tokens is not None
    )
    words = f"{counted(found.steps, 'step')} of {found.source}"
    return (
        f"{words}: {lengths} tokens on average" if lengths else f"{words}; lengths are not logged"
    )


def verdict_lines(found: StepCheck) -> tuple[str, ...]:
    """Return the verdict, then each stage that is not normal with its likely causes and what to try."""
    every = (*found.stages, *((found.step,) if found.step else ()))
    odd = [each for each in every if each.verdict != "normal"]
    if not odd:
        return ("normal: every stage takes what is to be expected",)
    lines = []
    for each in sorted(odd, key=lambda each: each.forecast_seconds - each.measured_seconds):
        lines.append(
            f"{each.verdict}: {each.name} takes {each.times:.2f} times its forecast, "
            f"{show_seconds(each.measured_seconds)} in place of {show_seconds(each.forecast_seconds)}"
        )
        lines += [f"  likely: {words}" for words in each.causes]
        lines += [f"  try: {words}" for words in each.tries]
    return tuple(lines)
