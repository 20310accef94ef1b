"""`check-step`: whether the step that one sees is normal, and which stage is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rlplan.files.frozen import FrozenDict
from rlplan_cli.typed.forecasts import lines
from rlplan_cli.typed.sources import Beside, given_beside
from rlplan_cli.typed.tool import Said

if TYPE_CHECKING:
    from rlplan.results.measurement import StageCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(Beside):
    """Say whose steps are checked."""

    log: Annotated[
        str,
        Said(
            "Path of a framework's log (console, pasted keys, JSON, CSV, TensorBoard), or the folder of an own run."
        ),
    ]
    job: Annotated[str | None, Said("Path of the job that ran.")] = None
    plan: Annotated[
        str | None,
        Said(
            "Path of what ran: a plan, or the framework's script or recipe itself; the job's best plan where nothing is said."
        ),
    ] = None
    profile: Annotated[str | None, Said("Folder of `rlplan profile`.")] = None
    site: Annotated[str | None, Said("File of `rlplan calibrate`.")] = None
    warmup: Annotated[int, Said("First steps that are left out of a log.")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Hold a stage, or the step, beside its forecast at the measured lengths.

    Attributes:
        normal_seconds: (low, high) between which 19 of 20 sites have it.
        verdict: `normal`, `slow` or `fast`.
    """

    name: str
    measured_seconds: float
    forecast_seconds: float
    normal_seconds: tuple[float, float]
    verdict: str
    causes: tuple[str, ...]
    tries: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Hold the check.

    Attributes:
        verdict: `slow` where a stage or the step is, `fast` where only that, else `normal`.
        source: Whose log it is.
        steps: How many the medians are over.
        others: Seconds of timers that no forecast is made of.
    """

    verdict: str
    source: str
    steps: int
    prompt_tokens: float | None
    response_tokens: float | None
    step: Stage | None
    stages: tuple[Stage, ...]
    others: FrozenDict[str, float]
    notes: tuple[str, ...]


def call(asked: Arguments) -> Answer:
    """Lay the steps of a running or finished training beside their forecast, and name the stages that are slow, why, and what to try."""
    from pathlib import Path

    from rlplan.errors import FileError
    from rlplan.planner.measured.checking import check_steps, what_ran
    from rlplan_cli.config_options import refuse_given
    from rlplan_cli.configured import ran_by_script
    from rlplan_cli.typed.tool import ARGUMENTS

    if asked.warmup < 0:
        problem, allowed = "is below zero", "0 or more"
        raise FileError(ARGUMENTS, problem, field="warmup", value=asked.warmup, allowed=allowed)
    job, plan, profile, site = (
        None if each is None else Path(each)
        for each in (asked.job, asked.plan, asked.profile, asked.site)
    )
    log, given = Path(asked.log), given_beside(asked)
    if plan is None:
        refuse_given(given, asked.job or asked.log)
    ran = None if plan is None else ran_by_script(log, plan, given, asked.warmup, (profile, site))
    if ran is not None and job is not None:
        problem, allowed = "is said by the script", "without it"
        raise FileError(ARGUMENTS, problem, field="job", value=asked.job, allowed=allowed)
    ran = ran or what_ran(log, job, plan, profile=profile, site=site)
    found = check_steps(log, ran, warmup=asked.warmup)
    return Answer(
        verdict=found.verdict,
        source=found.source,
        steps=found.steps,
        prompt_tokens=found.prompt_tokens,
        response_tokens=found.response_tokens,
        step=None if found.step is None else _stage(found.step),
        stages=tuple(map(_stage, found.stages)),
        others=found.others,
        notes=found.notes,
    )


def _stage(found: StageCheck) -> Stage:
    return Stage(
        name=found.name,
        measured_seconds=found.measured_seconds,
        forecast_seconds=found.forecast_seconds,
        normal_seconds=found.normal_seconds,
        verdict=found.verdict,
        causes=found.causes,
        tries=found.tries,
    )


def words(answer: Answer) -> str:
    """Return the answer in a few lines."""
    every = (*answer.stages, *((answer.step,) if answer.step else ()))
    odd = [each for each in every if each.verdict != "normal"]
    return lines(
        f"{answer.verdict}: {answer.steps} steps of {answer.source}",
        (
            line
            for each in odd
            for line in (
                f"{each.verdict}: {each.name} takes {each.measured_seconds / each.forecast_seconds:.2f} times its forecast",
                *(f"  likely: {cause}" for cause in each.causes),
                *(f"  try: {change}" for change in each.tries),
            )
        ),
        (
            line
            for each in every
            if each.verdict == "normal" and each.tries
            for line in (
                f"normal: {each.name} takes what its settings take; by forecast others take less",
                *(f"  try: {change}" for change in each.tries),
            )
        ),
        answer.notes,
    )
