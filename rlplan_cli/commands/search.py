"""`rlplan search JOB`: the best plan, its runners-up, and why it wins."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rlplan.plan import Mode
from rlplan.planner.configs.frameworks import names_in_words
from rlplan.planner.objectives import objectives_words
from rlplan_cli.amounts import number_of_gpus
from rlplan_cli.config_options import complete_written
from rlplan_cli.configured import ScriptGpuOption, ScriptOptions, own_mode, requested
from rlplan_cli.interface import mode_staleness, named_modes
from rlplan_cli.run_options import RunOptions, asked_run
from rlplan_cli.terminal import (
    JsonOption,
    ProfileOption,
    ReportOption,
    SiteOption,
    WhyOption,
    echo_json,
    print_table,
    progress_bar,
    say,
    say_written,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlplan.job import Job, Specs
    from rlplan.plan import Plan
    from rlplan.planner.answers.run_limits import AskedRun
    from rlplan.planner.configs.proposing.searching import UnrestrictedPlans
    from rlplan.planner.requests.pinned import Pinned
    from rlplan.profiles.facts import Facts
    from rlplan.reports.tables.plans import Table
    from rlplan.results.forecast import Frontier, SearchResult
    from rlplan.units import ShownAs
    from rlplan_cli.configured import Configured

LIMITS = "Limits"


ObjectiveOption = Annotated[
    str | None, typer.Option(help=f"What to minimise: {objectives_words()}.  [default: the job's]")
]
ParetoOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B[,C]",
        help="Find the plans that no other beats in two or three objectives, such as throughput,cost.",
    ),
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Stop (each search of --pareto) after so long, with the best plan so far and its gap.",
    ),
]
ForOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="FRAMEWORK",
        autocompletion=complete_written,
        help=f"Search only what {names_in_words('keys', 'writing')} can run; `rlplan export` then writes its configuration.  "
        "[default: the job's framework, if it is one of them]",
    ),
]
BeyondOption = Annotated[
    bool,
    typer.Option(
        "--beyond",
        help="Look further than what the job's framework can run, and say what that would bring.",
    ),
]
LendOption = Annotated[
    bool,
    typer.Option(
        "--lend",
        help="Try, on the best plans that stream, what idle GPUs bring that are lent to the other side (docs/elastic.md).",
    ),
]
StandsOption = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        help="The job's plan as it stands, such as `rlplan import --plan` writes: one of the candidates, whatever its sizes.",
    ),
]
ModeOption = Annotated[
    Mode | None,
    typer.Option(
        help="The mode in which plans may run where that is better than sync: streaming, one-step-off (weights "
        "one update old), or async (as old as --spec staleness=N allows, 1 if nothing is said). Episodes in environments "
        "run in all of them."
    ),
]
SpecOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A limit that every plan keeps: iteration_seconds (of a step), gpus, cost_usd (of a step), "
        "usd_per_hour, energy_joules (of a step), memory_headroom_fraction (at least), "
        "staleness, run_seconds (of the job's steps). Comes before the job's own; may be given several times.",
        rich_help_panel=LIMITS,
    ),
]
MaxGpusOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", parser=number_of_gpus, help="Most GPUs: 16, or 2x8.", rich_help_panel=LIMITS
    ),
]
MaxSecondsOption = Annotated[
    float | None, typer.Option(help="Longest step, in seconds.", rich_help_panel=LIMITS)
]
MaxCostOption = Annotated[
    float | None, typer.Option(help="Most money for a step.", rich_help_panel=LIMITS)
]
MaxHourOption = Annotated[
    float | None,
    typer.Option(help="Most money for an hour of all the plan's GPUs.", rich_help_panel=LIMITS),
]


def requested_job(
    job: Job,
    objective: str | None,
    mode: Mode | None,
    specs: list[str] | None,
    limits: dict[str, float | None],
) -> Job:
    """Return the job with the objective and the limits that the command line gives.

    Args:
        specs: Pairs `name=value`.
        limits: Specs that have options of their own.

    Raises:
        UserError: A name is not known or a value is not allowed.
    """
    from rlplan.errors import FileError
    from rlplan.planner.objectives import load_objective

    name = objective or job.objective
    load_objective(name)
    own = {spec: value for spec, value in limits.items() if value is not None}
    given: dict[str, Any] = {}
    for spec, value in (*map(_pair, specs or ()), *own.items()):
        if given.setdefault(spec, value) != value:
            problem, allowed = "says two limits of the same name", "one of them"
            found = f"{given[spec]:g} and {value:g}"
            raise FileError("--spec", problem, field=spec, value=found, allowed=allowed)
    if mode is not None:
        known = given.get("staleness", job.specs.staleness)
        given["staleness"] = mode_staleness(mode, known)
    return replace(job, objective=name, specs=_with(job.specs, given))


def _pair(text: str) -> tuple[str, Any]:
    from rlplan.errors import FileError

    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        allowed = "NAME=VALUE, such as gpus=16"
        raise FileError("--spec", "is no limit", value=text, allowed=allowed) from None
    return name.strip(), int(number) if number.is_integer() else number


def _with(specs: Specs, given: dict[str, Any]) -> Specs:
    from rlplan.files.decoding import decode
    from rlplan.job import Specs

    return decode(Specs, {**specs.given, **given}, "--spec")


def objectives_of(pareto: str) -> tuple[str, ...]:
    """Return the objectives that `--pareto` names.

    Raises:
        UserError: They are not two or three different objectives.
    """
    from rlplan.planner.answers.best_plans import check_names

    names = tuple(name.strip() for name in pareto.split(","))
    check_names(names)
    return names


# Of a search under limits that a run has put on its steps: to prove that nothing is better just within one takes minutes.
LIMITED_SECONDS = 30.0

# Of placements, where `--all` does not ask for every one.
SHOWN_PLACEMENTS = 5

EXAMPLE = (
    "Example: rlplan search examples/ppo-7b-16xa100.yaml --out plan.yaml; "
    "a front: rlplan search examples/ppo-13b-h100-l40s.yaml --pareto throughput,cost --plot front.svg"
)


def command(
    *,
    job: Annotated[
        Path,
        typer.Argument(
            help="The file (YAML) of a job, or of a partial plan, whose pinned parts stay as they are; or a framework's script or "
            "recipe, whose own plan is then one of the candidates."
        ),
    ],
    profile: ProfileOption = None,
    site: SiteOption = None,
    out: Annotated[Path | None, typer.Option(help="Write the best plan to this file.")] = None,
    result: Annotated[
        Path | None, typer.Option(help="Write the whole result (JSON) to this file.")
    ] = None,
    objective: ObjectiveOption = None,
    whole_run: RunOptions,
    pareto: ParetoOption = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the front of --pareto into this file (SVG).")
    ] = None,
    seconds: SecondsOption = None,
    mode: ModeOption = None,
    target: ForOption = None,
    beyond: BeyondOption = False,
    lend: LendOption = False,
    stands: StandsOption = None,
    gpu: ScriptGpuOption = None,
    beside: ScriptOptions,
    spec: SpecOption = None,
    max_gpus: MaxGpusOption = None,
    max_iteration_seconds: MaxSecondsOption = None,
    max_cost_usd: MaxCostOption = None,
    max_usd_per_hour: MaxHourOption = None,
    report: ReportOption = None,
    all_placements: Annotated[
        bool, typer.Option("--all", help="Show every placement, not only the five best.")
    ] = False,
    why: WhyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the placement, allocation and parallelism that an objective favours, under limits."""
    from rlplan.executor.learning.rules import check_rule_names
    from rlplan.files.writing import check_files, check_folder
    from rlplan.planner.search import check_searched
    from rlplan.profiles.facts import load_facts
    from rlplan_cli.data import check_data

    limits: dict[str, float | None] = {
        "gpus": max_gpus,
        "iteration_seconds": max_iteration_seconds,
        "cost_usd": max_cost_usd,
        "usd_per_hour": max_usd_per_hour,
    }
    given, pinned, script = requested(job, beside.given(gpu), beside.framework)
    own = _own_plan(script, stands, (profile, site), fronts=pareto is not None)
    mode = mode or own_mode(own if script else None)
    pinned = named_modes(pinned, mode)
    resolved = requested_job(given, objective, mode, spec, limits)
    names = objectives_of(pareto) if pareto is not None else None
    check_searched(resolved, str(job), pinned.asked.modes)
    check_rule_names(resolved, job)
    check_data(resolved, Path() if script else job.parent)
    files = {"--out": out, "--result": result, "--plot": plot}
    check_files(files, inputs=(job,))
    check_folder("--report", report)
    _check_plot(plot, names, objective)
    _check_target(target, pareto, beyond=beyond, lend=lend)
    run = asked_run(whole_run)
    _check_run(run, pareto, beyond=beyond)
    facts_of = partial(load_facts, profile=profile, site=site)
    file = None if script is None else script.file
    asked = SearchRequest(resolved, pinned, target, seconds, facts_of, own, lend, run, why, file)
    if names is not None:
        _tell_front(_front(asked, names), files, report, as_json=as_json)
    else:
        shown = {"shows_all": all_placements, "as_json": as_json}
        _tell_best(asked, files, report, beyond=beyond, **shown)
    say_written(*files.values())


