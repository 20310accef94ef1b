"""What a run did, and how right the forecast of it was. The files `measured.json`, `validation.json`."""

from dataclasses import dataclass

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import NonNegativeInt, Positive
from rlplan.plan import Plan
from rlplan.trace import Trace

RUN_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseLengths:
    """Hold the lengths of an iteration's responses, in tokens: each the median over a run's iterations.

    Attributes:
        longest: Tokens of the longest response.
    """

    mean: float
    std: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """Say where a run went on with another plan.

    Attributes:
        iteration: The first one that the other plan did, unless yet another followed.
        reason: Why, as it was said while it ran.
        before: File of the plan until then, in the run's folder.
    """

    iteration: NonNegativeInt
    reason: str
    before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Hold what a run measured.

    Attributes:
        trace: Every task of every iteration as a span.
        warmup_iterations: First iterations, named and left out of comparisons.
        memory_peak_bytes: Largest measured peak of a device's process, by pool.
        machine: Fingerprint of the machine that ran it.
        response_tokens: Mean tokens of a response after the warm-up; None in runs that did not note it.
        response_lengths: After the warm-up; None in runs that did not note it.
        loop_flops_per_second: What the slowest device does in a fixed loop (`rlplan.executor.probing.loop`), all of them
            busy: before the first iteration and after the last. Empty in runs that did not note it.
        replanned: Where plans followed one another; `plan` is the last one, of which alone the trace is.
        evaluation_seconds: For which training waited in each evaluation.
        stopped: Why it stopped before the last iteration that it was to do; empty where it did not.
    """

    version: int = RUN_VERSION
    plan: Plan
    trace: Trace
    warmup_iterations: int
    memory_peak_bytes: FrozenDict[str, int]
    machine: FrozenDict[str, str]
    response_tokens: float | None = None
    response_lengths: ResponseLengths | None = None
    loop_flops_per_second: tuple[Positive, ...] = ()
    replanned: tuple[Replanned, ...] = ()
    evaluation_seconds: tuple[Positive, ...] = ()
    stopped: str = ""

    @property
    def mean_response_tokens(self) -> float | None:
        """Return the mean tokens of the usual iteration's responses, else of all; None where neither is noted."""
        return self.response_lengths.mean if self.response_lengths else self.response_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """Hold forecast against measurement for one task, or for the iteration.

    Attributes:
        as_run_seconds: Forecast at the lengths that the run had; None where those are the plan's, or not known.
        error_fraction: (forecast - median measured) / median measured.
        measured_interval_seconds: (p10, p90) of the measured iterations.
        source: Source of the forecast.
    """

    name: str
    pool: str
    forecast_seconds: float
    measured_median_seconds: float
    measured_interval_seconds: tuple[float, float]
    error_fraction: float
    source: str
    as_run_seconds: float | None = None

    def error_at(self, slowdown: float = 1.0) -> float | None:
        """Return the error of the forecast at the run's lengths on a machine that is slower by a factor.

        None where nothing was measured.
        """
        seconds = self.forecast_seconds if self.as_run_seconds is None else self.as_run_seconds
        median = self.measured_median_seconds
        return seconds * slowdown / median - 1 if median else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Hold the table of forecast against measurement, task by task, and the iteration last.

    Attributes:
        warmup_iterations: Iterations left out, from the first.
        compared_iterations: Iterations that the medians are over.
        response_tokens: (forecast, measured) mean tokens of a response, where the run noted them and learnt
            from all that it began.
        as_run_response_tokens: Mean tokens of a response in the forecast as it ran; None where that has the
            lengths of the plan.
        machine_slowdown: How many times as long the machine took for a fixed loop during the run as when its
            profile was measured; None where profile or run did not note it.
    """

    rows: tuple[ComparisonRow, ...]
    iteration: ComparisonRow
    warmup_iterations: int
    compared_iterations: int
    response_tokens: tuple[float, float] | None = None
    as_run_response_tokens: float | None = None
    machine_slowdown: float | None = None
