"""A tool that computes nothing and lets its caller wait: an environment for `benchmarks/episodes.py`."""

import math
import random
import time

MEAN_SECONDS, STD_SECONDS, MAX_SECONDS = 0.24, 0.24, 2.0
OBSERVATION = "waited. "
# Of the logarithm of a lognormal with that mean and deviation.
VARIANCE = math.log(1 + (STD_SECONDS / MEAN_SECONDS) ** 2)


class WaitingTool:
    """Answer every response after a drawn time, and never reward it."""

    def reset(self, prompt: str, row: dict[str, object]) -> str:  # noqa: ARG002 -- it knows no prompts
        """Begin."""
        return ""

    def step(self, response: str) -> tuple[str, float, bool]:  # noqa: ARG002 -- it reads nothing
        """Wait."""
        mean = math.log(MEAN_SECONDS) - VARIANCE / 2
        time.sleep(min(MAX_SECONDS, random.lognormvariate(mean, math.sqrt(VARIANCE))))
        return OBSERVATION, 0.0, False
