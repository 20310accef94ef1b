"""The steps of `rlplan compare`: names in, a document and a page out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.results.systems import SystemForecast, SystemsComparison

DOCUMENT_FILE = "compare.json"
PLAN_FOLDER = "plans"


def wanted_systems(text: str) -> list[str] | None:
    """Return the systems named in an option, in order; None for all.

    Raises:
        UnknownNameError: There is no system of a name.
        UserError: The option names nothing.
    """
    from planner.systems.baselines import load_baseline
    from rlplan.errors import UserError

    if not text:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"--systems: names no system; found {text!r}; see: rlplan compare --help")
    for name in names:
        load_baseline(name)
    return names


def comparison_document(found: SystemsComparison) -> dict[str, object]:
    """Return what `--json` prints: every system with its forecast's figures, plan and our speed-up."""
    return {
        "version": found.version,
        "job": found.job,
        "ours": _system(found, found.ours),
        "systems": [_system(found, system) for system in found.systems],
    }


def _system(found: SystemsComparison, system: SystemForecast) -> dict[str, object]:
    forecast = system.forecast
    document: dict[str, object] = {
        "name": system.name,
        "about": system.about,
        "feasible": forecast is not None,
        "reason": system.reason,
        "considered": system.considered,
        "speed_up": found.speed_up(system),
    }
    if forecast is not None:
        document |= {
            "iteration_seconds": forecast.iteration_seconds,
            "iteration_seconds_interval": forecast.iteration_seconds_interval,
            "tokens_per_second": forecast.tokens_per_second,
            "stage_seconds": forecast.stage_seconds,
            "memory": forecast.memory,
            "plan": system.plan,
        }
    return document


def write_comparison(out: Path, found: SystemsComparison, job: Job) -> Path:
    """Write the page, the document and every plan into a folder; return the page's path."""
    from reports.pages.systems import write_systems_page
    from rlplan.files.writing import write_json, write_yaml

    for system in (found.ours, *found.systems):
        if system.plan is not None:
            write_yaml(out / PLAN_FOLDER / f"{system.name}.yaml", system.plan)
    write_json(out / DOCUMENT_FILE, comparison_document(found))
    return write_systems_page(out, found, job)