class SearchRequest(NamedTuple):
    """Hold what is searched: a job, what is pinned of its plans, for which framework, and with which facts.

    Attributes:
        own: A plan that is one of the candidates.
        script: What that plan is of, where a framework's script or recipe was given.
    """

    job: Job
    pinned: Pinned
    target: str | None
    seconds: float | None
    facts_of: Callable[[Job], Facts]
    own: Plan | None
    lends: bool = False
    run: AskedRun | None = None
    why: bool = False
    script: str | None = None


def _front(asked: SearchRequest, names: tuple[str, ...]) -> Frontier:
    """Return the front over some objectives, each plan with its whole run where that was asked for."""
    from rlplan.planner.configs.proposing.searching import front_of

    with progress_bar("front") as progress:
        front = front_of(
            asked.job,
            asked.facts_of,
            names,
            target=asked.target,
            pinned=asked.pinned,
            seconds=asked.seconds,
            progress=progress,
        )
    return front if asked.run is None else _with_runs(front, asked.facts_of, asked.run)


def _own_plan(
    script: Configured | None,
    stands: Path | None,
    known: tuple[Path | None, Path | None],
    *,
    fronts: bool,
) -> Plan | None:
    """Return the plan that is one of the candidates: a file's as it stands, or a script's own; None where there is none.

    Args:
        known: Files: a profile, a site's factors.
        fronts: Whether a front is looked for, which takes no plan as it stands.

    Raises:
        UserError: The plan is wrong, or there are two of them.
    """
    from rlplan.errors import FileError
    from rlplan.planner.answers.completion import load_plan

    profile, site = known
    if script is None:
        if stands is None:
            return None
        return load_plan(stands, profile, site=site, misfits=True)[0]
    if stands is not None:
        problem, allowed = "is said by the script", "without it"
        raise FileError("--plan", problem, value=str(stands), allowed=allowed)
    for each in script.doubts():
        say(each)
    if fronts:
        return None
    plan, why_none = script.candidate(profile, site)
    if why_none:
        say(why_none)
    return plan


