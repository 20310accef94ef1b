"""Advice on a running job: what would gain a step, until when a restart pays, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rlplan.files.limits import NonNegative, NonNegativeInt, Number, Positive
from rlplan.plan import Plan
from rlplan.trace import IterationSpan, Span

ADVICE_VERSION: Literal[1] = 1

# `change`: it pays. `keep`: no change surely gains anything. `too late`: one gains, and less than a restart costs until
# the last step. `restart unknown`: one gains, and what a restart costs is not known.
Answer = Literal["change", "keep", "too late", "restart unknown"]
Beside = Literal["forecast", "steps before"]
# Why a run makes no search. `steady`: nothing has changed since the last one. `cannot pay`: no plan could gain what a move
# costs. `spent`: searches have taken their share of the run. `planned`: a plan is known that is better later, as lengths are to grow.
# `no answer`: the one that was begun has not ended yet.
Held = Literal["steady", "cannot pay", "spent", "planned", "no answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Hold what a change saves of a step, in seconds; negative where it makes steps longer.

    Attributes:
        p10_seconds: The low end: nine of ten changes with this forecast gain more.
        p90_seconds: The high end.
    """

    p10_seconds: Number
    p50_seconds: Number
    p90_seconds: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """Hold one of the configuration's keys that changes.

    Attributes:
        before: What the configuration gives; None where it gives nothing, and the framework's default counts.
    """

    key: str
    before: str | None = None
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """Hold what left its normal range: the newest steps beside those before, or beside their forecast.

    Attributes:
        name: A stage of a step, or `step`.
        measured_seconds: Median of the newest steps.
        normal_seconds: (low, high).
        beside: What the range is of.
        stage: Of a step: the stage that is furthest from its own; empty where none is known.
    """

    name: str
    measured_seconds: NonNegative
    normal_seconds: tuple[NonNegative, NonNegative]
    beside: Beside
    stage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Hold what was advised after a step, and what it rests on. A line of the ledger.

    Attributes:
        step: Number of the last step that was looked at.
        time_seconds: Of all logged steps up to it: when it was said, by the log.
        log: Name of the log's file.
        framework: Whose configuration it is.
        steps: How many steps the medians are over.
        response_tokens: Mean length of responses; None where neither log nor options say it.
        measured_seconds: Median of a whole step.
        forecast_seconds: Of a step as it is, with the factors fitted on these steps.
        changes: Keys that change; of the best change even where it does not pay.
        arguments: The same as words behind the configuration.
        changed_seconds: Forecast of a step with the change.
        gain: What the change saves of a step, at the lengths of now.
        gain_left: What it saves of a step that is left, their mean, where the job says that lengths grow; None where they stay.
        steps_left: Behind `step`.
        restart_seconds: What a restart costs; None where it is not known.
        deadline_step: The last step after which the restart still pays, the low end of the gain taken; None without one.
        departures: What has left its normal range.
        notes: What else a reader should know.
    """

    version: Literal[1] = ADVICE_VERSION
    kind: Literal["decision"] = "decision"
    step: NonNegativeInt
    time_seconds: NonNegative
    log: str
    framework: str
    steps: NonNegativeInt
    response_tokens: Positive | None = None
    measured_seconds: Positive
    forecast_seconds: Positive
    answer: Answer
    changes: tuple[KeyChange, ...] = ()
    arguments: tuple[str, ...] = ()
    changed_seconds: Positive | None = None
    gain: Gain | None = None
    gain_left: Gain | None = None
    steps_left: NonNegativeInt
    restart_seconds: NonNegative | None = None
    deadline_step: NonNegativeInt | None = None
    departures: tuple[Departure, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Hold what came of a change that was advised: steps before and after it. A line of the ledger.

    Attributes:
        step: Number of the last step that was looked at.
        time_seconds: Of all logged steps up to it.
        decision_step: The step after which the change was advised.
        steps: How many steps after the change the median is over.
        before_seconds: Median of a whole step when the change was advised.
        after_seconds: Median since.
        gain: What was forecast.
        response_tokens: Mean lengths of responses before and after; longer ones take longer whatever changed.
        restart_seconds: What the restart took; None where it was not measured.
        notes: What else a reader should know, such as that the change was taken back, and why.
    """

    version: Literal[1] = ADVICE_VERSION
    kind: Literal["outcome"] = "outcome"
    step: NonNegativeInt
    time_seconds: NonNegative
    decision_step: NonNegativeInt
    steps: NonNegativeInt
    before_seconds: Positive
    after_seconds: Positive
    gain: Gain
    response_tokens: tuple[Positive | None, Positive | None] = (None, None)
    restart_seconds: NonNegative | None = None
    notes: tuple[str, ...] = ()

    @property
    def gained_seconds(self) -> float:
        """Return what steps are shorter by."""
        return self.before_seconds - self.after_seconds

    @property
    def as_forecast(self) -> bool:
        """Tell whether that lies between the ends of what was forecast."""
        return self.gain.p10_seconds <= self.gained_seconds <= self.gain.p90_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Barred:
    """Hold a plan that a run does not try again. A line of the ledger.

    Attributes:
        step: Number of the last step before the run went back.
        reason: Why.
        plan: File of the plan, in the ledger's folder.
    """

    version: Literal[1] = ADVICE_VERSION
    kind: Literal["barred"] = "barred"
    step: NonNegativeInt
    reason: str
    plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSearch:
    """Hold why a run makes no search from a step on, until a line says otherwise. A line of the ledger.

    Attributes:
        step: Number of the last step that was looked at.
        held: Why, in a word.
        reason: Why.
    """

    version: Literal[1] = ADVICE_VERSION
    kind: Literal["no search"] = "no search"
    step: NonNegativeInt
    held: Held
    reason: str


AdviceLine = Decision | Outcome | Barred | NoSearch


# What a run tells whoever may let it go on with another plan, and what is answered.


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneIteration:
    """Hold an iteration that a run has done.

    Attributes:
        plan: With which it was done.
        iterations: Of the run in all.
        metrics: As `metrics.jsonl` has them.
        checkpoint_seconds: What the run's last checkpoint took; None where it has written none.
    """

    plan: Plan
    iterations: int
    span: IterationSpan
    spans: tuple[Span, ...]
    metrics: Mapping[str, float]
    checkpoint_seconds: float | None = None

    @property
    def left(self) -> int:
        """Return the iterations that follow."""
        return self.iterations - self.span.iteration - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """Say what a run does after an iteration.

    Attributes:
        plan: With which it goes on; None: as it is.
        reason: Why, where there is a plan.
        most_seconds: What the plan's workers may take to start, by when all that it gains would be lost; None: there is
            no limit.
        said: What people are told.
    """

    plan: Plan | None = None
    reason: str = ""
    most_seconds: float | None = None
    said: tuple[str, ...] = ()


AS_IT_IS = Adaptation()
