"""What a measured step is beside its forecast, stage by stage. What `rlplan check-step --json` prints."""

from dataclasses import dataclass
from typing import Literal

from rlplan.files.frozen import FrozenDict

Verdict = Literal["normal", "slow", "fast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCheck:
    """Hold a stage's measured seconds beside what was to be expected.

    Attributes:
        forecast_seconds: At the lengths that were measured.
        normal_seconds: (low, high) between which a stage like it lies at 19 of 20 sites.
        causes: Why it is not normal, as far as the log and the plan show it.
        tries: What may be changed, and what the forecast says of it.
    """

    name: str
    measured_seconds: float
    forecast_seconds: float
    normal_seconds: tuple[float, float]
    verdict: Verdict
    causes: tuple[str, ...] = ()
    tries: tuple[str, ...] = ()

    @property
    def times(self) -> float:
        """Return how many times as long it takes as was forecast."""
        return self.measured_seconds / self.forecast_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCheck:
    """Hold the check of a log's (or run's) steps.

    Attributes:
        source: Whose log it is: a framework's, or `rlplan` for a run of its own.
        steps: How many steps the medians are over.
        prompt_tokens: Mean length of prompts; None where it is not logged.
        response_tokens: Mean length of responses; None where it is not logged.
        step: The whole step; None where it is not logged.
        others: Seconds of the step in timers that no forecast is made of, and in none (`no timer`).
        notes: What else a reader should know.
    """

    source: str
    steps: int
    prompt_tokens: float | None
    response_tokens: float | None
    step: StageCheck | None
    stages: tuple[StageCheck, ...]
    others: FrozenDict[str, float] = FrozenDict()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Return `slow` where a stage or the step is, `fast` where only that, else `normal`."""
        found = {each.verdict for each in (*self.stages, *((self.step,) if self.step else ()))}
        return "slow" if "slow" in found else "fast" if "fast" in found else "normal"
