"""What a run did, and how right the forecast of it was. The files `measured.json`, `validation.json`."""

from dataclasses import dataclass

from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.trace import Trace

RUN_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Hold what a run measured.

    Attributes:
        trace: Every task of every iteration as a span.
        warmup_iterations: First iterations, named and left out of comparisons.
        memory_peak_bytes: Largest measured peak of a device's process, by pool.
        machine: Fingerprint of the machine that ran it.
        response_tokens: Mean tokens of a response after the warm-up; None in runs that did not note it.
    """

    version: int = RUN_VERSION
    plan: Plan
    trace: Trace
    warmup_iterations: int
    memory_peak_bytes: FrozenDict[str, int]
    machine: FrozenDict[str, str]
    response_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """Hold forecast against measurement for one task, or for the iteration.

    Attributes:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Hold the table of forecast against measurement, task by task, and the iteration last.

    Attributes:
        warmup_iterations: Iterations left out, from the first.
        compared_iterations: Iterations that the medians are over.
        response_tokens: (forecast, measured) mean tokens of a response, where the run noted them.
    """

    rows: tuple[ComparisonRow, ...]
    iteration: ComparisonRow
    warmup_iterations: int
    compared_iterations: int
    response_tokens: tuple[float, float] | None = None
