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


# Passes of models come in rounds: what disturbs the machine for a second then disturbs one round of
# a point and not the point, and between two rounds other models fill the caches, as in a job.
ROUNDS: Final = 8
ROUND_BUDGET_SECONDS: Final = 0.03
MOST_ROUND_REPEATS: Final = 3
# Beyond it a second repeat costs more than it tells: caches that were full of another model's data
# slow no more than the first milliseconds.
LONG_PASS_SECONDS: Final = 0.2


def rounds_of(rounds: int, typical_seconds: float) -> int:
    """Return of how many rounds a pass that takes so long is in: of half of them where it is long.

    What disturbs the machine for a moment is a smaller part of it.
    """
    return rounds if typical_seconds < LONG_PASS_SECONDS else max(1, rounds // 2)


def fewest_of_round(typical_seconds: float) -> int:
    """Return the repeats that a round has at least, of a pass that takes so long."""
    return 1 if typical_seconds >= LONG_PASS_SECONDS else 2


def measure_round(
    measure: Callable[[int], tuple[float, ...]], known: tuple[float, ...]
) -> tuple[float, ...]:
    """Return the seconds of a point's repeats with one more round: 2 or 3, or 1 of a long pass.

    Args:
        measure: Returns the seconds of as many repeats as it is asked for.
        known: Of earlier rounds.
    """
    typical_seconds = statistics.median(known) if known else ROUND_BUDGET_SECONDS
    repeats = int(ROUND_BUDGET_SECONDS / max(typical_seconds, 1e-6))
    return known + measure(min(max(repeats, fewest_of_round(typical_seconds)), MOST_ROUND_REPEATS))
