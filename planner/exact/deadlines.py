"""By which clock searches that are limited in time end: the clock on the wall, or what their process has computed.

A search beside other work that keeps cores busy gets a part of one. By the wall it would end with another plan, or with none, on another
day; by the seconds of a core that it takes it ends with the same one, later.
"""

import math
import time

_counts_core = False


def count_core_seconds() -> None:
    """Limit searches of this process by the seconds of a core that it takes, from now on."""
    global _counts_core  # noqa: PLW0603 -- of a process that does nothing but search
    _counts_core = True


def now_seconds() -> float:
    """Return the time that limits of searches are told in, in seconds from any moment on."""
    return time.process_time() if _counts_core else time.perf_counter()


def deadline_in(seconds: float | None) -> float:
    """Return when a search ends that may take so many seconds; None: whenever it has seen all."""
    return math.inf if seconds is None else now_seconds() + seconds


def is_past(deadline: float) -> bool:
    """Tell whether a moment that `deadline_in` has returned is over."""
    return now_seconds() > deadline
