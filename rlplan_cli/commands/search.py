"""`rlplan search JOB`: the best plan, its runners-up, and why it wins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan_cli.terminal import JsonOption, ProfileOption, echo_json, print_table, progress_bar, say

if TYPE_CHECKING:
    from rlplan.searched import SearchResult

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
    from rlplan.writing import write_json, write_yaml
    from rlplan_cli.outputs import check_files
    from rlplan_cli.steps import check_rule_name, search_document

    resolved = load_job(job)
    check_rule_name(resolved, job)
    check_files({"--out": out, "--result": result}, inputs=(job,))
    facts = load_facts(resolved, profile)
    with progress_bar("search") as progress:
        found = search(resolved, facts, progress=progress)
    if out is not None:
        write_yaml(out, found.plans[0].plan)
    if result is not None:
        write_json(result, search_document(found))
    if as_json:
        echo_json(search_document(found))
    else:
        _print(found)
    for path in (out, result):
        if path is not None:
            say(f"written: {path}")


def _print(found: SearchResult) -> None:
    from reports.search_tables import infeasible_table, short_runners_up_table
    from rlplan.units import show_seconds

    best = found.plans[0]
    print_table("Best plan of every placement", short_runners_up_table(found))
    if found.infeasible:
        print_table("Placements without a plan that fits", infeasible_table(found))
    say(
        f"best: {best.plan.placement}, {show_seconds(best.forecast.iteration_seconds)} an iteration; "
        f"gap {found.gap:.2%}; searched in {show_seconds(found.search_seconds)}"
    )
