"""Quantiles of the normal distribution, and where a function is zero: what lengths need of them, without scipy.

Loading scipy takes longer than a whole forecast of a small job does.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_STANDARD = NormalDist()


def normal_quantile(share: float) -> float:
    """Return the value below which this share of a standard normal distribution lies.

    Infinity for a share of one.
    """
    return _STANDARD.inv_cdf(share) if share < 1 else math.inf


def normal_quantiles(shares: Floats) -> Floats:
    """Return the values below which these shares of a standard normal distribution lie. Same shape (count,)."""
    return np.frombuffer(_quantiles(shares.tobytes()))


@lru_cache(
    maxsize=64
)  # plans of one job have lengths as often as its distributions have them, again and again
def _quantiles(shares: bytes) -> bytes:
    values = np.frombuffer(shares).tolist()
    return np.fromiter(map(normal_quantile, values), np.float64, len(values)).tobytes()


def zero_between(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a continuous function is zero between two places, to the last digit, by halving.

    Raises:
        ValueError: It has the same sign at both.
    """
    at_low, at_high = function(low), function(high)
    if at_low == 0 or at_high == 0:
        return low if at_low == 0 else high
    if (at_low > 0) == (at_high > 0):
        raise ValueError(f"no change of sign between {low:g} and {high:g}")
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if (function(middle) > 0) == (at_high > 0):
            high = middle
        else:
            low = middle
