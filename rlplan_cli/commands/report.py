"""`rlplan report RUN|PLAN`: the pages that lay the forecast beside the measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan_cli.terminal import JsonOption, ProfileOption, SiteOption, echo_json, say

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.plan import Plan
    from rlplan.planner.requests.pinned import Pinned
    from rlplan.profiles.facts import Facts
    from rlplan.results.forecast import Forecast, SearchResult

EXAMPLE = "Example: rlplan report runs/first --search search.json --out report"


def command(
    source: Annotated[Path, typer.Argument(help="A run's folder, or a plan's file.")],
    profile: ProfileOption = None,
    site: SiteOption = None,
    search: Annotated[
        Path | None,
        typer.Option(
            help="A search's result (`rlplan search --result`), to say why this plan won."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report; beside the source by default.")
    ] = None,
    what_if: Annotated[
        bool,
        typer.Option(help="Play the plan with longer responses, half the batch and more nodes."),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Write a report (HTML without any network, Markdown, SVG) of a run or of a plan's forecast."""
    from rlplan.files.writing import check_folder
    from rlplan.planner.answers.completion import load_plan
    from rlplan.planner.answers.explain import with_nearest_fit
    from rlplan.results.stored import FORECAST_FILE, PLAN_FILE, read_forecast, read_search
    from rlplan.simulator.simulate import check_played, simulate

    is_run = source.is_dir()
    folder = out or (source / "report" if is_run else source.with_suffix(".report"))
    check_folder("--out", folder)
    found = read_search(search) if search else None
    plan, facts = load_plan(
        source / PLAN_FILE if is_run else source, profile, site=site, misfits=True
    )
    stored, unplayed = source / FORECAST_FILE, ""
    if is_run and profile is site is None and stored.exists():
        forecast = read_forecast(stored)
        unplayed = _lacking(forecast, facts)
    else:
        check_played(plan, str(source))
        forecast = with_nearest_fit(simulate(plan, facts), plan, facts)
    page = report_run(
        folder,
        plan,
        forecast,
        source if is_run else None,
        found,
        facts,
        asks=what_if,
        unplayed=unplayed,
    )
    if as_json:
        echo_json({"report": str(page)})
        return
    if unplayed:
        say(unplayed)
    say(f"report: {page}")


def _lacking(forecast: Forecast, facts: Facts) -> str:
    """Return what a stored forecast rests on that facts do not have, in a sentence; nothing where they agree."""
    if forecast.site is not None:
        return f"other jobs are not played: the forecast is corrected for {forecast.site}, which --site would give"
    if forecast.profile != facts.label:
        return f"other jobs are not played: the forecast rests on {forecast.profile}, which --profile would give"
    return ""


def report_run(
    out: Path,
    plan: Plan,
    forecast: Forecast,
    run_folder: Path | None,
    search: SearchResult | None,
    facts: Facts,
    *,
    asks: bool = True,
    unplayed: str = "",
) -> Path:
    """Write the report of a plan, and of its run if there is one; return the HTML's path.

    Args:
        asks: Whether the plan is played with other jobs too.
        unplayed: Why nothing is worked out from the facts: the forecast rests on others.
    """
    from dataclasses import replace

    from rlplan.planner.answers.plan_details import plan_details
    from rlplan.reports.pages.report import write_report
    from rlplan.reports.panels import Subject

    subject = Subject(plan=plan, forecast=forecast, search=search, unplayed=unplayed)
    if run_folder is not None:
        from rlplan.executor.control.evaluations import read_evaluations, read_samples
        from rlplan.executor.control.metrics import read_metrics
        from rlplan.results.stored import read_run
        from rlplan.simulator.validation import compare, with_usual_replicas
        from rlplan_cli.running import stored_as_run, stored_replicas

        run, as_run = read_run(run_folder), stored_as_run(run_folder)
        by_replicas = stored_replicas(run_folder) if run.replicas else ()
        forecast_of = [row.replicas for row in by_replicas]
        compared = with_usual_replicas(run, forecast_of) if run.replicas else run
        subject = replace(
            subject,
            run=run,
            as_run=as_run,
            comparison=replace(compare(forecast, compared, as_run), replicas=by_replicas),
            metrics=read_metrics(run_folder),
            evaluations=read_evaluations(run_folder),
            samples=read_samples(run_folder),
        )
    if unplayed:
        return write_report(out, subject)
    # Last, for it takes longest: what is wrong with a run's files is told at once.
    details = plan_details(plan, facts, asks=asks, find=_found)
    return write_report(out, replace(subject, details=details))


def _found(job: Job, facts: Facts, pinned: Pinned, seconds: float) -> SearchResult:
    """Return the best that `rlplan search` finds of a job on devices whose facts are known."""
    from rlplan.planner.configs.proposing.searching import plans_of

    return plans_of(job, lambda _: facts, pinned=pinned, seconds=seconds, placements=1)
