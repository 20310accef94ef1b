"""A whole run: what its steps, and what stands beside them, take together, in time and money."""

from dataclasses import dataclass

from rlplan.files.frozen import FrozenDict


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPoint:
    """Hold one step of a run, at which its plan was simulated.

    Attributes:
        step: Its number, from 1.
        response_tokens: Mean length of its responses.
        seconds: That it takes.
        interval_seconds: (p10, p90).
        validation_seconds: What a validation would take behind it; 0 where there is none, or that is not known.
    """

    step: int
    response_tokens: float
    seconds: float
    interval_seconds: tuple[float, float]
    validation_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForecast:
    """Hold what a run of so many steps takes, from its first step to its last.

    Attributes:
        points: Steps that were simulated, in order; between them seconds change evenly.
        seconds: Of the whole run.
        interval_seconds: (p10, p90).
        parts: Seconds by cause, such as `steps`, `spot`, `validation`, `checkpoints`, `failures`; they sum to `seconds`.
        usd_per_hour: What is paid while it runs.
        usd: Of the whole run.
        interval_usd: (p10, p90).
        failures: That are expected, losses of spot nodes that stop the run among them; None where the job does not speak of them.
        validations, checkpoints: How many there are.
        unknown: What stands beside the steps and is not counted, with the field that would say it, by name.
        notes: What else a reader should know.
        infeasible_reasons: Why the plan does not fit at some of its points; none where it fits at all of them.
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
        """Return what a step takes on average, without what stands beside the steps."""
        return self.parts[STEPS] / self.steps


# What the seconds of a run are made of, beside validation and checkpoints: its steps, what they take longer since spot nodes
# that generate are away now and then, and what stops it, losses of spot nodes that train among it.
STEPS, SPOT, FAILURES = "steps", "spot", "failures"
