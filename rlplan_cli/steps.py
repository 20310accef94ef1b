"""The steps that commands share: each calls one room and puts its answer into the next one's hands."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rlplan_cli.terminal import progress_bar

if TYPE_CHECKING:
    from profiles.table import Profile
    from rlplan.forecast import Forecast
    from rlplan.job import Job
    from rlplan.measurement import Comparison, MeasuredRun
    from rlplan.plan import Plan
    from rlplan.searched import SearchResult

PLAN_FILE = "plan.yaml"
FORECAST_FILE = "forecast.json"
MEASURED_FILE = "measured.json"
COMPARISON_FILE = "validation.json"
SEARCH_FILE = "search.json"
TRACE_FILE = "trace.json"


def measure_machine(
    out: Path, *, job: Job | None, folder: Path, device: str, devices: int, quick: bool
) -> Profile:
    """Measure this machine into the profile folder `out`, resuming what is there.

    Args:
        job: What plans of this job can ask for is measured too, by the executor's own passes.
        folder: What paths in the job are relative to.
    """
    from profiles.probes.session import profile_machine

    with ExitStack() as stack:
        progress = stack.enter_context(progress_bar("profile"))
        runner = rule = None
        if job is not None:
            from executor.pass_runner import RayPassRunner
            from executor.rules import load_rule
            from profiles.catalog import load_device

            kind = "cpu" if load_device(device).kind == "cpu" else "cuda"
            if job.rewards is not None and job.rewards.function is not None:
                rule = load_rule(job.rewards.function, folder)
            runner = stack.enter_context(RayPassRunner(devices, kind))
        return profile_machine(
            name=out.name,
            device=device,
            job=job,
            runner=runner,
            out=out,
            devices=devices,
            quick=quick,
            progress=progress,
            rule=rule,
        )


def run_plan(
    plan: Plan, out: Path, *, iterations: int, warmup: int, seed: int, folder: Path | None
) -> MeasuredRun:
    """Carry a plan out on Ray, in the folder `out`."""
    from executor.execute import execute

    with progress_bar("execute") as progress:
        return execute(
            plan,
            out,
            iterations=iterations,
            warmup=warmup,
            seed=seed,
            folder=folder,
            progress=progress,
        )


def compare_run(out: Path, forecast: Forecast, run: MeasuredRun) -> Comparison:
    """Compare a run with its forecast and store both beside it."""
    from rlplan.writing import write_json
    from simulator.validation import compare

    comparison = compare(forecast, run)
    write_json(out / FORECAST_FILE, forecast)
    write_json(out / COMPARISON_FILE, comparison)
    return comparison


def read_run(folder: Path) -> MeasuredRun:
    """Return the measurements of a run's folder.

    Raises:
        FileError: The folder holds no run.
    """
    from rlplan.decoding import read_json
    from rlplan.errors import FileError
    from rlplan.measurement import MeasuredRun

    if folder.is_dir() and not (folder / MEASURED_FILE).exists():
        raise FileError(
            str(folder),
            f"holds no {MEASURED_FILE}",
            allowed="the folder of a finished `rlplan execute`",
        )
    return read_json(MeasuredRun, folder / MEASURED_FILE)


def read_forecast(path: Path) -> Forecast:
    """Return a stored forecast.

    Raises:
        FileError: The file is missing or holds none.
    """
    from rlplan.decoding import read_json
    from rlplan.forecast import Forecast

    return read_json(Forecast, path)


def read_search(path: Path) -> SearchResult | None:
    """Return a stored search result, None if there is no such file."""
    from rlplan.decoding import read_json
    from rlplan.searched import SearchResult

    return read_json(SearchResult, path) if path.exists() else None


def report_run(
    out: Path, plan: Plan, forecast: Forecast, run_folder: Path | None, search: SearchResult | None
) -> Path:
    """Write the report of a plan, and of its run if there is one; return the HTML's path."""
    from reports.report import write_report

    run = comparison = None
    metrics: list[dict[str, float]] = []
    if run_folder is not None:
        from executor.metrics import read_metrics
        from simulator.validation import compare

        run = read_run(run_folder)
        comparison = compare(forecast, run)
        metrics = read_metrics(run_folder)
    return write_report(
        out,
        plan=plan,
        forecast=forecast,
        run=run,
        comparison=comparison,
        search=search,
        metrics=metrics,
    )


def require_execution() -> None:
    """Say how to install what execution needs, if it is not there.

    Raises:
        UserError: torch, ray or transformers is missing.
    """
    from importlib.util import find_spec

    from rlplan.errors import UserError

    missing = [name for name in ("torch", "ray", "transformers") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"running a plan needs {', '.join(missing)}; install them with: pip install 'rlplan[execute]'"
        )
