"""`rlplan validate RUN`: forecast against measurement, task by task."""

from pathlib import Path
from typing import Annotated

import typer

from rlplan_cli.terminal import JsonOption, ProfileOption, SiteOption, echo_json, say

EXAMPLE = "Example: rlplan validate runs/first --profile profiles/mine"


def command(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    profile: ProfileOption = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a run with the forecast stored in it, or with a new one from --profile or --site."""
    from rlplan.planner.answers.completion import load_plan
    from rlplan.results.stored import FORECAST_FILE, PLAN_FILE, read_forecast, read_run
    from rlplan.simulator.simulate import simulate
    from rlplan_cli.running import compare_run, print_errors

    measured = read_run(run)
    stored = (run / FORECAST_FILE).exists()
    if profile is site is None and stored:
        forecast, facts = read_forecast(run / FORECAST_FILE), None
    else:
        plan, facts = load_plan(run / PLAN_FILE, profile, site=site)
        forecast = simulate(plan, facts)
    comparison = compare_run(run, forecast, measured, facts, stores=not stored)
    if as_json:
        echo_json(comparison)
        return
    print_errors(comparison)
    say(
        f"medians over {comparison.compared_iterations} iterations; the first "
        f"{comparison.warmup_iterations} (warm-up) are left out"
    )
