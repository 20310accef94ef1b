"""A whole run in time and money: its steps, and validation, checkpoints and failures besides."""

from dataclasses import dataclass

from rlplan.files.frozen import FrozenDict


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPoint:
    """Hold one step of a run, at which its plan was simulated.

    Attributes:
        step: Its number, from 1.
        response_tokens: Mean length of its responses.
        seconds: Of the step.
        interval_seconds: (p10, p90).
        validation_seconds: Of a validation after this step; 0 where there is none, or its time is not known.
    """

    step: int
    response_tokens: float
    seconds: float
    interval_seconds: tuple[float, float]
    validation_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForecast:
    """Hold the time and price of a run, from its first step to its last.

    Attributes:
        points: Steps that were simulated, in order; seconds are interpolated linearly between them.
        seconds: Of the whole run.
        interval_seconds: (p10, p90).
        parts: Seconds by cause, such as `steps`, `spot`, `validation`, `checkpoints`, `failures`; they sum to `seconds`.
        usd_per_hour: Price while it runs.
        usd: Of the whole run.
        interval_usd: (p10, p90).
        failures: Expected number, including losses of spot nodes that stop the run; None where the job gives no rate.
        validations, checkpoints: Their numbers.
        unknown: By name, what is unknown and not counted, with the field of the job that would give it.
        notes: Further remarks for the reader.
        infeasible_reasons: Why the plan does not fit at some of the points; empty where it fits at all.
    """

    steps: int
    points: tuple[RunPoint, ...]
    seconds: float
    interval_seconds: tuple[float, float]
    parts: FrozenDict[str, float]
    usd_per_hour: float
    usd: float
    interval_usd: tuple[float, float]
    failures: float | None = None
    validations: int = 0
    checkpoints: int = 0
    unknown: FrozenDict[str, str] = FrozenDict()
    notes: tuple[str, ...] = ()
    infeasible_reasons: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        """Return the mean seconds of a step, without validation, checkpoints and failures."""
        return self.parts[STEPS] / self.steps


# Parts of a run's seconds, besides validation and checkpoints: its steps; the time that steps are longer by while spot nodes
# that generate are away; and stops by failures, or by losses of spot nodes that train.
STEPS, SPOT, FAILURES = "steps", "spot", "failures"
