"""`rlplan search JOB`: the best plan, its runners-up, and why it wins."""

from pathlib import Path
from typing import Annotated

import typer

from rlplan_cli.terminal import JsonOption, ProfileOption, echo_json, print_table, progress_bar, say

EXAMPLE = "Example: rlplan search examples/ppo-7b-16xa100.yaml --out plan.yaml"


def command(
    job: Annotated[Path, typer.Argument(help="The job's file (YAML).", show_default=False)],
    profile: ProfileOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the best plan to this file.", show_default=False),
    ] = None,
    result: Annotated[
        Path | None,
        typer.Option(
            "--result", help="Write the whole result (JSON) to this file.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the placement, allocation and parallelism of the shortest iteration."""
    from planner.search import search
    from profiles.catalog import load_job
    from profiles.facts import load_facts
    from reports.search_tables import runners_up_table
    from rlplan.units import show_seconds
    from rlplan.writing import write_json, write_yaml

    resolved = load_job(job)
    facts = load_facts(resolved, profile)
    with progress_bar("search") as progress:
        found = search(resolved, facts, progress=progress)
    if out is not None:
        write_yaml(out, found.plans[0].plan)
    if result is not None:
        write_json(result, found)
    if as_json:
        echo_json(found)
        return
    best = found.plans[0]
    print_table("Best plan of every placement", runners_up_table(found))
    say(
        f"best: {best.plan.placement}, {show_seconds(best.forecast.iteration_seconds)} an iteration; "
        f"gap {found.gap:.2%}; searched in {show_seconds(found.search_seconds)}"
    )
    if out is not None:
        say(f"plan written to {out}")
