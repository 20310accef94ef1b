"""`rlplan accuracy [TABLE...]`: forecasts against measurements that others published."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan_cli.terminal import JsonOption, echo_json, print_table, progress_bar, say, say_written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlplan.results.accuracy import FitRow, Summary

EXAMPLE = "Example: rlplan accuracy measured/vtrain_training_a100_one_node.csv --rows errors.csv"


def command(
    tables: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Tables (CSV) of a known schema; none: the measurements in evals/held of a checkout."
        ),
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(help="Write every row with its forecast here (CSV).")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a page with plots into this folder.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="Device of tables that do not name theirs; else it is taken from their path."
        ),
    ] = "",
    fit: Annotated[
        bool,
        typer.Option(
            "--fit",
            help="Check configurations that were reported with their outcome (did it fit?) instead; TABLE is a list "
            "of such cases, their files beside it.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Forecast every row of published tables, and print how far off the forecasts are."""
    from rlplan.files.writing import check_files, check_folder, plain, write_text
    from rlplan.planner.measured.reading import read_tables
    from rlplan.planner.measured.rows import summarise
    from rlplan.reports.pages.accuracy import write_accuracy_page
    from rlplan.reports.tables.accuracy import rows_csv
    from rlplan_cli.checkout import known_tables, need_evals

    check_files({"--rows": rows}, inputs=tables or [])
    check_folder("--report", report)
    if fit:
        _fit(tables or [], rows, report, as_json=as_json)
        return
    if not tables:
        need_evals("published measurements")
    known = known_tables()
    with progress_bar("accuracy") as progress:
        found = read_tables(tables or [], known, device, progress)
    summaries = [summarise(each, name) for name, each in found.items()]
    if rows is not None:
        write_text(rows, rows_csv([row for each in found.values() for row in each]))
    if as_json:
        document = {"tables": [plain(each, drop_none=False) for each in summaries]}
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    else:
        _print(summaries)
    if report is not None:
        findings = [known.findings(name, each) for name, each in found.items()]
        say_written(write_accuracy_page(report, findings, _command(tables or [], report)))
    say_written(rows)


def _command(tables: Sequence[Path], report: Path, *options: str) -> str:
    """Return the words that make a page again."""
    names = (path.name for path in tables)
    return shlex.join(["rlplan", "accuracy", *options, *names, "--report", str(report)])


def _print(summaries: Sequence[Summary]) -> None:
    from rlplan.reports.tables.accuracy import error_summary_table, skipped_table

    print_table("Forecast against published measurements", error_summary_table(summaries))
    if any(each.skipped for each in summaries):
        print_table("Rows without a forecast", skipped_table(summaries))
    for summary in summaries:
        if summary.verdicts:
            right = summary.verdicts - summary.wrong_verdicts
            say(f"{summary.table}: fits or not, right in {right} of {summary.verdicts} rows")
        for note, count in summary.notes.items():
            say(f"{summary.table}: {note} ({count} rows)")


def _fit(tables: Sequence[Path], rows: Path | None, report: Path | None, *, as_json: bool) -> None:
    """Check the cases of tables, or those that are held."""
    from rlplan.files.writing import plain, write_text
    from rlplan.planner.measured.reported_runs import about_cases, check_cases, read_cases
    from rlplan.reports.pages.accuracy import write_fit_page
    from rlplan.reports.tables.accuracy import fit_rows_csv, totals_by_group
    from rlplan_cli.checkout import evals_module

    paths = list(tables) or [evals_module("reading", "reported runs").HELD_CASES]
    found: list[FitRow] = []
    with progress_bar("accuracy") as progress:
        for path in paths:
            found += check_cases(read_cases(path), path.parent, progress)
    if rows is not None:
        write_text(rows, fit_rows_csv(found))
    if as_json:
        totals = {name: plain(each) for name, each in totals_by_group(found).items()}
        echo_json({"totals": totals, "rows": [plain(each) for each in found]})
    else:
        _print_fit(found)
    if report is not None:
        note = "\n\n".join(map(about_cases, paths))
        say_written(write_fit_page(report, found, note, _command(tables, report, "--fit")))
    say_written(rows)


def _print_fit(rows: Sequence[FitRow]) -> None:
    from rlplan.reports.tables.accuracy import (
        GROUPS,
        fit_table,
        fit_totals_table,
        fit_trainers_table,
        totals_by_group,
    )

    for group, title in GROUPS.items():
        found = [row for row in rows if row.case.group == group]
        if found:
            print_table(title, fit_table(found))
    trainers = fit_trainers_table(rows)
    if trainers.rows:
        print_table("What trainers allocate", trainers)
    print_table("What is said of reported runs", fit_totals_table(totals_by_group(rows)))