def _tell_best(
    asked: SearchRequest,
    files: dict[str, Path | None],
    report: Path | None,
    *,
    beyond: bool,
    shows_all: bool,
    as_json: bool,
) -> None:
    """Search the best plan, write and print it; make its report."""
    from rlplan.planner.configs.proposing.searching import plans_beyond, plans_of
    from rlplan.results.stored import search_document

    job, facts_of = asked.job, asked.facts_of
    tells_all = shows_all or as_json or report is not None or files["--result"] is not None
    # Lending, and nodes that come and go, may make another of the plans the best one.
    tells_all = tells_all or asked.lends or job.has_spot
    with progress_bar("search") as progress:
        options: dict[str, Any] = {
            "pinned": asked.pinned,
            "seconds": asked.seconds,
            "progress": progress,
        }
        further = plans_beyond(job, facts_of, **options) if beyond else None
        wide = None if further is None else further.result

        def search(job: Job) -> SearchResult:
            is_limited = asked.seconds is None and job.specs != asked.job.specs
            limit = {"seconds": LIMITED_SECONDS} if is_limited else {}
            given = {**options, **limit}
            return plans_of(
                job,
                facts_of,
                target=asked.target,
                as_it_stands=asked.own,
                placements=None if tells_all else SHOWN_PLACEMENTS,
                **given,
            )

        found = wide or _within(asked, search) or search(job)
    found = _with_answers(found, asked)
    _write(found, files)
    if as_json:
        echo_json(search_document(found))
    else:
        _print(found, facts_of(found.plans[0].plan.job), asked, all_placements=shows_all)
        _print_own(found, asked)
        _print_target(found, asked, further)
    if report is not None:
        files["--report"] = _report(found, report, asked)


