"""Times that something outside takes, in seconds: a number, a distribution, or two percentiles of one."""

import math
import random
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal

from rlplan.files.limits import NonNegative, Positive
from rlplan.files.tags import Tag
from rlplan.workload.lognormal import cut_mean, log_moments

# Standard normal quantile of the 99th percentile.
NORMAL_P99 = NormalDist().inv_cdf(0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class LognormalSeconds:
    """Draw seconds whose logarithm is normal.

    Attributes:
        mean: Mean in seconds, before the cut.
        std: Standard deviation in seconds, before the cut.
        max: Longest; longer draws become this long. None for no cut.
    """

    distribution: Literal["lognormal"] = "lognormal"
    mean: Positive
    std: Positive
    max: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentileSeconds:
    """Draw seconds whose logarithm is normal, with these percentiles.

    Attributes:
        p50: Median in seconds.
        p99: Seconds that one in a hundred exceeds.
        max: Longest; longer draws become this long. None for no cut.
    """

    distribution: Literal["percentiles"] = "percentiles"
    p50: Positive
    p99: Positive
    max: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformSeconds:
    """Draw seconds evenly between `low` and `high`."""

    distribution: Literal["uniform"] = "uniform"
    low: NonNegative
    high: NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class EmpiricalSeconds:
    """Draw seconds from a list of observed ones, all equally likely."""

    distribution: Literal["empirical"] = "empirical"
    values: tuple[NonNegative, ...]


Latency = Annotated[
    LognormalSeconds | PercentileSeconds | UniformSeconds | EmpiricalSeconds, Tag("distribution")
]
Seconds = NonNegative | Latency


def log_normal_of(latency: LognormalSeconds | PercentileSeconds) -> tuple[float, float]:
    """Return mean and standard deviation of the logarithm of the seconds, before the cut."""
    if isinstance(latency, PercentileSeconds):
        return math.log(latency.p50), math.log(latency.p99 / latency.p50) / NORMAL_P99
    return log_moments(latency.mean, latency.std)


def sample_seconds(seconds: Seconds, count: int, seed: int) -> tuple[float, ...]:
    """Draw `count` times in seconds; the same seed gives the same ones on any machine."""
    if isinstance(seconds, int | float):
        return (float(seconds),) * count
    generator = random.Random(seed)
    if isinstance(seconds, UniformSeconds):
        return tuple(generator.uniform(seconds.low, seconds.high) for _ in range(count))
    if isinstance(seconds, EmpiricalSeconds):
        return tuple(generator.choices(seconds.values, k=count))
    centre, width = log_normal_of(seconds)
    most = math.inf if seconds.max is None else seconds.max
    return tuple(min(most, generator.lognormvariate(centre, width)) for _ in range(count))


def mean_seconds(seconds: Seconds) -> float:
    """Return the expected seconds, the cut at the maximum included."""
    if isinstance(seconds, int | float):
        return float(seconds)
    if isinstance(seconds, UniformSeconds):
        return (seconds.low + seconds.high) / 2
    if isinstance(seconds, EmpiricalSeconds):
        return sum(seconds.values) / len(seconds.values)
    return cut_mean(*log_normal_of(seconds), math.inf if seconds.max is None else seconds.max)
