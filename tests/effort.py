"""How much a computation does, in calls: a bound on effort that no other process can disturb."""

import cProfile
from collections.abc import Callable


def calls_of(run: Callable[[], object]) -> int:
    """Return how many functions a computation calls, Python's own included.

    Seconds are measured in `benchmarks/`; a million calls take about a tenth of one.
    """
    profile = cProfile.Profile()
    profile.runcall(run)
    return sum(entry.callcount for entry in profile.getstats())
