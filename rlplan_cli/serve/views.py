"""Answers as the page shows them: what `rlplan check` says, with the timeline, the layouts and what GPUs cost beside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlplan.files.frozen import FrozenDict
from rlplan_cli.typed.tools.check import Answer as CheckAnswer
from rlplan_cli.typed.tools.check import answer_of

if TYPE_CHECKING:
    from rlplan.plan import Plan
    from rlplan.planner.configs.checking import Checked
    from rlplan.profiles.facts import Facts
    from rlplan.results.forecast import Forecast

Stage = Literal["quick", "first", "simulated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Hold a span of the timeline.

    Attributes:
        start_seconds, end_seconds: Since the begin of the iteration that is shown.
        current: Whether it is of that iteration; others lie beside it where iterations overlap.
    """

    name: str
    pool: str
    activity: str
    start_seconds: float
    end_seconds: float
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Hold how a task runs.

    Attributes:
        mfu_fraction: Share of the GPUs' peak that it computes with; None where that says nothing.
    """

    task: str
    pool: str
    gpus: int
    device: str
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    batch: str
    recompute: str
    mfu_fraction: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Hold all that the page draws of one plan's forecast.

    Attributes:
        iteration_seconds: Length of the iteration that `spans` show.
        usd_per_hour: Of all the plan's GPUs.
        costs_from: What costs rest on: data sheets, or a profile.
        sources: Tasks by the weakest source of their seconds.
    """

    placement: str
    mode: str
    gpus: int
    tokens_per_second_per_gpu: float
    usd_per_hour: float
    iteration_seconds: float
    spans: tuple[Shown, ...]
    layouts: tuple[Layout, ...]
    costs_from: str
    sources: FrozenDict[str, tuple[str, ...]]
    least_certain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Hold what the page shows.

    Attributes:
        stage: `quick` of a plan without a search, `first` of one that a search had found when it had hardly begun,
            `simulated` where it is what `rlplan check` says.
        check: What `rlplan check` says.
        view: None where no forecast could be made.
        plan: The plan's file as plain values; None in quick answers.
        command: The command line that says the same.
        job_text: The file that the command reads, where controls describe a job.
        controls: What a script says where controls stand for it.
        keys: Key of each control that changes the script.
        words: What stands on the command line for changed controls.
        script_text: The script with its changes, where they are in its text.
        seconds: That the answer took.
        gap: By how much another plan may take less than that of a search that had hardly begun; None of others.
    """

    stage: Stage
    check: CheckAnswer
    view: View | None
    plan: dict[str, Any] | None = None
    framework: str | None = None
    command: str = ""
    job_text: str | None = None
    controls: FrozenDict[str, float] = FrozenDict()
    keys: FrozenDict[str, str] = FrozenDict()
    words: tuple[str, ...] = ()
    script_text: str | None = None
    seconds: float = 0.0
    gap: float | None = None


def view_of(checked: Checked) -> View | None:
    """Return what is drawn of a checked plan; None without a forecast."""
    plan, forecast, facts = checked.plan, checked.forecast, checked.facts
    if plan is None or forecast is None or facts is None:
        return None
    return forecast_view(plan, forecast, facts)


def forecast_view(plan: Plan, forecast: Forecast, facts: Facts) -> View:
    """Return what is drawn of a plan's forecast."""
    from rlplan.reports.tables.plans import gpus_of, least_certain_words
    from rlplan.units import hours_from_seconds

    gpus, seconds = gpus_of(plan), forecast.iteration_seconds
    sources: dict[str, list[str]] = {}
    for each in forecast.costs:
        sources.setdefault(each.source, []).append(each.name)
    shown = forecast.iterations[-1]
    return View(
        placement=plan.placement,
        mode=plan.mode,
        gpus=gpus,
        tokens_per_second_per_gpu=forecast.tokens_per_second / max(1, gpus),
        usd_per_hour=forecast.cost_usd / hours_from_seconds(seconds) if seconds else 0.0,
        iteration_seconds=shown.seconds,
        spans=_spans(forecast),
        layouts=_layouts(plan, forecast, facts),
        costs_from=forecast.profile,
        sources=FrozenDict({name: tuple(tasks) for name, tasks in sources.items()}),
        least_certain=least_certain_words(forecast),
    )


def _spans(forecast: Forecast) -> tuple[Shown, ...]:
    last = forecast.iterations[-1]
    return tuple(
        Shown(
            name=each.name,
            pool=each.pool,
            activity=each.activity,
            start_seconds=max(0.0, each.start_seconds - last.start_seconds),
            end_seconds=min(last.seconds, each.end_seconds - last.start_seconds),
            current=each.iteration == last.iteration,
        )
        for each in forecast.tasks
        if each.end_seconds > last.start_seconds and each.start_seconds < last.end_seconds
    )


def _layouts(plan: Plan, forecast: Forecast, facts: Facts) -> tuple[Layout, ...]:
    from rlplan.algorithms import load_algorithm
    from rlplan.dataflow import tasks_of
    from rlplan.reports.tables.plans import batch_words
    from rlplan.simulator.timeline.expenses import mfu_fractions

    mfu = mfu_fractions(plan, forecast, facts)
    found = []
    for task in tasks_of(load_algorithm(plan.job.algorithm), plan.job):
        if task.name not in plan.tasks or not task.has_model:
            continue
        layout, pool = plan.tasks[task.name], plan.pool_of(task.name)
        found.append(
            Layout(
                task=task.name,
                pool=pool.name,
                gpus=pool.gpus,
                device=pool.device,
                tp=layout.tp,
                pp=layout.pp,
                dp=layout.dp,
                cp=layout.cp,
                ep=layout.ep,
                batch=batch_words(layout, task),
                recompute=layout.recompute if task.kind == "train" else "",
                mfu_fraction=mfu.get(task.name),
            )
        )
    return tuple(found)


def answered(stage: Stage, checked: Checked, **more: Any) -> Answer:  # noqa: ANN401 -- fields of `Answer`
    """Return what was checked as the page shows it."""
    return Answer(stage=stage, check=answer_of(checked), view=view_of(checked), **more)
