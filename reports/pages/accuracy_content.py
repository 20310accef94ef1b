"""The accuracy page in the language of all pages; `rlplan.reports.pages.accuracy` writes its Markdown."""

from collections.abc import Sequence

from rlplan.reports.pages.content import Content, Fact
from rlplan.reports.panels import Part, Section
from rlplan.reports.pictures.accuracy import accuracy_picture
from rlplan.reports.tables.accuracy import (
    error_summary_table,
    errors_table,
    miss_table,
    skipped_table,
)
from rlplan.reports.tables.wording import counted, percent
from rlplan.results.accuracy import Summary, TableFindings


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
