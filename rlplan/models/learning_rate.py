"""How a learning rate changes over a run: a warm-up, then constant, or down to a minimum by a line or a cosine."""

import math
from dataclasses import dataclass
from typing import Literal

from rlplan.files.limits import AtLeastOne, NonNegativeInt, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateSchedule:
    """Say what share of the full learning rate each iteration is trained with.

    Attributes:
        warmup_iterations: Iterations of a warm-up: their shares rise in equal steps, and the first one
            behind them has the full rate.
        decay: How the rate falls behind the warm-up: not at all, along half a `cosine`, or along a line.
        iterations: From which on the rate is the lowest, the warm-up counted; a `constant` rate has none.
        minimum_share: Share of the full rate that is the lowest.
    """

    warmup_iterations: NonNegativeInt = 0
    decay: Literal["constant", "cosine", "linear"] = "constant"
    iterations: AtLeastOne | None = None
    minimum_share: Share = 0.0

    def share(self, iteration: int) -> float:
        """Return the share of an iteration, counted from 0 over the whole run."""
        warmup = self.warmup_iterations
        if iteration < warmup:
            return (iteration + 1) / (warmup + 1)
        if self.decay == "constant":
            return 1.0
        assert self.iterations is not None, "a job's schedule is checked"
        done = min(1.0, (iteration - warmup) / (self.iterations - warmup))
        left = 1.0 - done if self.decay == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
        return self.minimum_share + (1.0 - self.minimum_share) * left
