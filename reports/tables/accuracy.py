"""Forecasts held against measurements, as text: rows of tables, reported runs, reproduced evaluations; pages and terminal share them."""

import csv
import io
from collections.abc import Mapping, Sequence
from statistics import mean, median

from rlplan.calibration import Calibration
from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import counted, interval, percent, signed_percent
from rlplan.results.accuracy import (
    COUNTED,
    Claim,
    Errors,
    FitRow,
    FitTotals,
    Point,
    Row,
    Summary,
    TableFindings,
    totals_of,
)
from rlplan.results.measurement import StageCheck, StepCheck
from rlplan.units import show_bytes, show_filled, show_seconds

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
    """Return the rows that miss, worst first; rows with the same cause share a line."""
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


OUTCOMES = {"runs": "ran", "oom": "ran out"}
GROUPS = {
    "shown": "Rows that were shown",
    "collected": "Rows that were collected",
    "later": "Rows that came later",
    "newer": "Rows of autumn 2026",
    "newest": "Rows of the last gathering",
    "latest": "Rows of the histories of frameworks",
    "added": "Rows of tests, examples and documents",
    "gathered": "Rows of logs, notes and issues",
    "blind": "Rows of changes and notes that name memory which ran out, most of them pairs",
    "drawn": "Rows of NeMo-RL, OpenRLHF and TRL from notes of users and issues",
    "further": "Rows of the histories of slime, miles, SkyRL, AReaL and prime-rl",
    "forked": "Rows of verl, its forks and EasyR1",
    "sought": "Rows of all frameworks but verl, from histories and examples",
    "host": "Host memory",
    "bug": "Faults of one version, not counted",
}
NONE = "-"
ALL = "all"
RUN_COLUMNS = (
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


def fit_trainers_table(rows: Sequence[FitRow]) -> Table:
    """Return what trainers allocated and what is forecast of it, one row a case that has it."""
    return Table(
        columns=columns("Case", "#Measured", "#Forecast", "#Error"),
        rows=tuple(
            (
                row.case.label,
                show_bytes(row.case.trainer_bytes),
                show_bytes(row.trainer_bytes),
                signed_percent(row.trainer_error),
            )
            for row in rows
            if row.case.trainer_bytes is not None
            and row.trainer_bytes is not None
            and row.trainer_error is not None
        ),
    )


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
    writer.writerow(RUN_COLUMNS)
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
    """Return a row for each stage, then what is in no stage, the step, and what is no part of every one."""
    rows = [_stage_row(each) for each in found.stages]
    rows += [
        (name, show_seconds(seconds), "", "", "", "") for name, seconds in found.others.items()
    ]
    whole = frozenset({len(rows)} if found.step else ())
    rows += [_stage_row(found.step)] if found.step else []
    rows += [
        _beside_row(name, seconds, found.beside_forecast.get(name))
        for name, seconds in found.beside.items()
    ]
    return Table(
        columns=columns("Stage", "#Measured", "#Forecast", "#Times", "#Normal range", "Verdict"),
        rows=tuple(rows),
        strong_rows=whole,
    )


def _beside_row(name: str, measured: float, forecast: float | None) -> tuple[str, ...]:
    """Return what is no part of every step: its part of a step on average, measured and by forecast."""
    shown = ("", "") if forecast is None else (show_seconds(forecast), f"{measured / forecast:.2f}")
    return (f"{name}, beside it", show_seconds(measured), *shown, "", "")


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
    """Return the verdict, then each stage that is not normal with its likely causes and what to try.

    A normal stage is told where another layout is forecast to take much less of the step.
    """
    every = (*found.stages, *((found.step,) if found.step else ()))
    odd = [each for each in every if each.verdict != "normal"]
    lines = [] if odd else ["normal: every stage takes what is to be expected"]
    for each in sorted(odd, key=lambda each: each.forecast_seconds - each.measured_seconds):
        lines.append(
            f"{each.verdict}: {each.name} takes {each.times:.2f} times its forecast, "
            f"{show_seconds(each.measured_seconds)} in place of {show_seconds(each.forecast_seconds)}"
        )
        lines += [f"  likely: {words}" for words in each.causes]
        lines += [f"  try: {words}" for words in each.tries]
    for each in every:
        if each.verdict == "normal" and each.tries:
            lines.append(
                f"normal: {each.name} takes what its settings take; by forecast others take less"
            )
            lines += [f"  try: {words}" for words in each.tries]
    return tuple(lines)


_NOTHING = "-"


def claims_table(claims: Sequence[Claim]) -> Table:
    """Return every claim with its mark and the figures that it stands on."""
    return Table(
        columns=columns("Claim", "Stated in", "In the forecasts", "Figures"),
        rows=tuple(
            (claim.text, claim.where, "holds" if claim.holds else "fails", claim.evidence)
            for claim in claims
        ),
    )


def series_table(points: Sequence[Point]) -> Table:
    """Return the errors against published values, one row for each figure and series."""
    groups: dict[tuple[str, str], list[float]] = {}
    for point in points:
        if point.error_fraction is not None:
            groups.setdefault((point.figure, point.series), []).append(point.error_fraction)
    return Table(
        columns=columns("Figure", "Series", "#Points", "#Median error", "#Mean", "#Worst"),
        rows=tuple(
            (
                figure,
                series,
                str(len(errors)),
                percent(median(abs(error) for error in errors)),
                signed_percent(mean(errors)),
                signed_percent(max(errors, key=abs)),
            )
            for (figure, series), errors in groups.items()
        ),
    )


def points_table(points: Sequence[Point]) -> Table:
    """Return every point: forecast, published value, error, and the plan that was forecast."""
    return Table(
        columns=columns(
            "Part", "Series", "#GPUs", "#Forecast", "#Published", "#Error", "Plan forecast"
        ),
        rows=tuple(
            (
                point.panel,
                point.series,
                str(point.gpus),
                _shown(point, point.forecast),
                _shown(point, point.published),
                _NOTHING if point.error_fraction is None else signed_percent(point.error_fraction),
                point.plan or point.reason,
            )
            for point in points
        ),
    )


def _shown(point: Point, value: float | None) -> str:
    if value is None:
        return _NOTHING
    if point.quantity == "bytes":
        return show_bytes(value)
    if point.quantity == "seconds":
        return show_seconds(value)
    return f"{value:,.0f} {'frames' if point.quantity == 'frames_per_second' else 'tokens'}/s"