def _print_own(found: SearchResult, asked: SearchRequest) -> None:
    """Say what a step of the script's own plan takes, beside the best one's where that is shortest, and which limits it breaks."""
    from rlplan.planner.objectives import load_objective
    from rlplan.planner.requests.specs import faults
    from rlplan.simulator.simulate import simulate
    from rlplan.units import show_seconds

    if asked.script is None or asked.own is None:
        return
    own = simulate(asked.own, asked.facts_of(asked.own.job))
    best, seconds = found.plans[0].forecast.iteration_seconds, own.iteration_seconds
    is_shortest = load_objective(asked.job.objective).limit == "iteration_seconds"
    differs = is_shortest and seconds != best
    share = f", {seconds / best - 1:+.1%} against the best" if differs else ""
    wrong = "".join(f"; it {each}" for each in faults(replace(asked.own, job=asked.job), own))
    say(f"{asked.script} as it stands: {show_seconds(seconds)} a step{share}{wrong}")


def _within(asked: SearchRequest, search: Callable[[Job], SearchResult]) -> SearchResult | None:
    """Return the plans whose best keeps what its whole run may take; None where nothing limits a run."""
    from rlplan.planner.answers.run_limits import plans_within

    if asked.run is None or not asked.run.has_limits:
        return None
    return plans_within(asked.job, asked.facts_of(asked.job), asked.run, search)


def _check_run(run: AskedRun | None, pareto: str | None, *, beyond: bool) -> None:
    """Refuse a run of many plans, and limits of a run where a framework's own plans are looked beyond.

    Raises:
        FileError: Names the option.
    """
    from rlplan.errors import FileError

    if run is not None and run.has_limits and pareto is not None:
        problem = "shows what every run takes, and keeps no limit of it"
        raise FileError(
            "--pareto", problem, value=pareto, allowed="without --budget-usd and --max-days"
        )
    if run is not None and run.has_limits and beyond:
        problem = "looks at all plans, whatever their runs take"
        raise FileError("--beyond", problem, allowed="without --budget-usd and --max-days")


def _with_answers(found: SearchResult, asked: SearchRequest) -> SearchResult:
    """Add to a result what lending brings, if that was asked for, and what the job's deadline costs."""
    from rlplan.planner.answers.run_limits import deadline_price, with_run
    from rlplan.planner.answers.variants import on_spot_nodes, with_lending
    from rlplan.planner.configs.proposing.searching import plans_of

    job, facts = asked.job, asked.facts_of(found.plans[0].plan.job)
    started = time.perf_counter() - found.search_seconds

    def left() -> float | None:
        return None if asked.seconds is None else asked.seconds - (time.perf_counter() - started)

    if asked.lends:
        found = with_lending(found, job, facts, left())
    found = on_spot_nodes(found, job, facts, left())
    if asked.run is not None and found.plans[0].forecast.run is None:
        found = with_run(found, facts, asked.run)
    if job.specs.run_seconds is None:
        return found
    with progress_bar("deadline") as progress:

        def search(job: Job) -> SearchResult:
            return plans_of(
                job,
                asked.facts_of,
                target=asked.target,
                pinned=asked.pinned,
                seconds=asked.seconds,
                progress=progress,
                placements=1,
            )

        return replace(found, deadline=deadline_price(job, found, search))


def _report(found: SearchResult, folder: Path, asked: SearchRequest) -> Path:
    from rlplan_cli.commands.report import report_run

    best = found.plans[0]
    facts = asked.facts_of(best.plan.job)
    return report_run(folder, best.plan, best.forecast, None, found, facts)


def _check_plot(plot: Path | None, names: tuple[str, ...] | None, objective: str | None) -> None:
    """Refuse a plot of one plan, and one objective beside those of a front.

    Raises:
        FileError: Names the option.
    """
    from rlplan.errors import FileError

    if objective is not None and names is not None:
        problem, allowed = "is of one best plan, and a front has its own", "without --pareto"
        raise FileError("--objective", problem, value=objective, allowed=allowed)
    if plot is not None and names is None:
        raise FileError("--plot", "draws a front", value=str(plot), allowed="with --pareto only")
    if plot is not None and plot.suffix != ".svg":
        allowed = "a name ending in .svg"
        raise FileError("--plot", "is no SVG file", value=str(plot), allowed=allowed)


def _check_target(target: str | None, pareto: str | None, *, beyond: bool, lend: bool) -> None:
    """Refuse to look beyond a framework that is named, or for a front, and to lend on one or in one that lends nothing.

    Raises:
        FileError: Names the option.
    """
    from rlplan.errors import FileError

    if beyond and target is not None:
        raise FileError("--beyond", "looks further than --for", value=target, allowed="one of them")
    if lend and target is not None:
        problem = "finds plans that no framework's settings can say"
        raise FileError("--lend", problem, value=target, allowed="without --for")
    for option, is_given in (("--beyond", beyond), ("--lend", lend)):
        if is_given and pareto is not None:
            raise FileError(
                option, "is for one objective", value=pareto, allowed="without --pareto"
            )


