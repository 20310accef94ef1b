"""`rlplan search JOB`: the best plan, its runners-up, and why it wins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan_cli.search_options import (
    MaxCostOption,
    MaxGpusOption,
    MaxHourOption,
    MaxSecondsOption,
    ModeOption,
    ObjectiveOption,
    ParetoOption,
    SecondsOption,
    SpecOption,
    objectives_of,
    requested_job,
)
from rlplan_cli.terminal import (
    JsonOption,
    ProfileOption,
    SiteOption,
    echo_json,
    print_table,
    progress_bar,
    say,
)

if TYPE_CHECKING:
    from planner.requests.pinned import Pinned
    from profiles.facts import Facts
    from rlplan.job import Job
    from rlplan.results.frontier import Frontier
    from rlplan.results.searched import SearchResult
    from rlplan.units import ShownAs

EXAMPLE = (
    "Example: rlplan search examples/ppo-7b-16xa100.yaml --out plan.yaml; "
    "a front: rlplan search examples/ppo-13b-h100-l40s.yaml --pareto throughput,cost --plot front.svg"
)


def command(  # noqa: PLR0917 -- one parameter an option
    job: Annotated[
        Path,
        typer.Argument(
            help="The file (YAML) of a job, or of a partial plan, whose pinned parts stay as they are.",
            show_default=False,
        ),
    ],
    profile: ProfileOption = None,
    site: SiteOption = None,
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
    objective: ObjectiveOption = None,
    pareto: ParetoOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", help="Draw the front of --pareto into this file (SVG).", show_default=False
        ),
    ] = None,
    seconds: SecondsOption = None,
    mode: ModeOption = None,
    spec: SpecOption = None,
    max_gpus: MaxGpusOption = None,
    max_iteration_seconds: MaxSecondsOption = None,
    max_cost_usd: MaxCostOption = None,
    max_usd_per_hour: MaxHourOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the placement, allocation and parallelism that an objective favours, under limits."""
    from executor.learning.rules import check_rule_names
    from planner.requests.drafts import load_request
    from profiles.facts import load_facts
    from rlplan_cli.outputs import check_files

    limits: dict[str, float | None] = {
        "--max-gpus": max_gpus,
        "--max-iteration-seconds": max_iteration_seconds,
        "--max-cost-usd": max_cost_usd,
        "--max-usd-per-hour": max_usd_per_hour,
    }
    given, pinned = load_request(job)
    resolved = requested_job(given, objective, mode, spec, limits)
    names = objectives_of(pareto) if pareto is not None else None
    check_rule_names(resolved, job)
    files = {"--out": out, "--result": result, "--plot": plot}
    check_files(files, inputs=(job,))
    _check_plot(plot, names)
    facts = load_facts(resolved, profile, site)
    if names is None:
        _search(resolved, facts, pinned, seconds, files, as_json=as_json)
    else:
        _search_front(resolved, facts, pinned, names, seconds, files, as_json=as_json)
    for path in files.values():
        if path is not None:
            say(f"written: {path}")


def _check_plot(plot: Path | None, names: tuple[str, ...] | None) -> None:
    from rlplan.errors import FileError

    if plot is None:
        return
    if names is None:
        raise FileError("--plot", "draws a front", value=str(plot), allowed="with --pareto only")
    if plot.suffix != ".svg":
        raise FileError(
            "--plot", "is no SVG file", value=str(plot), allowed="a name ending in .svg"
        )


def _search(
    job: Job,
    facts: Facts,
    pinned: Pinned,
    seconds: float | None,
    files: dict[str, Path | None],
    *,
    as_json: bool,
) -> None:
    from planner.answers.best_plans import best_plans
    from rlplan.files.writing import write_json, write_yaml
    from rlplan.results.stored import search_document

    with progress_bar("search") as progress:
        found = best_plans(job, facts, pinned=pinned, seconds=seconds, progress=progress)
    if (out := files["--out"]) is not None:
        write_yaml(out, found.plans[0].plan)
    if (result := files["--result"]) is not None:
        write_json(result, search_document(found))
    if as_json:
        echo_json(search_document(found))
    else:
        _print(found, job)


def _search_front(
    job: Job,
    facts: Facts,
    pinned: Pinned,
    names: tuple[str, ...],
    seconds: float | None,
    files: dict[str, Path | None],
    *,
    as_json: bool,
) -> None:
    from planner.answers.best_plans import best_front
    from reports.pictures.frontier import frontier_picture
    from rlplan.files.writing import write_json, write_text, write_yaml

    with progress_bar("front") as progress:
        found = best_front(job, facts, names, pinned=pinned, seconds=seconds, progress=progress)
    if (out := files["--out"]) is not None:
        write_yaml(out, found.points[0].candidate.plan)
    if (result := files["--result"]) is not None:
        write_json(result, found)
    if (plot := files["--plot"]) is not None:
        write_text(plot, frontier_picture(found, _shown_as(found)).file_text)
    if as_json:
        echo_json(found)
    else:
        _print_front(found)


def _print_front(found: Frontier) -> None:
    from reports.tables.frontier import frontier_table
    from rlplan.units import show_seconds

    named = " and ".join(found.objectives)
    print_table(f"Plans that no other beats in {named}", frontier_table(found, _shown_as(found)))
    say(
        f"{len(found.points)} plans of the front, from {found.searches} searches in "
        f"{show_seconds(found.search_seconds)}"
    )
    for assumption in found.points[0].candidate.forecast.assumptions:
        say(f"assumed: {assumption}")


def _shown_as(found: Frontier) -> dict[str, ShownAs]:
    from planner.objectives import load_objective

    return {name: load_objective(name).shown_as for name in found.objectives}


def _print(found: SearchResult, job: Job) -> None:
    from planner.objectives import load_objective
    from reports.tables.frontier import worth_table
    from reports.tables.searches import infeasible_table, short_runners_up_table
    from rlplan.units import show_seconds
    from simulator.timeline.assemble import batch_tokens

    best, objective = found.plans[0], load_objective(job.objective)
    table, worth = short_runners_up_table(found), ""
    if objective.limit != "iteration_seconds":
        tokens, shown = batch_tokens(job), objective.shown_as
        values = [objective.value(each.forecast, tokens) for each in found.plans]
        table = worth_table(found, shown, values)
        worth = f"{shown.words(values[0])} {shown.heading}, "
    print_table("Best plan of every placement", table)
    if found.infeasible:
        print_table("Placements without a plan that fits", infeasible_table(found))
    say(
        f"best: {best.plan.placement}, {worth}"
        f"{show_seconds(best.forecast.iteration_seconds)} an iteration; "
        f"gap {found.gap:.2%}; searched in {show_seconds(found.search_seconds)}; "
        f"{best.forecast.free_fraction:.0%} of memory stays free on the fullest GPU"
    )
    for assumption in best.forecast.assumptions:
        say(f"assumed: {assumption}")
