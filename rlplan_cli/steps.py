"""The steps that commands share: each calls one room and puts its answer into the next one's hands."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rlplan_cli.terminal import print_table, progress_bar, say

T = TypeVar("T")

if TYPE_CHECKING:
    from executor.control.run import Saving
    from executor.learning.rules import Rule
    from profiles.probes.bench.contract import JobRules
    from profiles.tables.table import Profile
    from rlplan.job import Job
    from rlplan.plan import Plan
    from rlplan.results.forecast import Forecast
    from rlplan.results.measurement import Comparison, MeasuredRun
    from rlplan.results.searched import SearchResult

PLAN_FILE = "plan.yaml"
FORECAST_FILE = "forecast.json"
MEASURED_FILE = "measured.json"
COMPARISON_FILE = "validation.json"
SEARCH_FILE = "search.json"
TRACE_FILE = "trace.json"


# Prompts on which a profile times reward functions: enough to see short and long ones.
ROWS_OF_RULES = 64

# Columns that the error table can spare on a narrow terminal, the last first.
_SPARE_OF_ERRORS = ("Source of the forecast", "Measured p10 to p90")


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
        runner = rules = None
        if job is not None:
            from executor.pass_runner import RayPassRunner
            from profiles.catalog import load_device

            kind = "cpu" if load_device(device).kind == "cpu" else "cuda"
            rules = job_rules(job, folder)
            runner = stack.enter_context(RayPassRunner(devices, kind, job))
        return profile_machine(
            name=out.name,
            device=device,
            job=job,
            runner=runner,
            out=out,
            devices=devices,
            quick=quick,
            progress=progress,
            rules=rules,
        )


def job_rules(job: Job, folder: Path) -> JobRules | None:
    """Return the functions that judge a job's responses, with prompts to try them on.

    None without any, or where the job gives their time and no prompts: a function may want more of a
    row than prompts that are made up have.

    Raises:
        UserError: There is no such function, its file cannot be imported, or the prompts cannot be read.
    """
    from executor.data.workload import first_rows
    from profiles.probes.bench.contract import JobRules

    functions = rule_functions(job, folder)
    given = job.rewards is not None and job.rewards.function_seconds_per_sample is not None
    if given and job.prompts_file is None:
        return None
    return JobRules(functions, first_rows(job, folder, ROWS_OF_RULES)) if functions else None


def rule_functions(job: Job, folder: Path) -> dict[str, Rule]:
    """Return the functions that judge a job's responses, by the names that the job has for them.

    Raises:
        UserError: There is no such function, or its file cannot be imported.
    """
    from executor.learning.rules import load_rule

    if job.rewards is None:
        return {}
    names = (job.rewards.function, job.rewards.cost_function)
    return {name: load_rule(name, folder) for name in names if name is not None}


def check_rule_name(job: Job, file: Path) -> None:
    """Refuse a job whose rules are no built-in ones; a rule of the user's own is not imported.

    Raises:
        FileError: Names the job's file, and the built-in rules.
    """
    from executor.learning.rules import rule_names
    from rlplan.errors import FileError, nearest_name

    for field in ("function", "cost_function"):
        name = getattr(job.rewards, field) if job.rewards else None
        if name is None or ":" in name or name in rule_names():
            continue
        raise FileError(
            str(file),
            "no such reward rule",
            field=f"rewards.{field}",
            value=name,
            allowed=", ".join(rule_names()) + ", or path/to/file.py:name",
            nearest=nearest_name(name, rule_names()),
        )


def check_warmup(warmup: int, iterations: int) -> None:
    """Refuse a warm-up that leaves nothing to measure.

    Raises:
        FileError: Names the option.
    """
    from rlplan.errors import FileError

    if warmup >= iterations:
        problem, allowed = "leaves no iteration to measure", f"below {iterations} (--iterations)"
        raise FileError("--warmup", problem, value=warmup, allowed=allowed)


def check_new_run(out: Path, resume: Path | None = None) -> None:
    """Refuse a folder that holds a finished run, so that no measurement is replaced.

    Args:
        resume: What the run begins with; one that goes on in its own folder ends later, and is
            measured anew.

    Raises:
        FileError: Names the folder.
    """
    from rlplan.errors import FileError

    start = resume.resolve() if resume is not None else None
    goes_on = start is not None and out.resolve() in (start, *start.parents)
    if (out / MEASURED_FILE).exists() and not goes_on:
        raise FileError(str(out), "holds a run already", allowed="a folder without one (--out)")


def check_executable(plan: Plan, file: Path) -> None:
    """Refuse a plan that the executor does not run, before anything is started.

    Raises:
        UserError: Names the plan's file, the task and the field.
    """
    from executor.control.capabilities import check_runnable

    rule_functions(plan.job, file.parent)
    check_runnable(plan, str(file))


def run_plan(
    plan: Plan,
    out: Path,
    *,
    iterations: int,
    warmup: int,
    seed: int,
    folder: Path | None,
    saving: Saving | None = None,
) -> MeasuredRun:
    """Carry a plan out on Ray, in the folder `out`."""
    from executor.execute import execute

    with progress_bar("execute", lines=True) as progress:
        return execute(
            plan,
            out,
            iterations=iterations,
            warmup=warmup,
            seed=seed,
            folder=folder,
            progress=progress,
            saving=saving,
        )


def compare_run(out: Path, forecast: Forecast, run: MeasuredRun) -> Comparison:
    """Compare a run with its forecast and store both beside it."""
    from rlplan.files.writing import write_json
    from simulator.validation import compare

    comparison = compare(forecast, run)
    write_json(out / FORECAST_FILE, forecast)
    write_json(out / COMPARISON_FILE, comparison)
    return comparison


def print_errors(comparison: Comparison) -> None:
    """Print forecast against measurement, task by task, and what keeps them from being comparable."""
    from reports.tables.plans import error_table
    from reports.tables.wording import other_lengths

    title = "Forecast against measurement"
    print_table(title, error_table(comparison), spare=_SPARE_OF_ERRORS)
    unlike = other_lengths(comparison)
    if unlike:
        say(unlike)


def read_run(folder: Path) -> MeasuredRun:
    """Return the measurements of a run's folder.

    Raises:
        FileError: The folder holds no run.
    """
    from rlplan.errors import FileError
    from rlplan.results.measurement import RUN_VERSION, MeasuredRun

    if folder.is_dir() and not (folder / MEASURED_FILE).exists():
        raise FileError(
            str(folder),
            f"holds no {MEASURED_FILE}",
            allowed="the folder of a finished `rlplan execute`",
        )
    return _read(MeasuredRun, folder / MEASURED_FILE, RUN_VERSION, "measured run")


def read_forecast(path: Path) -> Forecast:
    """Return a stored forecast.

    Raises:
        FileError: The file is missing or holds none.
    """
    from rlplan.results.forecast import FORECAST_VERSION, Forecast

    return _read(Forecast, path, FORECAST_VERSION, "forecast")


def read_search(path: Path) -> SearchResult:
    """Return a stored search result.

    Raises:
        FileError: The file is missing or holds none.
    """
    from dataclasses import fields

    from rlplan.files.decoding import check_version, decode, load_json
    from rlplan.results.forecast import Forecast
    from rlplan.results.searched import SEARCH_VERSION, SearchResult

    data = load_json(path)
    check_version(data, SEARCH_VERSION, str(path), "search result")
    repeated = {each.name for each in fields(Forecast)} - {
        each.name for each in fields(SearchResult)
    }
    kept = {name: value for name, value in data.items() if name not in repeated}
    return decode(SearchResult, kept, str(path))


def search_document(found: SearchResult) -> dict[str, object]:
    """Return a search result as `--json` and files hold it, below the forecast of its best plan.

    Who reads what `simulate --json` prints can read this too.
    """
    from rlplan.files.writing import plain

    return {**plain(found.plans[0].forecast), **plain(found)}


def _read(kind: type[T], path: Path, version: int, what: str) -> T:
    from rlplan.files.decoding import check_version, decode, load_json

    data = load_json(path)
    check_version(data, version, str(path), what)
    return decode(kind, data, str(path))


def report_run(
    out: Path, plan: Plan, forecast: Forecast, run_folder: Path | None, search: SearchResult | None
) -> Path:
    """Write the report of a plan, and of its run if there is one; return the HTML's path."""
    from reports.pages.report import write_report
    from reports.panels import Subject

    subject = Subject(plan=plan, forecast=forecast, search=search)
    if run_folder is not None:
        from executor.control.metrics import read_metrics
        from simulator.validation import compare

        run = read_run(run_folder)
        subject = replace(
            subject,
            run=run,
            comparison=compare(forecast, run),
            metrics=read_metrics(run_folder),
        )
    return write_report(out, subject)


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
