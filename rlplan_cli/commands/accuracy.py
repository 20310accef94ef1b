"""`rlplan accuracy [TABLE...]`: forecasts against measurements that others published."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from rlplan_cli.terminal import JsonOption, print_table, progress_bar, say, say_written

EXAMPLE = "Example: rlplan accuracy measured/vtrain_training_a100_one_node.csv --rows errors.csv"


def command(
    tables: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Tables (CSV) of a known schema; none: the measurements that rlplan holds."
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
    as_json: JsonOption = False,
) -> None:
    """Forecast every row of published tables, and print how far off the forecasts are."""
    from planner.evaluation.reading import about, read_tables
    from planner.evaluation.summary import findings_of, summarise
    from reports.pages.accuracy import write_accuracy_page
    from reports.tables.accuracy import error_summary_table, rows_csv, skipped_table
    from rlplan.files.writing import plain, write_text
    from rlplan_cli.outputs import check_files, check_folder

    check_files({"--rows": rows}, inputs=tables or [])
    check_folder("--report", report)
    with progress_bar("accuracy") as progress:
        found = read_tables(tables or [], device, progress)
    summaries = [summarise(each, name) for name, each in found.items()]
    if rows is not None:
        write_text(rows, rows_csv([row for each in found.values() for row in each]))
    if as_json:
        document = {"tables": [plain(each, drop_none=False) for each in summaries]}
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    else:
        print_table("Forecast against published measurements", error_summary_table(summaries))
        if any(each.skipped for each in summaries):
            print_table("Rows without a forecast", skipped_table(summaries))
        for summary in summaries:
            if summary.verdicts:
                right = summary.verdicts - summary.wrong_verdicts
                say(f"{summary.table}: fits or not, right in {right} of {summary.verdicts} rows")
            for note, count in summary.notes.items():
                say(f"{summary.table}: {note} ({count} rows)")
    if report is not None:
        command_line = [
            "rlplan",
            "accuracy",
            *(path.name for path in tables or []),
            "--report",
            str(report),
        ]
        findings = [findings_of(name, each, about(each)) for name, each in found.items()]
        say_written(write_accuracy_page(report, findings, shlex.join(command_line)))
    say_written(rows)
