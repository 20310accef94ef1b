"""Steps of a run that is watched, each beside its forecast."""

from dataclasses import dataclass
from typing import Literal

# Where a measured step lies: below p10 of its forecast, above p90, or between.
Place = Literal["below", "within", "above"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStage:
    """Hold a stage of a step beside its forecast."""

    name: str
    measured_seconds: float
    forecast_seconds: float

    @property
    def times(self) -> float:
        """Return how many times as long it takes as was forecast."""
        return self.measured_seconds / self.forecast_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStep:
    """Hold one step beside its forecast at the lengths that it had.

    Attributes:
        step: Its number, by the log.
        starts: Whether it is the first of a start, in which engines compile and caches fill.
        measured_seconds: Without validation and checkpoints.
        interval_seconds: (p10, p90) of the forecast.
        prompt_tokens, response_tokens: Mean lengths; None where they are not logged.
        stages: Those that are logged and forecast.
    """

    step: int
    starts: bool
    measured_seconds: float
    forecast_seconds: float
    interval_seconds: tuple[float, float]
    prompt_tokens: float | None
    response_tokens: float | None
    stages: tuple[WatchedStage, ...]

    @property
    def place(self) -> Place:
        """Return where it lies beside the forecast's interval."""
        low, high = self.interval_seconds
        if self.measured_seconds < low:
            return "below"
        return "above" if self.measured_seconds > high else "within"

    @property
    def furthest(self) -> WatchedStage | None:
        """Return the stage that is the most seconds away from its forecast; None where none is known."""
        return max(
            self.stages,
            key=lambda each: abs(each.measured_seconds - each.forecast_seconds),
            default=None,
        )
