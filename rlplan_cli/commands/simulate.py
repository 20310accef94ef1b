"""`rlplan simulate PLAN`: the forecast of one plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan_cli.configured import ScriptGpuOption, ScriptOptions, configured
from rlplan_cli.run_options import RunOptions, asked_run, keeps_run
from rlplan_cli.terminal import (
    JsonOption,
    ProfileOption,
    ReportOption,
    SiteOption,
    WhyOption,
    echo_json,
    print_table,
    say,
    say_written,
)

if TYPE_CHECKING:
    from rlplan.plan import Plan
    from rlplan.planner.answers.run_limits import AskedRun
    from rlplan.profiles.facts import Facts
    from rlplan.results.forecast import Forecast
    from rlplan.simulator.whole_run import Curve
    from rlplan_cli.configured import Configured

EXAMPLE = "Example: rlplan simulate examples/ppo-7b-16xa100.plan.yaml --trace trace.json"

LengthsOption = Annotated[
    Path | None,
    typer.Option(
        help="Mean response length by step of such a run (CSV: step,response_tokens; or a log)."
    ),
]


def command(
    *,
    plan: Annotated[
        Path,
        typer.Argument(help="A plan's file, or a run's folder; or a framework's script or recipe."),
    ],
    profile: ProfileOption = None,
    site: SiteOption = None,
    iterations: Annotated[int, typer.Option(min=1, max=1000, help="Iterations to play.")] = 1,
    whole_run: RunOptions,
    lengths: LengthsOption = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write the timeline here, for Perfetto or chrome://tracing.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the forecast (JSON) here.")] = None,
    out_plan: Annotated[
        Path | None,
        typer.Option(help="Write the plan here, with all that its file leaves open chosen."),
    ] = None,
    gpu: ScriptGpuOption = None,
    beside: ScriptOptions,
    report: ReportOption = None,
    why: WhyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Forecast a plan: seconds by task, memory by term, cost, energy and warnings.

    The exit code is 2 where it does not fit, breaks a limit of its job's `specs` or of the run, or nothing fits that
    keeps what is pinned.
    """
    from rlplan.errors import InfeasibleError
    from rlplan.executor.learning.rules import check_rule_names
    from rlplan.files.writing import check_files, check_folder
    from rlplan.planner.requests.specs import broken_words
    from rlplan.reports.tables.plans import host_terms_table, memory_terms_table
    from rlplan.results.stored import PLAN_FILE
    from rlplan.simulator.simulate import check_played, simulate
    from rlplan_cli.terminal import print_answer, print_remarks

    file = plan / PLAN_FILE if plan.is_dir() else plan
    script = _script(file, beside, gpu)
    complete, facts = _plan(file, script, profile, site)
    check_played(complete, str(file))
    check_rule_names(complete.job, file)
    check_files({"--trace": trace, "--out": out, "--out-plan": out_plan}, inputs=(file,))
    check_folder("--report", report)
    asked = asked_run(whole_run, complete.job.iterations) if whole_run != RunOptions() else None
    curve = _curve(lengths, asked)
    forecast = simulate(complete, facts, iterations=iterations)
    if asked is not None:
        forecast = _with_run(forecast, complete, facts, asked.steps, curve)
    if not forecast.feasible:
        forecast = _nearest_fit(forecast, complete, facts, script or file)
    _write(trace, out, out_plan, complete, forecast)
    if as_json:
        echo_json(forecast)
    else:
        print_answer(complete, forecast, facts, run=asked)
        print_table("Memory of the fullest GPU", memory_terms_table(forecast))
        if any(memory.host_terms for memory in forecast.memory):
            print_table("Host memory for each GPU", host_terms_table(forecast))
        print_remarks(forecast, why=why)
    broken = broken_words(complete, forecast)
    if broken:
        say("\n".join(broken))
    say_written(trace, out, out_plan, _report(report, complete, forecast, facts))
    if broken or not forecast.feasible or (asked and not keeps_run(asked, forecast.run)):
        raise typer.Exit(InfeasibleError.exit_code)


def _script(file: Path, beside: ScriptOptions, gpu: str | None) -> Configured | None:
    """Return what a framework's script says; of a plan nothing is loaded that reads scripts."""
    from rlplan.files.decoding import is_own_file

    if not any((gpu, *beside)) and is_own_file(file):
        return None
    return configured(file, beside.given(gpu), beside.framework)


def _plan(
    file: Path, script: Configured | None, profile: Path | None, site: Path | None
) -> tuple[Plan, Facts]:
    """Return the plan of a file, or of a script, whole and checked, with the facts for its devices."""
    from rlplan.planner.answers.completion import load_plan

    if script is None:
        return load_plan(file, profile, site=site, misfits=True)
    for each in script.doubts():
        say(each)
    return script.plan(profile, site)


def _report(report: Path | None, plan: Plan, forecast: Forecast, facts: Facts) -> Path | None:
    from rlplan_cli.commands.report import report_run

    return None if report is None else report_run(report, plan, forecast, None, None, facts)


def _with_run(
    forecast: Forecast, plan: Plan, facts: Facts, steps: int, curve: Curve | None
) -> Forecast:
    from rlplan.simulator.whole_run import run_forecast

    return replace(forecast, run=run_forecast(plan, facts, steps, curve=curve))


def _curve(lengths: Path | None, run: AskedRun | None) -> Curve | None:
    """Return the lengths over a run that a file holds.

    Raises:
        FileError: The file says none, or there is no run to have them.
    """
    from rlplan.errors import FileError

    if lengths is None:
        return None
    if run is None:
        problem, allowed = "are those of a whole run", "with --steps"
        raise FileError("--lengths", problem, value=str(lengths), allowed=allowed)
    from rlplan.planner.measured.length_curves import length_curve

    return length_curve(lengths)


def _nearest_fit(
    forecast: Forecast, plan: Plan, facts: Facts, source: Path | Configured
) -> Forecast:
    """Return a forecast with what would fit instead: only this loads the search.

    Args:
        source: The plan's file, whose pinned parts stay, or a script, all of whose layouts may change.
    """
    from rlplan.planner.answers.explain import with_nearest_fit
    from rlplan.planner.requests.drafts import load_request

    pinned = load_request(source)[1] if isinstance(source, Path) else source.pinned
    return with_nearest_fit(forecast, plan, facts, pinned)


def _write(
    trace: Path | None, out: Path | None, out_plan: Path | None, plan: Plan, forecast: Forecast
) -> None:
    from rlplan.files.writing import write_json
    from rlplan.results.stored import write_plan
    from rlplan.simulator.timeline.perfetto import trace_events

    if trace is not None:
        write_json(trace, trace_events(forecast.trace, plan))
    if out is not None:
        write_json(out, forecast)
    if out_plan is not None:
        write_plan(out_plan, plan)
