"""`check`: will it run, does it fit, how long is a step, what would be faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlplan_cli.typed.forecasts import StepForecast, lines, memory_words, step_forecast, step_words
from rlplan_cli.typed.sources import Source, checked_of

if TYPE_CHECKING:
    from rlplan.planner.configs.checking import Checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(Source):
    """Say what is to be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """Hold what is wrong with one key.

    Attributes:
        where: File and line, or argument.
        stops: Whether a run stops at it.
    """

    rule: str
    key: str
    value: str | None
    where: str
    problem: str
    allowed: str
    stops: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Faster:
    """Hold a change and what it gains.

    Attributes:
        arguments: What to type behind the configuration, word by word; none where a file that it names has to be changed.
        words: The same in a line, or what to change in that file.
        gain: Share of a step's seconds that it saves.
        memory_fraction: Share of the fullest GPU's memory that is then taken.
    """

    arguments: tuple[str, ...]
    words: str
    step_seconds: float
    gain: float
    memory_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Hold the answer.

    Attributes:
        memory: `fits`, `may not fit`, `does not fit` or `not known`.
        findings: What breaks rules of the framework.
        doubtful: Keys that make the answer doubtful.
        assumed: What was assumed of the work.
        not_understood: Keys that are not counted.
        remarks: What the verdict rests on, and what is not looked at.
        better: What would be faster, or fit.
        steps: Of the whole training; None where it is not said.
        step: None where no forecast could be made.
    """

    file: str
    will_run: bool
    memory: str
    findings: tuple[BrokenRule, ...]
    doubtful: tuple[str, ...]
    assumed: tuple[str, ...]
    not_understood: tuple[str, ...]
    remarks: tuple[str, ...]
    better: tuple[Faster, ...]
    steps: int | None
    step: StepForecast | None


def call(asked: Arguments) -> Answer:
    """Check a launch script, configuration, job or plan before it is started: rules of its framework, memory, seconds of a step, better settings."""
    return answer_of(checked_of(asked))


def answer_of(checked: Checked) -> Answer:
    """Return what was checked with types."""
    found = checked.imported
    return Answer(
        file=checked.file,
        will_run=checked.will_run,
        memory=checked.verdict,
        findings=tuple(
            BrokenRule(
                rule=each.rule,
                key=each.key,
                value=None if each.value is None else str(each.value),
                where=each.where,
                problem=each.problem,
                allowed=each.allowed,
                stops=each.stops,
            )
            for each in checked.findings
        ),
        doubtful=() if found is None else tuple(found.doubts()),
        assumed=() if found is None else found.guesses,
        not_understood=() if found is None else tuple(found.unknown()),
        remarks=(*checked.unchecked, *checked.remarks),
        better=tuple(
            Faster(
                arguments=each.arguments,
                words=each.words,
                step_seconds=each.seconds,
                gain=each.gain,
                memory_fraction=each.memory_fraction,
            )
            for each in checked.better
        ),
        steps=checked.steps,
        step=None if checked.forecast is None else step_forecast(checked.forecast),
    )


def words(answer: Answer) -> str:
    """Return the answer in a few lines."""
    from rlplan.units import show_seconds

    runs = "runs" if answer.will_run else "will not run"
    step = answer.step
    return lines(
        f"{answer.file}: {runs}; memory: {answer.memory}",
        (
            f"{'stops' if each.stops else 'look at'}: {each.key}: {each.problem} ({each.where}) [{each.rule}]"
            for each in answer.findings
        ),
        (f"doubtful: {each}" for each in answer.doubtful),
        (f"not understood, and not counted: {each}" for each in answer.not_understood),
        (f"look at: {each}" for each in answer.remarks),
        []
        if step is None
        else [memory_words(step), step_words(step), *step.effects, *step.reasons],
        (
            f"faster: {each.words}: {show_seconds(each.step_seconds)} a step"
            for each in answer.better
        ),
    )
