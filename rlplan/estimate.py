"""A number that knows where it comes from and how far it may be off."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from statistics import NormalDist

P90_DEVIATIONS = NormalDist().inv_cdf(0.9)  # 1.2816


@lru_cache(maxsize=4096)
def largest_normal(draws: int) -> float:
    """Return the expected largest of so many standard normal draws.

    It lies at the quantile (n - 3/8) / (n + 1/4) (Blom 1958, "Statistical Estimates and Transformed
    Beta-Variables").
    """
    return NormalDist().inv_cdf((draws - 0.375) / (draws + 0.25)) if draws > 1 else 0.0


class Source(IntEnum):
    """Order the origins of a number, strongest first; a sum keeps the weakest (the largest)."""

    MEASURED = 0
    INTERPOLATED = 1
    FITTED = 2
    DATASHEET = 3

    @property
    def label(self) -> str:
        """Return the word that files and tables use."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Estimate:
    """Hold seconds with their spread and source.

    Attributes:
        seconds: The central value (a median where measured).
        spread_seconds: One standard deviation.
        source: Where the value comes from; the weakest of its parts.
        outside_range: True when a look-up left the measured range (flagged in the forecast).
    """

    seconds: float
    spread_seconds: float = 0.0
    source: Source = Source.MEASURED
    outside_range: bool = False

    def __add__(self, other: "Estimate") -> "Estimate":
        """Return the sum; spreads add linearly, since errors of one device's table are correlated."""
        return Estimate(
            self.seconds + other.seconds,
            self.spread_seconds + other.spread_seconds,
            max(self.source, other.source),
            self.outside_range or other.outside_range,
        )

    def __mul__(self, factor: float) -> "Estimate":
        """Return the estimate repeated `factor` times."""
        return Estimate(
            self.seconds * factor,
            self.spread_seconds * abs(factor),
            self.source,
            self.outside_range,
        )

    __rmul__ = __mul__

    def at_least(self, other: "Estimate") -> "Estimate":
        """Return the longer of two, for parts that overlap; the source is the weaker of both."""
        longer = self if self.seconds >= other.seconds else other
        return Estimate(
            longer.seconds,
            longer.spread_seconds,
            max(self.source, other.source),
            self.outside_range or other.outside_range,
        )


ZERO = Estimate(0.0)


def total(estimates: Iterable[Estimate]) -> Estimate:
    """Return the sum of estimates; zero seconds for none."""
    seconds = spread_seconds = 0.0
    source, outside_range = Source.MEASURED, False
    for estimate in estimates:  # as sums of two are, without an object for each
        seconds += estimate.seconds
        spread_seconds += estimate.spread_seconds
        if estimate.source is not source:
            source = max(source, estimate.source)
        outside_range = outside_range or estimate.outside_range
    return Estimate(seconds, spread_seconds, source, outside_range)


def interval_seconds(estimate: Estimate) -> tuple[float, float]:
    """Return (p10, p90) in seconds, as if errors were normal; never below zero."""
    margin_seconds = P90_DEVIATIONS * estimate.spread_seconds
    return max(0.0, estimate.seconds - margin_seconds), estimate.seconds + margin_seconds