def _say_engine(found: SearchResult, asked: SearchRequest, own: str | None) -> None:
    """Say with which engine another framework than the job's was searched, where the job has another one or options of its own.

    Args:
        own: The job's framework.
    """
    from rlplan.planner.configs.writing.export import family

    generates, named = found.plans[0].plan.job.engines.generate or "", asked.job.engines.generate
    told = []
    if named is not None and family(named) != family(generates):
        told.append(f"{named} is none of {asked.target}'s engines")
    if own is not None:
        told.append(f"the job's options are those of {own}")
    if told:
        say(f"searched with {generates}, as {asked.target} generates today; {'; '.join(told)}")


def _print_target(
    found: SearchResult, asked: SearchRequest, further: UnrestrictedPlans | None
) -> None:
    """Say for which framework the plan is, or what one beyond it brings."""
    from rlplan.planner.configs.proposing.searching import target_of
    from rlplan.units import show_seconds

    if further is None:
        own = target_of(asked.job)
        target = asked.target or own
        if asked.target and own != asked.target:
            _say_engine(found, asked, own)
        if target is not None:
            more = "" if asked.target else ": --beyond looks further"
            say(f"searched what {target} can run{more}; `rlplan export` writes its configuration")
        return
    seconds = show_seconds(found.plans[0].forecast.iteration_seconds)
    if further.within is None:
        say(f"beyond {further.title}: {seconds} a step; {further.title} itself can run no plan")
    elif further.gain <= 0:
        say(f"beyond {further.title}: nothing better than what it can run")
    else:
        own = show_seconds(further.within.plans[0].forecast.iteration_seconds)
        say(
            f"beyond {further.title}: {seconds} a step, {further.gain:.1%} better in {asked.job.objective} than its best "
            f"({own}): needs {further.needs or 'nothing that it lacks'}"
        )


def _write(found: SearchResult, files: dict[str, Path | None]) -> None:
    from rlplan.files.writing import write_json
    from rlplan.results.stored import search_document, write_plan

    if (out := files["--out"]) is not None:
        write_plan(out, found.plans[0].plan)
    if (result := files["--result"]) is not None:
        write_json(result, search_document(found))


def _with_runs(found: Frontier, facts_of: Callable[[Job], Facts], asked: AskedRun) -> Frontier:
    """Return a front, each plan with the forecast of its whole run."""
    from rlplan.planner.answers.run_limits import candidate_with_run

    points = (
        replace(point, candidate=candidate_with_run(each, facts_of(each.plan.job), asked))
        for point, each in ((point, point.candidate) for point in found.points)
    )
    return replace(found, points=tuple(points))


def _tell_front(
    found: Frontier, files: dict[str, Path | None], report: Path | None, *, as_json: bool
) -> None:
    from rlplan.files.writing import write_json, write_text
    from rlplan.reports.pictures.frontier import frontier_picture
    from rlplan.results.stored import write_plan

    if (out := files["--out"]) is not None:
        write_plan(out, found.points[0].candidate.plan)
    if (result := files["--result"]) is not None:
        write_json(result, found)
    if (plot := files["--plot"]) is not None:
        write_text(plot, frontier_picture(found, _shown_as(found)).file_text)
    if report is not None:
        from rlplan.reports.pages.front import write_front_page

        files["--report"] = write_front_page(report, found, _shown_as(found))
    if as_json:
        echo_json(found)
    else:
        _print_front(found)


def _print_front(found: Frontier) -> None:
    from rlplan.reports.pages.front import runs_table
    from rlplan.reports.tables.searches import front_words, frontier_table
    from rlplan.units import show_seconds

    named = " and ".join(found.objectives)
    print_table(f"Plans that no other beats in {named}", frontier_table(found, _shown_as(found)))
    if (runs := runs_table(found)).rows:
        print_table("Whole runs", runs, spare=("Cost, p10 to p90", "p10 to p90"))
    say(f"{front_words(found)}; searched in {show_seconds(found.search_seconds)}")
    for assumption in found.points[0].candidate.forecast.assumptions:
        say(f"assumed: {assumption}")


