"""What worker processes do for the page, by name: each takes what was asked and returns plain values, or mistakes."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlplan.files.frozen import FrozenDict
from rlplan_cli.serve.asked import (
    PAGE,
    Asked,
    ExportAsked,
    GivenFile,
    LogAsked,
    SearchAsked,
    document_of,
)
from rlplan_cli.serve.scripts import (
    Written,
    changeable,
    file_name,
    import_of,
    longest_response,
    private_folder,
    without_folders,
    written,
)
from rlplan_cli.typed.tool import Mistake, Refused, tried

if TYPE_CHECKING:
    from rlplan.plan import Plan
    from rlplan.planner.configs.checking import Checked
    from rlplan.planner.configs.importing import Imported
    from rlplan.planner.requests.pinned import Pinned
    from rlplan.profiles.facts import Facts
    from rlplan.results.forecast import SearchResult

Progress = Callable[[int, int, str], None]
JOB_FILE, PLAN_FILE = "job.yaml", "plan.yaml"
# What most answers need.
LOADED_FIRST = (
    "rlplan.planner.configs.checking",
    "rlplan.planner.configs.proposing.searching",
    "rlplan.planner.answers.open_parts",
    "rlplan_cli.serve.views",
)
LOG_ENDINGS = frozenset({".csv", ".json", ".jsonl", ".log", ".txt"})
# After which a search for a first plan ends, once it has one.
FIRST_SECONDS = 0.3
# Placements that a search lists.
MOST_PLACEMENTS = 8


class Found(NamedTuple):
    """Hold an answer as plain values, and the plan that it is of, for later quick answers."""

    answer: dict[str, Any]
    plan: Plan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickAsked:
    """Hold what a quick answer is of.

    Attributes:
        near: The plan of the last answer.
    """

    asked: Asked
    near: Plan | None = None


def quick(asked: QuickAsked, _progress: Progress) -> Found:
    """Return the forecast of a plan that needs no search.

    Raises:
        UserError: What is asked for is wrong, or no plan is at hand without a search.
    """
    from rlplan_cli.serve.views import answered

    began = time.perf_counter()
    if asked.asked.script is not None:
        checked, more = _quick_of_script(asked.asked)
    else:
        checked, more = _quick_of_job(asked.asked, asked.near), {"framework": asked.asked.framework}
    shown = answered("quick", checked, seconds=time.perf_counter() - began, **more)
    return Found(_plain(shown))


def _quick_of_job(asked: Asked, near: Plan | None) -> Checked:
    from rlplan.errors import InfeasibleError
    from rlplan.planner.configs.checking import check_plan
    from rlplan.profiles.facts import load_facts
    from rlplan.simulator.simulate import simulate
    from rlplan_cli.serve.quick import quick_plan
    from rlplan_cli.typed.sources import draft_of

    draft, job = draft_of(document_of(asked))
    facts = load_facts(job)
    plan = quick_plan(draft, job, facts, near)
    if plan is None:
        raise InfeasibleError("no usual layout is a plan of it; the search goes on")
    brief = simulate(plan, facts, brief=True)
    return check_plan(plan, facts, "plan", improves=False, forecast=brief)


def _quick_of_script(asked: Asked) -> tuple[Checked, dict[str, Any]]:
    from dataclasses import replace

    from rlplan.planner.configs.checking import check_plan
    from rlplan.simulator.simulate import simulate

    with written(asked) as script:
        found, plan, facts = _planned(script, misfits=False)
        file, brief = found.settings.file, simulate(plan, facts, brief=True)
        checked = check_plan(plan, facts, file, improves=False, forecast=brief)
        return replace(checked, imported=found), {"framework": found.settings.sheet.name}


def _planned(script: Written, *, misfits: bool) -> tuple[Imported, Plan, Facts]:
    """Return what a script says, with its plan, completed, and what operations cost on its devices.

    Args:
        misfits: Whether a plan that needs little more memory than there is will do where none fits.
    """
    from rlplan.planner.answers.completion import complete
    from rlplan.planner.configs.importing import imported
    from rlplan.profiles.facts import load_facts

    framework, words, options = import_of(script.source)
    found = imported(framework, words, options)
    facts = load_facts(found.resolved)
    plan = complete(found.draft, found.resolved, facts, found.settings.file, misfits=misfits)
    return found, plan, facts


def first(asked: Asked, _progress: Progress) -> Found:
    """Return the first plan that a search finds of a job, with by how much another one may be better.

    It is asked for where whole answers take long: they simulate a dozen plans, each for tenths of a second or more where
    samples are handed on one by one.

    Raises:
        UserError: What is asked for is wrong, nothing fits, or it is a script, whose plan is its own.
    """
    from rlplan.errors import FileError
    from rlplan.planner.answers.open_parts import first_found
    from rlplan.planner.configs.checking import check_plan
    from rlplan.profiles.facts import load_facts
    from rlplan_cli.serve.views import answered
    from rlplan_cli.typed.sources import draft_of

    began = time.perf_counter()
    if asked.script is not None:
        raise FileError(PAGE, "is no job with plans to choose from", field="script", allowed="none")
    draft, job = draft_of(document_of(asked))
    facts = load_facts(job)
    found = first_found(draft, job, facts, seconds=FIRST_SECONDS)
    best = found.plans[0]
    checked = check_plan(best.plan, facts, "plan", improves=False, forecast=best.forecast)
    shown = answered(
        "first",
        checked,
        framework=asked.framework,
        gap=found.gap,
        seconds=time.perf_counter() - began,
    )
    return Found(_plain(shown), best.plan)


def answer(asked: Asked, _progress: Progress) -> Found:
    """Return what `rlplan check` says.

    Raises:
        UserError: What is asked for is wrong.
    """
    from rlplan_cli.serve.views import answered
    from rlplan_cli.typed.forecasts import plan_document
    from rlplan_cli.typed.sources import Source, checked_of

    began = time.perf_counter()
    if asked.script is None:
        document = document_of(asked)
        checked = checked_of(Source(plan=document))
        more = _of_job(document, asked)
    else:
        with written(asked) as script:
            checked = checked_of(script.source)
            more = _of_script(checked, script, asked)
    plan = checked.plan
    shown = answered(
        "simulated",
        checked,
        plan=None if plan is None else plan_document(plan),
        seconds=time.perf_counter() - began,
        **more,
    )
    return Found(_plain(shown), plan)


def _of_job(document: dict[str, Any], asked: Asked) -> dict[str, Any]:
    """Return what an answer says of the job that controls describe: its file, and the command that reads it."""
    from rlplan.files.writing import to_yaml

    alone = set(document) == {"job"}
    text = to_yaml(document["job"] if alone else document, flat=True)
    name = JOB_FILE if alone else PLAN_FILE
    return {
        "framework": asked.framework,
        "job_text": text,
        "command": f"rlplan check {name}",
    }


def _of_script(checked: Checked, script: Written, asked: Asked) -> dict[str, Any]:
    """Return what an answer says of a script: whose it is, the command, and what controls stand for in it."""
    assert asked.script is not None, "of a script"
    source = script.source
    found = checked.imported
    framework, _, _ = import_of(source)
    more: dict[str, Any] = {"words": script.words}
    if found is not None:
        more |= {
            "controls": FrozenDict(_controls(found, source.mean_response_tokens)),
            "keys": FrozenDict(changeable(found.settings)),
        }
    if script.text != asked.script.text:
        more["script_text"] = script.text
    options = [
        ("--gpu", source.gpu),
        ("--mean-response", source.mean_response_tokens),
        ("--mean-prompt", source.mean_prompt_tokens),
    ]
    words = ["rlplan", "check", framework, file_name(asked.script), *source.arguments]
    for name, value in options:
        if value is not None:
            words += [name, f"{value:.15g}" if isinstance(value, float) else str(value)]
    return more | {"framework": framework, "command": shlex.join(words)}


def _controls(found: Imported, mean_tokens: float | None) -> dict[str, float]:
    """Return what a script says where controls stand for it."""
    from rlplan.workload import longest

    work = found.resolved.workload
    return {
        "gpus": found.resolved.gpus,
        "prompts": work.prompts,
        "samples_per_prompt": work.samples_per_prompt,
        "prompt_tokens": longest(work.prompt_tokens),
        "response_tokens": longest_response(found.settings) or longest(work.response_tokens),
        "mean_response_tokens": mean_tokens or 0.0,
    }


def search(asked: SearchAsked, progress: Progress) -> Found:
    """Return the best plans of what is asked for, as `rlplan search` finds them, beside the plan that a script says.

    Raises:
        UserError: What is asked for is wrong, or nothing fits.
    """
    from rlplan.planner.configs.proposing.searching import plans_of
    from rlplan.planner.requests.drafts import pinned_parts
    from rlplan.planner.search import check_searched
    from rlplan.profiles.facts import load_facts
    from rlplan_cli.typed.sources import draft_of

    if asked.script is None:
        draft, job = draft_of(document_of(asked))
        pinned = pinned_parts(draft, job, "plan")
        own = None
    else:
        own, pinned = _plan_of_script(asked)
        job = own.job
    check_searched(job, "job", pinned.asked.modes)
    found = plans_of(
        job,
        load_facts,
        pinned=pinned,
        seconds=asked.seconds,
        progress=progress,
        as_it_stands=own,
        placements=MOST_PLACEMENTS,
    )
    return Found(_placements(found, own))


def _whole_plan(document: dict[str, Any]) -> Plan:
    """Return a plan that an answer gave."""
    from rlplan.planner.answers.completion import complete
    from rlplan.profiles.facts import load_facts
    from rlplan_cli.typed.sources import draft_of

    draft, job = draft_of(document)
    return complete(draft, job, load_facts(job), "plan", misfits=True)


def _plan_of_script(asked: Asked) -> tuple[Plan, Pinned]:
    """Return the plan that a script says, and what a search for others keeps of it."""
    from rlplan_cli.configured import Configured, own_mode
    from rlplan_cli.interface import named_modes

    with written(asked) as script:
        found, plan, _ = _planned(script, misfits=True)
    return plan, named_modes(Configured(found).pinned, own_mode(plan))


def _placements(found: SearchResult, own: Plan | None) -> dict[str, Any]:
    """Return the best plans of a search, each with its figures, layouts and file."""
    from rlplan.profiles.facts import load_facts
    from rlplan_cli.serve.views import forecast_view
    from rlplan_cli.typed.forecasts import plan_document, step_forecast

    facts = load_facts(found.plans[0].plan.job)
    rows = []
    for each in found.plans[:MOST_PLACEMENTS]:
        step = step_forecast(each.forecast)
        rows.append(
            {
                "placement": each.plan.placement,
                "is_own": own is not None and _same(each.plan, own),
                "loses_seconds": each.loses_seconds,
                "step": _plain(step),
                "view": _plain(forecast_view(each.plan, each.forecast, facts)),
                "plan": plan_document(each.plan),
            }
        )
    return {
        "plans": rows,
        "gap": found.gap,
        "search_seconds": found.search_seconds,
        "space": found.space,
        "infeasible": [_plain(each) for each in found.infeasible],
    }


def _same(plan: Plan, own: Plan) -> bool:
    return plan.pools == own.pools and plan.tasks == own.tasks


def fit(asked: Asked, _progress: Progress) -> Found:
    """Return the longest response and the smallest cluster that fit, as `rlplan fit` says them.

    Raises:
        UserError: What is asked for is wrong, or it is a script.
    """
    from rlplan.errors import FileError
    from rlplan_cli.typed.tools import TOOLS

    if asked.script is not None:
        raise FileError(
            PAGE, "is not what `rlplan fit` is asked", field="script", allowed="a model"
        )
    tool = TOOLS.load("fit")
    found = tool.call(
        tool.Arguments(
            model=asked.model,
            gpus=asked.gpus,
            gpu=asked.gpu,
            algorithm=asked.algorithm,
            framework=asked.framework,
            prompt_tokens=asked.prompt_tokens,
            response_tokens=asked.response_tokens,
        )
    )
    return Found(_plain(found))


def export(asked: ExportAsked, _progress: Progress) -> Found:
    """Return a plan as a framework's script or file, as `rlplan export` writes it, and the keys that differ from the user's.

    Raises:
        UserError: The framework cannot run the plan.
    """
    from rlplan_cli.typed.tools import TOOLS

    tool = TOOLS.load("export")
    found = tool.call(tool.Arguments(to=asked.to, plan=asked.plan))
    words = () if asked.script is None else _differing(asked)
    return Found({**_plain(found), "words": list(words), "plan_text": _plan_text(asked.plan)})


def _plan_text(document: dict[str, Any]) -> str:
    from rlplan.files.writing import to_yaml

    return to_yaml(document, flat=True)


def _differing(asked: ExportAsked) -> tuple[str, ...]:
    """Return what to type behind the user's script for a plan: as few keys as do."""
    from rlplan.planner.configs.proposing.changes import RetypedConfiguration
    from rlplan.planner.configs.writing.exporting import exported
    from rlplan.planner.configs.writing.patching import differing

    values = exported(_whole_plan(asked.plan), asked.to, into="").decided
    with written(asked) as script:
        framework, words, options = import_of(script.source)
        if framework != asked.to:
            return ()
        found, own, facts = _planned(script, misfits=True)
        typed = RetypedConfiguration.of(words, options, found, own, facts)
        return typed.arguments(differing(typed, values)) or ()


