"""How far iterations get whose samples are old, beside iterations of fresh ones: an assumption, made where it is asked for."""

import math
from dataclasses import dataclass
from typing import Literal

# What becomes of the difference between the policy that generated and the one that learns: nothing, but that the ratio is
# clipped around one of them; or it is clipped around the policy with which the iteration began, and each token's loss is weighed
# by the ratio between both, up to a cap (decoupled PPO, truncated importance sampling).
Correction = Literal["none", "decoupled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressForecast:
    """Hold how far an iteration gets beside one whose samples are of the weights that learn from them.

    Attributes:
        mean_age: Of its samples: iterations that the weights which began a response lack when it is learnt from.
        needed_iterations: That get as far as one of fresh samples; 1 where no sample is old.
        needed_interval: (p10, p90).
        fresh_seconds: What it takes to get as far as one iteration of fresh samples.
        fresh_seconds_interval: (p10, p90), from how well an iteration's seconds are known and how well the number needed is.
        is_beyond: Whether samples are older than in any run that the numbers are from.
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
        """Return what iterations take that get as far as fresh ones of so many seconds, with (p10, p90).

        Both intervals are of unknowns that have nothing to do with each other: what they are off by, as shares, adds up in squares.
        """
        return stretched(seconds, interval, self.needed_iterations, self.needed_interval)


def stretched(
    seconds: float,
    interval: tuple[float, float],
    needed: float,
    needed_interval: tuple[float, float],
) -> tuple[float, tuple[float, float]]:
    """Return seconds times what is needed of them, with (p10, p90) of both together."""
    whole = seconds * needed
    below, above = (
        math.hypot(one / seconds - 1, other / needed - 1)
        for one, other in zip(interval, needed_interval, strict=True)
    )
    return whole, (whole * max(0.0, 1 - below), whole * (1 + above))
