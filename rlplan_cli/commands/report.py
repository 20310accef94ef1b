"""`rlplan report RUN|PLAN`: the pages that lay the forecast beside the measurement."""

from pathlib import Path
from typing import Annotated

import typer

from rlplan_cli.terminal import JsonOption, ProfileOption, echo_json, say

EXAMPLE = "Example: rlplan report runs/first --search search.json --out report"


def command(
    source: Annotated[
        Path, typer.Argument(help="A run's folder, or a plan's file.", show_default=False)
    ],
    profile: ProfileOption = None,
    search: Annotated[
        Path | None,
        typer.Option(
            help="A search's result (`rlplan search --result`), to say why this plan won.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the report; beside the source by default.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a report (HTML without any network, Markdown, SVG) of a run or of a plan's forecast."""
    from planner.answers.completion import load_plan
    from planner.answers.explain import with_nearest_fit
    from rlplan_cli.outputs import check_folder
    from rlplan_cli.steps import FORECAST_FILE, PLAN_FILE, read_forecast, read_search, report_run
    from simulator.simulate import simulate

    is_run = source.is_dir()
    folder = out or (source / "report" if is_run else source.with_suffix(".report"))
    check_folder("--out", folder)
    found = read_search(search) if search else None
    plan, facts = load_plan(source / PLAN_FILE if is_run else source, profile)
    stored = source / FORECAST_FILE
    if is_run and profile is None and stored.exists():
        forecast = read_forecast(stored)
    else:
        forecast = with_nearest_fit(simulate(plan, facts), plan, facts)
    page = report_run(folder, plan, forecast, source if is_run else None, found)
    if as_json:
        echo_json({"report": str(page)})
        return
    say(f"report: {page}")
