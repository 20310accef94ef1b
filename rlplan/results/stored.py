"""The files in which plans, runs and searches are kept, and how they are read again."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from rlplan.errors import FileError
from rlplan.files.decoding import check_version, decode, load_json
from rlplan.files.writing import plain, to_yaml, write_text
from rlplan.plan import WHOLE_LAYOUT, Plan, TaskPlan
from rlplan.results.forecast import FORECAST_VERSION, SEARCH_VERSION, Forecast, SearchResult
from rlplan.results.measurement import RUN_VERSION, Comparison, MeasuredRun

PLAN_FILE = "plan.yaml"
FORECAST_FILE = "forecast.json"
AS_RUN_FILE = "forecast_as_run.json"
MEASURED_FILE = "measured.json"
COMPARISON_FILE = "validation.json"
SEARCH_FILE = "search.json"
TRACE_FILE = "trace.json"

# What a plan's file begins with.
_FIRST = ("version", "made_by", "mode", "transition")
# Where iterations overlap a partial plan may leave these to choose.
_OF_OVERLAPPING = ("staleness", "sync_every", "in_flight")


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan's file, whole or not at all: what was decided first, the job last, defaults left out.

    Raises:
        FileError: The file cannot be written.
    """
    write_text(path, plan_text(plan))


def plan_text(plan: Plan) -> str:
    """Return what a plan's file holds; reading it gives the same plan."""
    return to_yaml(plan_values(plan), flat=True)


def plan_values(plan: Plan) -> dict[str, Any]:
    """Return the same as plain values: what was decided first, the job last, defaults left out."""
    every = plain(plan, drop_defaults=True)
    every["tasks"] = {name: _layout_of(layout) for name, layout in plan.tasks.items()}
    every["job"] = {"version": plan.job.version, **every["job"]}
    always = (*_FIRST, *(_OF_OVERLAPPING if plan.flow.overlaps else ()))
    first = {name: getattr(plan, name) for name in always}
    last = {name: every.pop(name) for name in ("pools", "tasks", "order", "job")}
    return {**first, **every, **last}


def _layout_of(layout: TaskPlan) -> dict[str, object]:
    always = {name: getattr(layout, name) for name in WHOLE_LAYOUT if getattr(layout, name)}
    others: dict[str, object] = plain(layout, drop_defaults=True)
    return always | others


def is_run(path: Path) -> bool:
    """Tell whether a path is the folder of a finished run, in which other tools' events may stand too."""
    return (path / MEASURED_FILE).exists()


def read_run(folder: Path) -> MeasuredRun:
    """Return the measurements of a run's folder.

    Raises:
        FileError: The folder holds no run.
    """
    if folder.is_dir() and not (folder / MEASURED_FILE).exists():
        raise FileError(
            str(folder),
            f"holds no {MEASURED_FILE}",
            allowed="the folder of a finished `rlplan execute`",
        )
    path = folder / MEASURED_FILE
    return decode(MeasuredRun, _load(path, RUN_VERSION, "measured run"), str(path))


def read_forecast(path: Path) -> Forecast:
    """Return a stored forecast.

    Raises:
        FileError: The file is missing or holds none.
    """
    return decode(Forecast, _load(path, FORECAST_VERSION, "forecast"), str(path))


def read_comparison(path: Path) -> Comparison:
    """Return a stored comparison of a run with its forecast.

    Raises:
        FileError: The file is missing or holds none.
    """
    return decode(Comparison, load_json(path), str(path))


def read_search(path: Path) -> SearchResult:
    """Return a stored search result.

    Raises:
        FileError: The file is missing or holds none.
    """
    data = _load(path, SEARCH_VERSION, "search result")
    own = {each.name for each in fields(SearchResult)}
    repeated = {each.name for each in fields(Forecast)} - own
    kept = {name: value for name, value in data.items() if name not in repeated}
    return decode(SearchResult, kept, str(path))


def search_document(found: SearchResult) -> dict[str, object]:
    """Return a search result as `--json` and files hold it, below the forecast of its best plan.

    Who reads what `simulate --json` prints can read this too.
    """
    return {**plain(found.plans[0].forecast), **plain(found)}


def _load(path: Path, version: int, what: str) -> Any:  # noqa: ANN401 -- what a file holds
    data = load_json(path)
    check_version(data, version, str(path), what)
    return data
