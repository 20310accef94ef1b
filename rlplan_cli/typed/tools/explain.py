"""`explain`: where a step's seconds and memory go, why it does not fit, and why it is slower than another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rlplan.files.frozen import FrozenDict
from rlplan_cli.typed.forecasts import (
    StepForecast,
    fullest,
    lines,
    memory_words,
    step_forecast,
    step_words,
)
from rlplan_cli.typed.sources import Source, checked_of
from rlplan_cli.typed.tool import ARGUMENTS, Said

if TYPE_CHECKING:
    from rlplan.plan import Plan
    from rlplan.planner.configs.checking import Checked
    from rlplan.results.forecast import Forecast

# Causes of a task's seconds, and terms of a pool's memory, that the words name.
NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(Source):
    """Say what is to be explained."""

    against: Annotated[
        str | None,
        Said(
            "Path of another script, job or plan, read with the same options: why is the first one slower or faster?"
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDifference:
    """Hold what a stage takes longer (below zero: less long) than the other's.

    Attributes:
        causes: Seconds by cause, which sum to `seconds`.
    """

    stage: str
    seconds: float
    causes: FrozenDict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Hold the explanation.

    Attributes:
        placement: Which models share GPUs.
        stage_seconds: Of a step by stage.
        idle_seconds: By pool, how long it has nothing to do in a step.
        step: With the seconds of each task by cause, memory by term, and why it does not fit, if it does not.
        against_seconds: Of the other's step; None where there is no other.
        differences: By stage, the largest first; none where there is no other.
    """

    file: str
    placement: str
    stage_seconds: FrozenDict[str, float]
    idle_seconds: FrozenDict[str, float]
    step: StepForecast
    against_seconds: float | None
    differences: tuple[StageDifference, ...]


def call(asked: Arguments) -> Answer:
    """Explain a step's forecast: seconds by stage, task and cause, memory by term, why it does not fit and the nearest change that does; with `against`, why it is slower or faster than another."""
    from rlplan.results.forecast import losses

    checked = checked_of(asked, alone=asked.against is None)
    plan, forecast = _explained(checked)
    other = None
    if asked.against is not None:
        other = _explained(checked_of(asked, asked.against, alone=False))[1]
    return Answer(
        file=checked.file,
        placement=plan.placement,
        stage_seconds=forecast.stage_seconds,
        idle_seconds=forecast.idle_seconds,
        step=step_forecast(forecast),
        against_seconds=None if other is None else other.iteration_seconds,
        differences=()
        if other is None
        else tuple(
            StageDifference(stage=each.stage, seconds=each.seconds, causes=FrozenDict(each.causes))
            for each in losses(forecast, other)
        ),
    )


def _explained(checked: Checked) -> tuple[Plan, Forecast]:
    """Return a plan with its forecast; one that does not fit names the nearest change that does.

    Raises:
        FileError: There is no forecast: what stops it is named.
    """
    from rlplan.errors import FileError
    from rlplan.planner.answers.explain import with_nearest_fit

    if checked.plan is None or checked.forecast is None or checked.facts is None:
        stops = "; ".join(str(each) for each in checked.findings) or "it cannot be read as a job"
        raise FileError(checked.file or ARGUMENTS, f"has no forecast: {stops}")
    return checked.plan, with_nearest_fit(checked.forecast, checked.plan, checked.facts)


def words(answer: Answer) -> str:
    """Return the answer in a few lines."""
    from rlplan.units import show_bytes, show_seconds

    step = answer.step
    full = fullest(step)
    terms = sorted(full.terms.items(), key=lambda item: -item[1])[:NAMED] if full else []
    return lines(
        f"{answer.placement}: {step_words(step)}",
        (
            f"{each.name}: {show_seconds(each.seconds)}: {_main(each.parts)}"
            for each in sorted(step.tasks, key=lambda each: -each.seconds)
        ),
        f"{'fits' if step.fits else 'does not fit'}: {memory_words(step)}",
        f"most of it: {', '.join(f'{term} {show_bytes(size)}' for term, size in terms)}"
        if terms
        else "",
        step.effects,
        step.reasons,
        _against(answer),
    )


def _against(answer: Answer) -> list[str]:
    from rlplan.units import show_seconds

    if answer.against_seconds is None:
        return []
    more = answer.step.step_seconds - answer.against_seconds
    if not more:
        return ["as fast as the other's step"]
    return [
        f"{show_seconds(abs(more))} {'slower' if more > 0 else 'faster'} than the other's step",
        *(
            f"  {each.stage}: {_signed(each.seconds)}: {_main(each.causes)}"
            for each in answer.differences
            if each.seconds
        ),
    ]


def _main(parts: FrozenDict[str, float]) -> str:
    """Return the largest causes with their seconds."""
    largest = sorted(parts.items(), key=lambda item: -abs(item[1]))[:NAMED]
    return ", ".join(f"{name} {_signed(seconds, plus='')}" for name, seconds in largest)


def _signed(seconds: float, plus: str = "+") -> str:
    from rlplan.units import show_seconds

    return f"{plus if seconds >= 0 else '-'}{show_seconds(abs(seconds))}"