def check_step(asked: LogAsked, _progress: Progress) -> Found:
    """Return what `rlplan check-step` says of a log beside a plan's forecast.

    Raises:
        UserError: The log cannot be read, or is of none that is known.
    """
    from rlplan.files.writing import write_text
    from rlplan_cli.typed.tools import TOOLS

    tool = TOOLS.load("check-step")
    with private_folder() as folder:
        log, plan = folder / _log_name(asked.log), folder / PLAN_FILE
        log.write_text(asked.log.text, encoding="utf-8")
        write_text(plan, _plan_text(asked.plan))
        found = tool.call(tool.Arguments(log=str(log), plan=str(plan)))
        return Found(_plain(found))


def _log_name(given: GivenFile) -> str:
    """Return the name of a log: its ending says whether it is a table or text."""
    ending = Path(given.name).suffix.lower()
    return f"train{ending if ending in LOG_ENDINGS else '.log'}"


def catalog(_asked: None, _progress: Progress) -> Found:
    """Return the names that controls offer, with what is known of them."""
    from rlplan import __version__
    from rlplan.algorithms import algorithm_names
    from rlplan.models import OF_PRODUCTS
    from rlplan.plan import FLOWS
    from rlplan.planner.configs.frameworks import VERSION, frameworks_with
    from rlplan.profiles.catalog import device_names, load_device, model_names
    from rlplan.profiles.frameworks import data_files
    from rlplan.reports.pictures.picture import ACTIVITY_COLOURS, MORE_COLOURS, TASK_COLOURS

    devices = {}
    for name in device_names():
        sheet = load_device(name)
        devices[name] = {
            "title": sheet.title,
            "kind": sheet.kind,
            "memory_bytes": sheet.memory_bytes,
            "gpus_per_node": sheet.gpus_per_node,
            "usd_per_hour": sheet.usd_per_hour,
            "precisions": sorted(sheet.peak_flops_per_second),
        }
    return Found(
        {
            "version": __version__,
            "models": list(model_names()),
            "devices": devices,
            "algorithms": list(algorithm_names()),
            "steps": sorted(name for name in data_files("steps") if not VERSION.search(name)),
            "read": list(frameworks_with("keys", "reading")),
            "written": list(frameworks_with("keys", "writing")),
            "modes": list(FLOWS),
            "precisions": _precisions(),
            "rollout_precisions": [*_precisions(), *OF_PRODUCTS],
            "colours": [*TASK_COLOURS, *MORE_COLOURS],
            "activity_colours": dict(ACTIVITY_COLOURS),
            "usual": _plain(Asked(), drop_none=False),
        }
    )


