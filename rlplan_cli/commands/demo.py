"""`rlplan demo`: the whole path on this machine, from profile to report."""

from __future__ import annotations

import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan_cli.terminal import JsonOption, echo_json, say

if TYPE_CHECKING:
    from rlplan.profiles.facts import Facts
    from rlplan.results.forecast import SearchResult

EXAMPLE = "Example: rlplan demo --out demo-out --iterations 30"

JOB_FILE = "job.yaml"


def command(
    out: Annotated[Path, typer.Option(help="Folder for everything that it makes.")] = Path(
        "demo-out"
    ),
    iterations: Annotated[int, typer.Option(min=4, help="Iterations to run.")] = 30,
    warmup: Annotated[
        int, typer.Option(min=0, help="First iterations that the comparison leaves out.")
    ] = 3,
    as_json: JsonOption = False,
) -> None:
    """Profile this machine, plan a small PPO job, run it on Ray, and compare with the forecast."""
    from rlplan.files.writing import check_folder
    from rlplan.units import show_seconds
    from rlplan_cli.commands.report import report_run
    from rlplan_cli.running import (
        check_warmup,
        compare_run,
        print_errors,
        require_execution,
        run_plan,
    )

    require_execution()
    check_warmup(warmup, iterations)
    check_folder("--out", out)
    found, facts = _plan(out)
    best = found.plans[0]
    say(f"3/5 execute: {iterations} iterations on Ray")
    run_folder = out / "run"
    shutil.rmtree(run_folder, ignore_errors=True)  # the demo's own folder, made anew each time
    seed = best.plan.job.seed
    run = run_plan(
        best.plan, run_folder, iterations=iterations, warmup=warmup, seed=seed, folder=out
    )
    say("4/5 validate: forecast against measurement")
    comparison = compare_run(run_folder, best.forecast, run, facts)
    say("5/5 report")
    page = report_run(
        out / "report", best.plan, best.forecast, run_folder, found, facts, asks=False
    )
    if as_json:
        echo_json({"comparison": comparison, "report": str(page)})
        return
    print_errors(comparison)
    row = comparison.iteration
    say(
        f"iteration: forecast {show_seconds(row.forecast_seconds)}, measured "
        f"{show_seconds(row.measured_median_seconds)} ({row.error_fraction:+.1%}); "
        f"{_learning(run_folder)}"
    )
    say(f"report: {page}")


def _plan(out: Path) -> tuple[SearchResult, Facts]:
    """Profile this machine and search; the plan, the search and the forecast's trace are stored."""
    from rlplan.files.writing import write_json
    from rlplan.planner.search import search
    from rlplan.profiles.catalog import load_job
    from rlplan.profiles.facts import load_facts
    from rlplan.results.stored import PLAN_FILE, SEARCH_FILE, TRACE_FILE, write_plan
    from rlplan.simulator.timeline.perfetto import trace_events
    from rlplan.units import show_seconds
    from rlplan_cli.measuring import measure_machine
    from rlplan_cli.terminal import progress_bar

    job = load_job(_copy_demo(out))
    group = job.cluster[0]
    profile = out / "profile"
    say(f"1/5 profile: measuring {group.gpus} x {group.gpu} of this machine into {profile}")
    measure_machine(profile, job=job, folder=out, device=group.gpu, devices=group.gpus, quick=True)
    say("2/5 search: every placement, allocation and layout")
    facts = load_facts(job, profile)
    with progress_bar("search") as progress:
        found = search(job, facts, progress=progress)
    best = found.plans[0]
    write_plan(out / PLAN_FILE, best.plan)
    write_json(out / SEARCH_FILE, found)
    write_json(out / TRACE_FILE, trace_events(best.forecast.trace, best.plan))
    expected = show_seconds(best.forecast.iteration_seconds)
    say(f"    {best.plan.placement}: {expected} an iteration expected")
    return found, facts


def _copy_demo(out: Path) -> Path:
    """Copy the demo's job, prompts and reward into the folder, and return the job's path."""
    out.mkdir(parents=True, exist_ok=True)
    with as_file(files("rlplan_cli") / "demo_job") as source:
        for file in sorted(source.iterdir()):
            if file.suffix in (".yaml", ".jsonl", ".py"):
                shutil.copyfile(file, out / file.name)
    return out / JOB_FILE


def _learning(run_folder: Path) -> str:
    from rlplan.executor.control.metrics import read_metrics

    rewards = [row["rule_reward"] for row in read_metrics(run_folder)]
    fifth = max(1, len(rewards) // 5)
    first, last = sum(rewards[:fifth]) / fifth, sum(rewards[-fifth:]) / fifth
    return f"mean rule reward of the first and last {fifth} iterations: {first:.3f} -> {last:.3f}"
