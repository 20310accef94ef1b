"""The last iterations of a run's plan: what they measured, and whether they have left the range that they were planned for."""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import mean, median

from rlplan.files.frozen import FrozenDict
from rlplan.planner.measured.following import LEAST_STEPS, NEWEST, spread_of
from rlplan.results.adapting import DoneIteration
from rlplan.results.advice import Departure
from rlplan.results.measurement import MeasuredRun, ResponseLengths
from rlplan.trace import Trace, sorted_spans

# Metrics whose ranges a plan is for, beside the seconds of stages: lengths, and a whole iteration.
LENGTHS, SECONDS, STAGES = "response_tokens", "seconds", "stage_seconds/"
Range = tuple[float, float]


class Window:
    """Keep the newest iterations of a plan.

    Args:
        size: How many, at most.
        warmup: First iterations of a plan that are left out.

    Attributes:
        first_seconds: What the plan's first iteration took; None before it.
    """

    def __init__(self, size: int, warmup: int) -> None:
        self._warmup = warmup
        self._kept: deque[DoneIteration] = deque(maxlen=size)
        self._seen = 0
        self.first_seconds: float | None = None

    def clear(self) -> None:
        """Begin with another plan, or with new workers."""
        self._kept.clear()
        self._seen, self.first_seconds = 0, None

    def note(self, done: DoneIteration) -> None:
        """Take an iteration in."""
        if self.first_seconds is None:
            self.first_seconds = done.span.seconds
        self._seen += 1
        if self._seen > self._warmup:
            self._kept.append(done)

    @property
    def is_enough(self) -> bool:
        """Tell whether medians say something."""
        return len(self._kept) >= LEAST_STEPS

    @property
    def _present(self) -> list[DoneIteration]:
        """Return the newest iterations: as many as had responses as long as the last ones, and no fewer than medians need."""
        kept = list(self._kept)
        low, high = spread_of([each.metrics[LENGTHS] for each in kept[-NEWEST:]])
        unlike = (at for at, each in enumerate(kept, 1) if not low <= each.metrics[LENGTHS] <= high)
        return kept[min(max(unlike, default=0), max(0, len(kept) - LEAST_STEPS)) :]

    @property
    def step_seconds(self) -> float:
        """Return the median of the newest iterations of one length."""
        return median(each.span.seconds for each in self._present)

    @property
    def first_took_longer_seconds(self) -> float:
        """Return what the first iteration took longer than those behind it."""
        if self.first_seconds is None or not self._kept:
            return 0.0
        return max(0.0, self.first_seconds - self.step_seconds)

    def measured(self) -> MeasuredRun:
        """Return what the newest iterations of one length measured, as a run of their own."""
        kept = self._present
        rows = [each.metrics for each in kept]
        return MeasuredRun(
            plan=kept[-1].plan,
            trace=Trace(
                origin="measured",
                spans=sorted_spans([span for each in kept for span in each.spans]),
                iterations=tuple(each.span for each in kept),
            ),
            warmup_iterations=kept[0].span.iteration,
            memory_peak_bytes=FrozenDict(),
            machine=FrozenDict(),
            response_tokens=mean(row[LENGTHS] for row in rows),
            response_lengths=ResponseLengths.of(rows),
        )

    def ranges(self) -> dict[str, Range]:
        """Return the ranges of lengths, of iterations and of their stages, by the names that metrics have."""
        return {name: spread_of(values) for name, values in _columns(self._present).items()}

    def departures(self, ranges: Mapping[str, Range]) -> tuple[Departure, ...]:
        """Return the stages, and the iteration, whose newest medians have left their ranges."""
        return tuple(
            Departure(
                name="step" if name == SECONDS else name.removeprefix(STAGES),
                measured_seconds=newest,
                normal_seconds=ranges[name],
                beside="steps before",
            )
            for name, newest in self._left(ranges).items()
            if name != LENGTHS
        )

    def has_left(self, ranges: Mapping[str, Range]) -> bool:
        """Tell whether lengths, an iteration or a stage have left their ranges."""
        return bool(self._left(ranges))

    def _left(self, ranges: Mapping[str, Range]) -> dict[str, float]:
        """Return the newest medians that lie outside their ranges, by the names that metrics have."""
        found = {}
        for name, values in _columns(list(self._kept)[-NEWEST:]).items():
            newest = median(values)
            if name in ranges and not ranges[name][0] <= newest <= ranges[name][1]:
                found[name] = newest
        return found


def _columns(kept: Sequence[DoneIteration]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for each in kept:
        for name, value in each.metrics.items():
            if name in {LENGTHS, SECONDS} or name.startswith(STAGES):
                columns.setdefault(name, []).append(value)
    return columns
