"""`rlplan reproduce NAME`: a published evaluation, every point forecast, its claims marked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlplan_cli.terminal import JsonOption, echo_json, print_table, progress_bar, say_written

EXAMPLE = "Example: rlplan reproduce hybridflow --out reports/published"


def command(
    name: Annotated[str, typer.Argument(help="The evaluation, such as hybridflow or srl.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the page with plots into this folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast every point of a published evaluation, and mark its claims as holding or failing."""
    from rlplan.files.writing import check_folder
    from rlplan.reports.pages.reproduction import write_reproduction_page
    from rlplan.reports.tables.accuracy import claims_table, series_table
    from rlplan_cli.checkout import evals_module

    evaluation = evals_module("reproductions", "published evaluations").load_reproduction(name)
    check_folder("--out", out)
    with progress_bar("reproduce") as progress:
        found = evaluation.reproduce(progress)
    if as_json:
        echo_json(found)
    else:
        print_table("Claims of the paper", claims_table(found.claims))
        print_table("Errors against published values", series_table(found.points))
    if out is not None:
        command_line = f"rlplan reproduce {name} --out {out}"
        say_written(write_reproduction_page(out, found, command_line))