def _shown_as(found: Frontier) -> dict[str, ShownAs]:
    from rlplan.planner.objectives import load_objective

    return {name: load_objective(name).shown_as for name in found.objectives}


def _print(
    found: SearchResult, facts: Facts, asked: SearchRequest, *, all_placements: bool
) -> None:
    from rlplan.reports.tables.searches import (
        best_of_placements,
        deadline_words,
        infeasible_table,
        mode_words,
        short_runners_up_table,
        unseen_words,
    )
    from rlplan_cli.terminal import print_answer, print_remarks

    best = found.plans[0]
    job = best.plan.job
    print_answer(best.plan, best.forecast, facts, run=asked.run)
    number = len(best_of_placements(found)) + len(found.left_out)
    misfits = len(found.infeasible)
    most = None if all_placements else SHOWN_PLACEMENTS
    title = "Best plan of every placement"
    if most is not None and number > most:
        title = f"The {most} best of {number} placements (--all shows all)"
    print_table(title, _worth(found, job, short_runners_up_table(found, most), most))
    if misfits and all_placements:
        print_table("Placements without a plan that fits", infeasible_table(found))
    say(_certificate(found, job))
    if words := mode_words(found, *_values(found, job)):
        say(words)
    if misfits and not all_placements:
        say(f"{misfits} placements have no plan that fits (--all says why)")
    if found.unseen:
        say(unseen_words(found.unseen))
    if found.deadline is not None:
        say(deadline_words(found.deadline))
    print_remarks(best.forecast, also=_asked_by_default(job), why=asked.why)


def _asked_by_default(job: Job) -> list[str]:
    """Return what the search took as asked for where the job and the options say nothing."""
    from rlplan.planner.requests.specs import USUAL_HEADROOM

    found = []
    if not job.specs.staleness:
        found.append("steps follow one another; --mode lets generation run ahead")
    if job.specs.memory_headroom_fraction is None:
        found.append(
            f"{USUAL_HEADROOM:.0%} of every GPU's memory stays free; --spec memory_headroom_fraction=... says otherwise"
        )
    return found


def _worth(found: SearchResult, job: Job, table: Table, most: int | None) -> Table:
    """Return the table of placements, by the figure of the job's objective where that is not time."""
    from rlplan.reports.tables.searches import worth_table

    shown_as, values = _values(found, job)
    if shown_as is None:
        return table
    return worth_table(replace(found, plans=found.plans[:most]), shown_as, values[:most])


def _values(found: SearchResult, job: Job) -> tuple[ShownAs | None, list[float]]:
    """Return how the job's objective is shown, and its value of each plan; None and none where it is time."""
    from rlplan.planner.objectives import load_objective
    from rlplan.simulator.timeline.assemble import batch_tokens

    objective = load_objective(job.objective)
    if objective.limit == "iteration_seconds":
        return None, []
    return objective.shown_as, [
        objective.value(each.forecast, batch_tokens(job)) for each in found.plans
    ]


def _schedule(plan: Plan) -> str:
    """Return how a plan's iterations follow each other, and its split of GPUs, where they overlap."""
    from rlplan.planner.requests.schedules import schedule_of

    if not plan.flow.overlaps:
        return ""
    generating = plan.pool_of("actor.generate")
    others = sum(pool.gpus for pool in plan.pools if not pool.is_host and pool != generating)
    return f"{schedule_of(plan).words}, {generating.gpus} GPUs generate beside {others}, "


def _certificate(found: SearchResult, job: Job) -> str:
    """Return the best plan's placement with what the search knows of it."""
    from rlplan.planner.objectives import load_objective
    from rlplan.simulator.timeline.assemble import batch_tokens
    from rlplan.units import show_seconds

    best, objective = found.plans[0], load_objective(job.objective)
    value = objective.value(best.forecast, batch_tokens(job))
    shown = objective.shown_as
    is_time = objective.limit == "iteration_seconds"
    worth = "" if is_time else f"{shown.words(value)} {shown.unit}, "
    proof = "proven best" if found.gap <= 0 else f"at most {found.gap:.2%} from the best"
    if best.plan.lending is not None:
        proof = "nothing bounds other plans that lend"
    return (
        f"best: {best.plan.placement}, {_schedule(best.plan)}{worth}"
        f"{show_seconds(best.forecast.iteration_seconds)} a step; {proof} under the cost model; "
        f"searched in {show_seconds(found.search_seconds)}\n"
        f"best of {found.space}"
    )
