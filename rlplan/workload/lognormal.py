"""Log-normal lengths and times: their logarithms' mean and spread, and what a cut leaves of their mean."""

import math


def log_moments(mean: float, std: float) -> tuple[float, float]:
    """Return mean and standard deviation of the logarithm of what has this mean and standard deviation."""
    variance = math.log1p((std / mean) ** 2)
    return math.log(mean) - variance / 2, math.sqrt(variance)


def normal_share(below: float) -> float:
    """Return the share of a standard normal distribution that lies below a value."""
    return 0.5 * math.erfc(-below / math.sqrt(2))


def cut_mean(centre: float, width: float, most: float) -> float:
    """Return E[min(X, most)] of a log-normal X, in closed form.

    Args:
        centre, width: Mean and standard deviation of its logarithm.
    """
    whole = math.exp(centre + width**2 / 2)
    if not width or most == math.inf:
        return min(whole, most)
    cut = (math.log(most) - centre) / width
    return whole * normal_share(cut - width) + most * normal_share(-cut)
