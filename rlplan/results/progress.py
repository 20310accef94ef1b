"""Learning progress of iterations with old samples, relative to fresh ones: an assumption, made only on request."""

import math
from dataclasses import dataclass
from typing import Literal

# How the loss corrects for the difference between the policy that generated and the one that learns. `none`: only by
# clipping the ratio. `decoupled`: the ratio is clipped around the policy at the start of the iteration, and each token's
# loss is weighed by the ratio of that policy to the generating one, up to a cap (decoupled PPO, truncated importance
# sampling).
Correction = Literal["none", "decoupled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressForecast:
    """Hold the learning progress of an iteration relative to one whose samples come from the current weights.

    Attributes:
        mean_age: Mean age of its samples, in iterations: how old the weights that began a response are when it is learnt
            from.
        needed_iterations: Iterations that make the progress of one with fresh samples; 1 where no sample is old.
        needed_interval: (p10, p90).
        fresh_seconds: Time to make the progress of one iteration with fresh samples.
        fresh_seconds_interval: (p10, p90), from the uncertainty of an iteration's seconds and of `needed_iterations`.
        is_beyond: Whether samples are older than in any run that the numbers come from.
    """

    mean_age: float
    correction: Correction
    needed_iterations: float
    needed_interval: tuple[float, float]
    fresh_seconds: float
    fresh_seconds_interval: tuple[float, float]
    is_beyond: bool = False

    def stretched(
        self, seconds: float, interval: tuple[float, float]
    ) -> tuple[float, tuple[float, float]]:
        """Return the time to make the progress of fresh iterations of so many seconds, with (p10, p90).

        The two uncertainties are independent: their relative errors add up in squares.
        """
        return stretched(seconds, interval, self.needed_iterations, self.needed_interval)


def stretched(
    seconds: float,
    interval: tuple[float, float],
    needed: float,
    needed_interval: tuple[float, float],
) -> tuple[float, tuple[float, float]]:
    """Return the seconds times the needed factor, with (p10, p90) of the product."""
    whole = seconds * needed
    below, above = (
        math.hypot(one / seconds - 1, other / needed - 1)
        for one, other in zip(interval, needed_interval, strict=True)
    )
    return whole, (whole * max(0.0, 1 - below), whole * (1 + above))
