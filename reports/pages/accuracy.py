"""The accuracy pages: errors of every table, rows fitted on and held back apart, misses with causes; and reported runs with what is said of their memory."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from rlplan.files.writing import write_text
from rlplan.reports.pages.report import Content, Fact, html
from rlplan.reports.panels import Part, Section
from rlplan.reports.pictures.picture import (
    FAINT,
    MUTED,
    PAGE_WIDTH,
    SERIES_COLOURS,
    FillStyle,
    LegendEntry,
    Picture,
    drawing,
    dress_axes,
    panel_axes,
    picture,
    scale_by_decades,
    titled_canvas,
)
from rlplan.reports.tables.accuracy import (
    GROUPS,
    OUTCOMES,
    error_summary_table,
    errors_table,
    fit_table,
    fit_totals_table,
    fit_trainers_table,
    miss_table,
    skipped_table,
    totals_by_group,
)
from rlplan.reports.tables.plans import Table, columns, markdown_lines
from rlplan.reports.tables.wording import counted, percent, signed_percent
from rlplan.results.accuracy import COUNTED, FitCase, FitRow, Row, Summary, TableFindings
from rlplan.units import show_seconds

PAGE = "accuracy.md"
PICTURES = "accuracy"


def write_accuracy_page(folder: Path, findings: Sequence[TableFindings], command: str) -> Path:
    """Write `accuracy.md` with its pictures, and `accuracy.html`, into a folder; return the first one's path.

    Args:
        command: What made the page, for whoever wants to make it again.
    """
    lines = _head(findings, command)
    for found in findings:
        lines += _markdown_section(folder, found)
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


def _markdown_section(folder: Path, found: TableFindings) -> list[str]:
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


def accuracy_content(findings: Sequence[TableFindings], command: str) -> Content:
    """Return what the page says.

    Args:
        command: What made the page.
    """
    held = [each.held for each in findings if each.held.rows]
    unseen = [each.unseen for each in findings if each.unseen.rows]
    fitted = [each.fitted for each in findings if each.fitted.rows]
    after = {
        each.whole.table: each.whole.after_calibration
        for each in findings
        if each.whole.after_calibration.rows
    }
    sections = [
        _summaries("held", "Rows held back from every fit", "Held back", held),
        _summaries("unseen", "Rows unseen", "Unseen", unseen),
        _summaries("fitted", "Rows fitted on", "Fitted", fitted),
    ]
    if after:
        table = errors_table("Table", after)
        words = "Each row was forecast after `rlplan calibrate` on one other row of its framework and GPU."
        sections.append(
            Section(
                key="calibrated",
                title="Rows after calibration",
                short="Calibrated",
                words=(words,),
                parts=(Part(table=table),),
            )
        )
    sections += [_section(number, found) for number, found in enumerate(findings)]
    return Content(
        title="Forecasts against published measurements",
        verdict=_verdict(held),
        is_good=True,
        facts=(Fact(name="Made by", value=command),),
        figures=_tiles(held, unseen, findings),
        sections=tuple(section for section in sections if section is not None),
    )


def _verdict(held: Sequence[Summary]) -> str:
    rows = sum(each.rows for each in held)
    if not rows:
        return "No row was held back from every fit."
    inside = sum((each.coverage or 0.0) * each.rows for each in held) / rows
    return (
        f"Of {rows:,} rows held back from every fit, {inside:.0%} lie between the p10 and the p90 of "
        "their forecast; 80 % would be perfect."
    )


def _tiles(
    held: Sequence[Summary], unseen: Sequence[Summary], findings: Sequence[TableFindings]
) -> tuple[Fact, ...]:
    found = []
    for name, summaries in (("held back", held), ("unseen", unseen)):
        medians = sorted(each.median_error for each in summaries if each.median_error is not None)
        if medians:
            rows = sum(each.rows for each in summaries)
            note = f"of {counted(len(medians), 'table')}, {rows:,} rows; the worst {percent(medians[-1])}"
            middle = medians[len(medians) // 2]
            found.append(Fact(name=f"Usual median error, {name}", value=percent(middle), note=note))
    verdicts = sum(each.whole.verdicts for each in findings)
    if verdicts:
        right = verdicts - sum(each.whole.wrong_verdicts for each in findings)
        found.append(Fact(name="Fits or not, right in", value=f"{right} of {verdicts}"))
    return tuple(found)


def _summaries(key: str, title: str, short: str, found: Sequence[Summary]) -> Section | None:
    if not found:
        return None
    return Section(
        key=key, title=title, short=short, parts=(Part(table=error_summary_table(found)),)
    )


def _section(number: int, found: TableFindings) -> Section:
    parts = []
    if len(found.kinds) > 1:
        parts.append(
            Part(table=error_summary_table(found.kinds), heading="By kind, without fitted rows")
        )
    if found.whole.stages:
        parts.append(
            Part(table=errors_table("Stage", found.whole.stages), heading="Stages of the step")
        )
    if found.misses:
        heading = f"{counted(len(found.misses), 'miss', 'misses')} (errors above {found.miss_fraction:.0%})"
        parts.append(Part(table=miss_table(found), heading=heading, is_folded=True))
    if found.whole.skipped:
        parts.append(
            Part(
                table=skipped_table([found.whole]),
                heading=f"{found.whole.skipped} rows without a forecast",
                is_folded=True,
            )
        )
    return Section(
        key=f"table{number}",
        title=found.whole.table,
        short=found.whole.table,
        words=(found.about,),
        points=tuple(f"{note} ({count} rows)" for note, count in found.whole.notes.items()),
        picture=accuracy_picture(found.whole.table, found.rows) if found.whole.rows else None,
        parts=tuple(parts),
    )


BAND_FRACTION = 0.2
MOST_POINTS = 2000  # of longer tables every so many-th row is drawn

_SIDE, _LEFT, _RIGHT = 330.0, 70.0, 14.0
_MARGIN = 1.3  # free room around the points, as a factor


def accuracy_picture(name: str, rows: Sequence[Row]) -> Picture:
    """Return the picture of a table: fitted rows hollow, all others filled, one colour a kind."""
    known = [row for row in rows if row.error_fraction is not None]
    every = -(-len(known) // MOST_POINTS)
    file_name = "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")
    unit = known[0].unit if known else "seconds"
    return picture(
        _figure(name, known[:: max(1, every)], len(known)),
        name=f"accuracy-{file_name}",
        title=f"{name}: forecast against measured {unit}, {len(known)} rows",
    )


def _figure(name: str, rows: Sequence[Row], count: int) -> Figure:
    kinds = list(dict.fromkeys(row.kind for row in rows))
    colours = {
        kind: SERIES_COLOURS[index % len(SERIES_COLOURS)] for index, kind in enumerate(kinds)
    }
    entries = [
        LegendEntry(kind or "rows", FillStyle(colours[kind]), _counted(rows, kind))
        for kind in kinds
    ]
    with drawing():
        shown = f"{count:,} rows" if count == len(rows) else f"{len(rows):,} of {count:,} rows"
        title = f"{name}: {shown}; the band is 20 % to either side of equality"
        figure, bottom = titled_canvas(title, entries, _SIDE)
        axes = panel_axes(figure, _LEFT, bottom, PAGE_WIDTH - _LEFT - _RIGHT, _SIDE, "forecast")
        _draw_band(axes, rows)
        for kind in kinds:
            _draw_kind(axes, [row for row in rows if row.kind == kind], colours[kind])
        scale_by_decades(axes)
        for each in (axes.xaxis, axes.yaxis):
            each.set_major_formatter(FuncFormatter(lambda value, _: show_seconds(value)))
        dress_axes(axes, "measured", "forecast")
    return figure


def _counted(rows: Sequence[Row], kind: str) -> str:
    """Say how many rows of a kind are drawn filled (not fitted on) and hollow (fitted on)."""
    fitted = sum(row.fitted for row in rows if row.kind == kind)
    held = sum(row.kind == kind for row in rows) - fitted
    return f"{held} not fitted on (filled), {fitted} fitted on (hollow)"


def _draw_band(axes: Axes, rows: Sequence[Row]) -> None:
    measured = [row.measured or 0.0 for row in rows]
    ends = (min(measured) / _MARGIN, max(measured) * _MARGIN)
    low, high = (
        [end * factor for end in ends] for factor in (1 - BAND_FRACTION, 1 + BAND_FRACTION)
    )
    axes.fill_between(ends, low, high, color=FAINT, linewidth=0)
    axes.plot(ends, ends, color=MUTED, linewidth=0.8)


def _draw_kind(axes: Axes, rows: Sequence[Row], colour: str) -> None:
    for is_fitted in (True, False):
        chosen = [row for row in rows if row.fitted == is_fitted]
        measured = [row.measured or 0.0 for row in chosen]
        forecast = [row.predicted or 0.0 for row in chosen]
        axes.plot(
            measured, forecast,
            linestyle="none", marker="o", markersize=3.4, markeredgecolor=colour,
            markerfacecolor="white" if is_fitted else colour, markeredgewidth=0.7,
        )  # fmt: skip


RUNS_PAGE = "fit.md"
WORDS = {
    "host": "Outcomes of a node's host memory, whose size the report gives or the row assumes; said is of that alone.",
    "bug": "The reports find the cause in a fault of a version, not in the configuration; what is said of these "
    "configurations is shown, and counts for nothing.",
}
NO_CAUSE = "not known"
ALLOCATED = (
    "Most bytes that PyTorch had allocated in a trainer's process which is no engine's too (`actor/perf/max_memory_allocated_gb` of "
    "verl's logs since 0.7), beside what is forecast of them: without CUDA's context, communicators and idle blocks."
)
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
    trainers = fit_trainers_table(rows)
    if trainers.rows:
        lines += ["## What trainers allocate", "", ALLOCATED, "", *markdown_lines(trainers), ""]
    lines += ["## Sources", "", *markdown_lines(_sources([row.case for row in rows])), ""]
    path = folder / RUNS_PAGE
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
