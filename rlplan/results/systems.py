"""What systems of the field make of a job: each one's best plan with its forecast, or why it has none."""

from dataclasses import dataclass
from typing import Literal

from rlplan.plan import Plan
from rlplan.results.forecast import Forecast

COMPARISON_VERSION: Literal[1] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemForecast:
    """Hold the best plan that a system can express for a job.

    Attributes:
        name: As the user types it, such as `openrlhf-0.2`.
        about: How the system runs a job, in one sentence.
        plan: None when no plan of it fits.
        forecast: That of the plan.
        reason: Why the system cannot run the job; None when it can.
        considered: Plans that were looked at.
    """

    name: str
    about: str
    plan: Plan | None = None
    forecast: Forecast | None = None
    reason: str | None = None
    considered: int = 0

    @property
    def seconds(self) -> float | None:
        """Return the seconds of an iteration; None when nothing fits."""
        return self.forecast.iteration_seconds if self.forecast else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemsComparison:
    """Hold our plan of a job beside those of other systems, in the order asked for.

    Attributes:
        ours: The plan that the search found.
        systems: The other systems.
    """

    version: Literal[1] = COMPARISON_VERSION
    job: str
    ours: SystemForecast
    systems: tuple[SystemForecast, ...]

    def speed_up(self, system: SystemForecast) -> float | None:
        """Return how many times as fast our plan is as a system's; None when one has no plan."""
        if system.seconds is None or self.ours.seconds is None:
            return None
        return system.seconds / self.ours.seconds
