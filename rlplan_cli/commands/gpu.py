"""`rlplan gpu`: small PPO and GRPO jobs on this machine's GPU, forecast and measured."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan_cli.terminal import JsonOption, echo_json, print_table, say

if TYPE_CHECKING:
    from rlplan_cli.trials import Trial, TrialResult

EXAMPLE = "Example: rlplan gpu --out gpu-out --seconds 540"

TABLE_FILE = "table.md"
RESULT_FILE = "table.json"


def command(
    out: Annotated[
        Path, typer.Option(help="Folder of everything that it makes, and goes on with.")
    ] = Path("gpu-out"),
    seconds: Annotated[
        float, typer.Option(min=1, help="Stop after so long; the same command goes on.")
    ] = 540.0,
    iterations: Annotated[int, typer.Option(min=4, help="Iterations of each run.")] = 12,
    warmup: Annotated[
        int, typer.Option(min=0, help="First iterations that comparisons leave out.")
    ] = 3,
    device: Annotated[
        str | None, typer.Option(help="Device sheet of this machine; its GPU's by default.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a pre-trained model to start from; a small one is made by default."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Profile this machine's GPU (or CPU), run small jobs on it, and compare them with their forecasts.

    One of them starts from a folder in the format of Hugging Face, others from random weights. Without a network,
    in pieces: what is done is not done again. vLLM is tried where it is installed.
    """
    from rlplan.files.writing import check_folder, write_json, write_text
    from rlplan.profiles.sheets import load_device
    from rlplan_cli.running import check_warmup, require_execution
    from rlplan_cli.trials import (
        TimeUpError,
        device_here,
        time_limit,
        trial_job,
        trials_here,
        try_job,
        weights_here,
    )

    until = time.monotonic() + seconds
    require_execution()
    check_warmup(warmup, iterations)
    check_folder("--out", out)
    name, devices = device_here(device)
    sheet, cores = load_device(name), max(1, (os.cpu_count() or 1) - devices)
    wanted, tried, failed = trials_here(weights_here(weights, out, sheet)), [], {}
    say(f"{devices} x {name}: {', '.join(each.name for each in wanted)}")
    for trial in wanted:
        job = trial_job(trial, sheet, devices, cores)
        try:
            with time_limit(max(0.01, until - time.monotonic())):
                tried.append(try_job(trial, job, out, iterations=iterations, warmup=warmup))
        except TimeUpError:
            say(f"{seconds:g} seconds are over in {trial.name}; the same command goes on from here")
            break
        except Exception as error:  # noqa: BLE001 -- a failure is told in the table; the others go on
            failed[trial] = " ".join(f"{type(error).__name__}: {error}".split())
            say(f"{trial.name} failed: {failed[trial]}")
    write_text(out / TABLE_FILE, _markdown(tried, failed))
    write_json(out / RESULT_FILE, [_row(each) for each in tried])
    if as_json:
        echo_json([_row(each) for each in tried])
    else:
        _print(tried)
    say(f"{len(tried)} of {len(wanted)} jobs done; written: {out / TABLE_FILE}")
    if failed:
        raise typer.Exit(1)


def _row(tried: TrialResult) -> dict[str, object]:
    memory = [
        {
            "pool": each.pool,
            "forecast_bytes": each.gpu_peak_bytes,
            "measured_bytes": tried.run.memory_peak_bytes.get(each.pool),
            "terms": each.terms,
        }
        for each in tried.forecast.memory
    ]
    return {"job": tried.trial.name, "comparison": tried.comparison, "memory": memory}


def _print(tried: list[TrialResult]) -> None:
    from rlplan.reports.tables.plans import memory_table
    from rlplan_cli.running import print_errors

    for each in tried:
        say(f"\n{each.trial.name}")
        print_errors(each.comparison)
        print_table("Peak memory", memory_table(each.forecast, each.run))


def _allocated(tried: TrialResult) -> list[str]:
    """Return what torch's count of allocated bytes, which is measured on GPUs, compares with."""
    from rlplan.simulator.memory.task_memory import CONTEXT, FRAGMENTATION
    from rlplan.units import show_bytes

    if tried.run.plan.job.cluster[0].gpu == "cpu":
        return []
    lines = []
    for each in tried.forecast.memory:
        beside = sum(each.terms.get(term, 0) for term in (CONTEXT, FRAGMENTATION))
        size = show_bytes(each.gpu_peak_bytes - beside)
        lines += [f"Without {CONTEXT} and {FRAGMENTATION}, {each.pool}: {size} forecast.", ""]
    return lines


def _markdown(tried: list[TrialResult], failed: dict[Trial, str]) -> str:
    from rlplan.reports.tables.plans import error_table, markdown_lines, memory_table

    lines = ["# Forecast against measurement on this machine", ""]
    for each in tried:
        machine = ", ".join(f"{key} {value}" for key, value in sorted(each.run.machine.items()))
        lines += [f"## {each.trial.name}", "", f"Machine: {machine}.", ""]
        lines += [*markdown_lines(error_table(each.comparison)), ""]
        lines += [*markdown_lines(memory_table(each.forecast, each.run)), "", *_allocated(each)]
    for trial, problem in failed.items():
        lines += [f"## {trial.name}", "", f"Failed: {problem}", ""]
    return "\n".join(lines)
