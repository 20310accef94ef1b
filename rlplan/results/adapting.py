"""What a run tells whoever may let it go on with another plan, and what is answered."""

from collections.abc import Mapping
from dataclasses import dataclass

from rlplan.plan import Plan
from rlplan.trace import IterationSpan, Span


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