def _precisions() -> list[str]:
    from typing import get_args

    from rlplan.models import NarrowPrecision, TrainingPrecision

    return [*get_args(TrainingPrecision), *get_args(NarrowPrecision)]


def warm(_asked: None, _progress: Progress) -> Found:
    """Load what answers need, so that the first one does not wait for it."""
    from importlib import import_module

    for name in LOADED_FIRST:
        import_module(name)
    return Found({})


def _plain(value: Any, *, drop_none: bool = False) -> Any:  # noqa: ANN401 -- plain values of any answer
    from rlplan.files.writing import plain

    return plain(value, drop_none=drop_none)


WORKS: Mapping[str, Callable[[Any, Progress], Found]] = {
    "answer": answer,
    "catalog": catalog,
    "check_step": check_step,
    "export": export,
    "first": first,
    "fit": fit,
    "quick": quick,
    "search": search,
    "warm": warm,
}


def done(work: str, asked: Any, progress: Progress) -> Found | Refused:  # noqa: ANN401 -- each work has its own
    """Return what a work answers, or what is wrong with what was asked; files of private folders have their names alone."""
    found = tried(lambda: WORKS[work](asked, progress))
    if isinstance(found, Found):
        return found._replace(answer=without_folders(found.answer))
    plain = (asdict(each) for each in found.mistakes)
    return Refused(mistakes=tuple(Mistake(**without_folders(each)) for each in plain))
