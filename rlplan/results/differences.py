"""What the steps of several frameworks differ by: seconds by stage, which sum to the difference, with causes."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from typing import Final, Literal

from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.results.forecast import CALL, LEAST_SHARE, Forecast, TaskForecast

GENERATION, TAIL, ENVIRONMENTS = "generation", "tail of generation", "environments"
PASSES, REWARDS, UPDATE = "log-probabilities and values", "rewards", "update"
SYNC, HOST, WAITING, OVERLAP = "weight sync", "host work", "transfers and waiting", "overlap"
STEP_STAGES: Final = (
    GENERATION,
    TAIL,
    ENVIRONMENTS,
    PASSES,
    REWARDS,
    UPDATE,
    SYNC,
    HOST,
    WAITING,
    OVERLAP,
)
OF_STAGE: Final[Mapping[str, str]] = {
    "generation": GENERATION,
    "training": UPDATE,
    "transition": SYNC,
}
OF_PASSES: Final = ("log_prob", "values")
# Parts of tasks, as forecasts name them: host work during which devices wait, turns of environments, and decoding, which has
# the tail of the last responses.
HOST_PARTS: Final = (CALL, "host work of a step", "host work", "host overhead")
ENVIRONMENT_PART, DECODE = "environment", "decode"
TRANSFERS, WAITED, BESIDE = "transfers between pools", "waiting", "pools at work side by side"

Seconds = Mapping[str, Mapping[str, float]]
Kind = Literal["as it is", "same layout", "best settings"]


def step_parts(forecast: Forecast, tail_seconds: float = 0.0) -> dict[str, dict[str, float]]:
    """Return the seconds of an iteration by stage of a step and cause; all of them sum to the iteration's.

    Stages have what their tasks take, wherever these run. What pools do side by side is taken off again as `overlap`, below
    zero; what no task accounts for is `transfers and waiting`.

    Args:
        tail_seconds: Of generation, at its end, with few responses under way: shown apart from the rest of it.
    """
    parts: dict[str, dict[str, float]] = {stage: {} for stage in STEP_STAGES}
    for cost in forecast.costs:
        if cost.activity == "transfer":
            _add(parts[WAITING], TRANSFERS, cost.seconds)
            continue
        for cause, seconds in cost.parts.items():
            stage, name = _place(cost, cause)
            _add(parts[stage], name, seconds)
    decoding = parts[GENERATION].get(DECODE, 0.0)
    tail = min(tail_seconds, decoding)
    if tail > 0:
        parts[GENERATION][DECODE] = decoding - tail
        parts[TAIL][DECODE] = tail
    work = fsum(seconds for each in parts.values() for seconds in each.values())
    rest = forecast.iteration_seconds - work
    if rest:
        _add(parts[WAITING if rest > 0 else OVERLAP], WAITED if rest > 0 else BESIDE, rest)
    return parts


def _place(cost: TaskForecast, cause: str) -> tuple[str, str]:
    """Return the stage of a step to which a part of a task belongs, and what it is called there."""
    if cause in HOST_PARTS:
        return HOST, f"{cause}, {cost.name}"
    if cause == ENVIRONMENT_PART:
        return ENVIRONMENTS, cause
    stage = OF_STAGE.get(cost.stage)
    if stage is None:
        stage = PASSES if cost.name.endswith(OF_PASSES) else REWARDS
    return stage, cause


def _add(parts: dict[str, float], cause: str, seconds: float) -> None:
    parts[cause] = parts.get(cause, 0.0) + seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDifference:
    """Hold what a stage of a step takes, and what it takes in the step that it is compared with.

    Attributes:
        seconds, base_seconds: Of the stage, here and there; of `overlap` below zero.
        parts: Seconds by cause above (or below) those there, the largest change first; they sum to `difference_seconds`.
        causes: What is otherwise here, in words: engine, layout, mode, what is off-loaded.
    """

    stage: str
    seconds: float
    base_seconds: float
    parts: FrozenDict[str, float]
    causes: tuple[str, ...] = ()

    @property
    def difference_seconds(self) -> float:
        """Return the seconds above those of the other step."""
        return self.seconds - self.base_seconds

    @property
    def main_parts(self) -> dict[str, float]:
        """Return the changes that are not small beside the largest one."""
        most = max(map(abs, self.parts.values()), default=0.0)
        return {name: each for name, each in self.parts.items() if abs(each) > LEAST_SHARE * most}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDifference:
    """Hold what a step differs by from another.

    Attributes:
        against: What the other is, in words.
        seconds: Above (or below) the other; the sum of the stages' differences.
        ratio: How many times as long it is.
        may_be_nothing: Whether the intervals (p10 to p90) of both overlap.
        stages: Those that either has, in their order.
    """

    against: str
    seconds: float
    ratio: float
    may_be_nothing: bool
    stages: tuple[StageDifference, ...]


def step_difference(
    own: Forecast,
    base: Forecast,
    against: str,
    causes: Mapping[str, tuple[str, ...]],
    tails_seconds: tuple[float, float] = (0.0, 0.0),
) -> StepDifference:
    """Return what a step differs by from another, stage by stage.

    Args:
        against: What the other is, in words.
        causes: By stage, what is otherwise.
        tails_seconds: Of the generation of both.
    """
    parts, others = step_parts(own, tails_seconds[0]), step_parts(base, tails_seconds[1])
    found = [
        _stage_difference(stage, parts[stage], others[stage], causes.get(stage, ()))
        for stage in STEP_STAGES
        if parts[stage] or others[stage]
    ]
    low, high = own.iteration_seconds_interval
    base_low, base_high = base.iteration_seconds_interval
    return StepDifference(
        against=against,
        seconds=own.iteration_seconds - base.iteration_seconds,
        ratio=own.iteration_seconds / base.iteration_seconds,
        may_be_nothing=low <= base_high and base_low <= high,
        stages=tuple(found),
    )


def _stage_difference(
    stage: str, own: Mapping[str, float], base: Mapping[str, float], causes: tuple[str, ...]
) -> StageDifference:
    names = dict.fromkeys((*own, *base))
    changes = {name: own.get(name, 0.0) - base.get(name, 0.0) for name in names}
    ordered = sorted(changes.items(), key=lambda item: (-abs(item[1]), item[0]))
    changed = FrozenDict({name: seconds for name, seconds in ordered if seconds})
    return StageDifference(
        stage=stage,
        seconds=fsum(own.values()),
        base_seconds=fsum(base.values()),
        parts=changed,
        causes=causes if changed else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStep:
    """Hold the step of a job as one framework runs it.

    Attributes:
        framework: As the user named it.
        title: The framework's, with its trainer where it has several.
        kind: The user's own plan, their layout by this framework, or the best plan that it can run.
        plan, forecast: None where it cannot run the job, or not so.
        reason: Why it cannot; empty where it can.
        notes: What is otherwise than in the job or plan as they were given, and what was not checked.
        gap: How far a plan that was searched may be from the best; None where none was.
        modes: How the framework's iterations may follow each other; none where that is not known.
        difference: From the step that it is compared with; None of that step itself.
    """

    framework: str
    title: str
    kind: Kind
    plan: Plan | None = None
    forecast: Forecast | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()
    gap: float | None = None
    modes: tuple[str, ...] = ()
    difference: StepDifference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworksComparison:
    """Hold a job's steps by framework, the user's own plan first where there is one.

    Attributes:
        notes: What was assumed of the job.
    """

    version: Literal[1] = 1
    job: str
    steps: tuple[ComparedStep, ...]
    notes: tuple[str, ...] = ()
