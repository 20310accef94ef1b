"""Lengths and times as often as their distributions have them: those of a usual batch."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rlplan.profiles.analytic.normal import normal_quantiles
from rlplan.workload.latencies import EmpiricalSeconds, Seconds, UniformSeconds, log_normal_of
from rlplan.workload.lengths import Empirical, Lengths, Lognormal, Uniform
from rlplan.workload.lognormal import log_moments

Floats = npt.NDArray[np.float64]


def evenly(lengths: Lengths, count: int) -> Floats:
    """Return `count` lengths in tokens, one of each `count`-th of the distribution, in order.

    No luck is in their mean, spread and tail, as it is in as many drawn ones. Shape (count,).
    """
    shares = (np.arange(count) + 0.5) / count
    if isinstance(lengths, int):
        return np.full(count, float(lengths))
    if isinstance(lengths, Uniform):
        return np.floor(lengths.low + shares * (lengths.high - lengths.low + 1))
    if isinstance(lengths, Lognormal):
        centre, width = log_moments(lengths.mean, lengths.std)
        drawn = np.minimum(shares / (1 - (lengths.at_max or 0.0)), 1.0)  # what is left is `max`
        found = np.exp(centre + width * normal_quantiles(drawn))
        return np.asarray(np.clip(np.round(found), 1, lengths.max), dtype=np.float64)
    assert isinstance(lengths, Empirical), "a trace is resolved before use"
    return _at_shares(lengths.values, shares)


def _at_shares(values: Sequence[float], shares: Floats) -> Floats:
    """Return the observed values at shares of their order. Same shape as `shares`."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    return np.asarray(ordered[(shares * len(ordered)).astype(np.int64)])


def seconds_evenly(seconds: Seconds, count: int, most: float | None = None) -> Floats:
    """Return `count` times in seconds, one of each `count`-th of the distribution, in order. Shape (count,).

    Args:
        most: A limit after which each is broken off.
    """
    shares = (np.arange(count) + 0.5) / count
    if isinstance(seconds, int | float):
        found = np.full(count, float(seconds))
    elif isinstance(seconds, UniformSeconds):
        found = seconds.low + shares * (seconds.high - seconds.low)
    elif isinstance(seconds, EmpiricalSeconds):
        found = _at_shares(seconds.values, shares)
    else:
        centre, width = log_normal_of(seconds)
        found = np.exp(centre + width * normal_quantiles(shares))
        found = np.minimum(found, math.inf if seconds.max is None else seconds.max)
    return np.asarray(np.minimum(found, math.inf if most is None else most), dtype=np.float64)
