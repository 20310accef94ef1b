"""What happened when, on which pool: the common answer of the simulator and the executor."""

from dataclasses import dataclass
from typing import Literal

Activity = Literal["task", "transition", "transfer", "offload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Record one piece of work on one pool.

    Attributes:
        name: Task name, or `transition`, or `transfer:<key>`.
        iteration: From 0.
        start_seconds: Since the trace's origin (the start of iteration 0).
    """

    name: str
    pool: str
    iteration: int
    start_seconds: float
    end_seconds: float
    activity: Activity = "task"

    @property
    def seconds(self) -> float:
        """Return the span's length in seconds."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationSpan:
    """Record the begin and end of a whole iteration, as the controller sees it."""

    iteration: int
    start_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        """Return the iteration's length in seconds."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Hold the spans of a forecast or of a run, sorted by (start, pool, name)."""

    origin: Literal["simulated", "measured"]
    spans: tuple[Span, ...]
    iterations: tuple[IterationSpan, ...]

    def of_iteration(self, iteration: int) -> tuple[Span, ...]:
        """Return the spans of one iteration."""
        return tuple(span for span in self.spans if span.iteration == iteration)


def sorted_spans(spans: list[Span]) -> tuple[Span, ...]:
    """Return spans in the order that every reader relies on."""
    return tuple(sorted(spans, key=lambda span: (span.start_seconds, span.pool, span.name)))
