"""Intervals from p10 to p90, from spreads that are standard deviations."""

from statistics import NormalDist

from rlplan.estimate import Estimate

P90_DEVIATIONS = NormalDist().inv_cdf(0.9)  # 1.2816


def interval_seconds(estimate: Estimate) -> tuple[float, float]:
    """Return (p10, p90) in seconds, as if errors were normal; never below zero."""
    margin_seconds = P90_DEVIATIONS * estimate.spread_seconds
    return max(0.0, estimate.seconds - margin_seconds), estimate.seconds + margin_seconds
