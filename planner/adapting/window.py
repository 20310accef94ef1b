"""The last iterations of a run's plan: what they measured, and what has changed since others were measured."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, pi, sqrt
from statistics import fmean, mean, median, stdev
from typing import Final

from rlplan.estimate import P90_DEVIATIONS
from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.planner.measured.following import (
    LEAST_STEPS,
    NEWEST,
    spread_of,
)
from rlplan.results.advice import Departure, DoneIteration
from rlplan.results.measurement import MeasuredRun, ResponseLengths
from rlplan.trace import Trace, sorted_spans
from rlplan.workload import Lognormal, mean_at_step, mean_length

# Metrics whose levels a plan is for, beside the seconds of stages: lengths, and a whole iteration.
LENGTHS, SECONDS, STAGES = "response_tokens", "seconds", "stage_seconds/"
# Standard errors that two medians differ by at least where that is no chance. More than those of a single comparison, since lengths and
# each stage are compared after every iteration: of normal values, 40 windows of ten iterations with three numbers each have one that is further
# off in one of a hundred runs (120 x 6e-5), and where errors are known from these ten values alone, in five.
CHANCE_ERRORS: Final = 4.0
# Standard error of a median of n normal values, in their standard deviations over sqrt(n): 1 / (2 f sqrt(n)), where f is their density in the
# middle, 1 / sqrt(2 pi).
MEDIAN_ERROR: Final = sqrt(pi / 2)
# Standard errors within which lengths are taken for those that a job plans. Of lengths that are as planned, 19 of 20 comparisons over twenty
# iterations pass, and four of five over three (Student's t); those that do not are taken as they were measured.
PLANNED_ERRORS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Hold a median over iterations, with its standard error."""

    median: float
    error: float

    def change(self, newest: "Level", least: float) -> float:
        """Return by what share of the smaller one two levels differ; 0 where that may be chance, or is less than a share.

        Levels are 0 or more.
        """
        low, high = sorted((self.median, newest.median))
        by_chance = CHANCE_ERRORS * hypot(self.error, newest.error)
        if high - low <= max(by_chance, least * low):
            return 0.0
        return high / low - 1 if low else 1.0


Levels = Mapping[str, Level]
"""By the names that metrics have."""


def level_of(values: Sequence[float]) -> Level:
    """Return the median of values, and its standard error from how they are spread."""
    count, middle = len(values), fmean(values)
    # By hand, for it is done after every iteration: `statistics.stdev` is exact, and takes a hundred times as long.
    variance = sum((each - middle) ** 2 for each in values) / max(1, count - 1)
    return Level(median=median(values), error=MEDIAN_ERROR * sqrt(variance / count))


def median_width(*runs: tuple[MeasuredRun, float]) -> float:
    """Return how far a sum of medians of runs' seconds is off, from its middle to the 90th percentile, in seconds.

    Each median's error is known from how its own iterations are spread, of which there may be three: so it is Student's distribution,
    with the degrees of freedom of Welch and Satterthwaite.

    Args:
        runs: Each with what its median is multiplied with.
    """
    errors = [
        (times * level_of([each.seconds for each in run.trace.iterations]).error, run)
        for run, times in runs
    ]
    squares = sum(error**2 for error, _ in errors)
    if not squares:
        return 0.0
    fourths = sum(error**4 / max(1, len(run.trace.iterations) - 1) for error, run in errors)
    return student_p90(squares**2 / fourths) * sqrt(squares)


def student_p90(degrees: float) -> float:
    """Return the 90th percentile of Student's distribution, in its scale; within a hundredth from two degrees of freedom on.

    Abramowitz and Stegun 1964, Handbook of Mathematical Functions, 26.7.5.
    """
    z = P90_DEVIATIONS
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, 1))


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
        self._plan: Plan | None = None
        self.first_seconds: float | None = None

    def clear(self) -> None:
        """Begin with another plan, or with new workers."""
        self._kept.clear()
        self._seen, self._plan, self.first_seconds = 0, None, None

    def note(self, done: DoneIteration) -> None:
        """Take an iteration in; by another plan, such as one with other replicas, those before say nothing of it."""
        if self._plan is not None and self._plan != done.plan:
            self._kept.clear()
            self._seen = 0
        self._plan = done.plan
        if self.first_seconds is None:
            self.first_seconds = done.span.seconds
        self._seen += 1
        if self._seen > self._warmup:
            self._kept.append(done)

    @property
    def count(self) -> int:
        """Return how many iterations are kept."""
        return len(self._kept)

    @property
    def is_enough(self) -> bool:
        """Tell whether medians say something."""
        return self.count >= LEAST_STEPS

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

    @property
    def has_planned_lengths(self) -> bool:
        """Tell whether responses are as long as the job says, or plans that they grow, within chance: over all iterations that are kept.

        Those that are as long as the last few, which `measured` is of, say less: they are chosen by their lengths.
        """
        workload = self._kept[-1].plan.job.workload
        if not self.is_enough or workload.drops_responses:
            return False  # of dropped ones nothing is measured: those that are left are the shorter ones
        always = mean_length(workload.response_tokens)
        ratios = [
            each.metrics[LENGTHS]
            / (planned_mean(each.plan, each.span.iteration + 1, each.iterations) or always)
            for each in self._kept
        ]
        error = stdev(ratios) / sqrt(len(ratios))
        return abs(fmean(ratios) - 1) <= PLANNED_ERRORS * error

    def levels(self, newest: int) -> Levels:
        """Return the levels of lengths, of iterations and of their stages over so many newest iterations, or all that are kept.

        Whatever their lengths: those that are as long as the last few would be spread less than all are.
        """
        kept = list(self._kept)[-newest:]
        columns: dict[str, list[float]] = {}
        for each in kept:
            for name, value in each.metrics.items():
                if name in {LENGTHS, SECONDS} or name.startswith(STAGES):
                    columns.setdefault(name, []).append(value)
        return {name: level_of(values) for name, values in columns.items()}


def planned_mean(plan: Plan, step: int, iterations: int) -> float | None:
    """Return the mean response tokens that a plan's job plans for a step of a run, counted from 1; None where it plans no growth.

    Args:
        iterations: Of the run, where its job says nothing of them.
    """
    planned = plan.job.workload.response_tokens
    if not isinstance(planned, Lognormal) or planned.training_means is None:
        return None
    return mean_at_step(planned.training_means, step=step, steps=plan.job.iterations or iterations)


def changes_of(before: Levels, now: Levels, least: float) -> dict[str, float]:
    """Return what has changed, by name: by what share of the smaller value.

    Args:
        least: Shares up to which changes do not count.
    """
    found = {name: each.change(now[name], least) for name, each in before.items() if name in now}
    return {name: each for name, each in found.items() if each > 0}


def departures_of(before: Levels, now: Levels, least: float) -> tuple[Departure, ...]:
    """Return the stages, and the iteration, that have changed; see `changes_of`."""
    return tuple(
        Departure(
            name="step" if name == SECONDS else name.removeprefix(STAGES),
            measured_seconds=now[name].median,
            normal_seconds=_around(before[name], now[name], least),
            beside="steps before",
        )
        for name in changes_of(before, now, least)
        if name != LENGTHS
    )


def _around(level: Level, newest: Level, least: float) -> tuple[float, float]:
    """Return the ends between which a level is no other one."""
    width = max(CHANCE_ERRORS * hypot(level.error, newest.error), least * level.median)
    return max(0.0, level.median - width), level.median + width
