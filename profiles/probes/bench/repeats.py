"""How often to measure a point: a few times at least, more while that costs next to nothing."""

import statistics
from collections.abc import Callable
from typing import Final

FEWEST_REPEATS: Final = 3
MOST_REPEATS: Final = 15
POINT_BUDGET_SECONDS: Final = 0.2


def measure_within_budget(measure: Callable[[int], tuple[float, ...]]) -> tuple[float, ...]:
    """Return the seconds of each repeat of a point: 3 repeats, then up to 15 within 0.2 s.

    Args:
        measure: Returns the seconds of as many repeats as it is asked for.
    """
    first = measure(FEWEST_REPEATS)
    left_seconds = POINT_BUDGET_SECONDS - sum(first)
    typical_seconds = statistics.median(first)
    most = MOST_REPEATS - len(first)
    fitting = most if typical_seconds == 0 else min(most, int(left_seconds / typical_seconds))
    # Fewer would cost another warm-up and tell next to nothing.
    return first if fitting < FEWEST_REPEATS else first + measure(fitting)
