"""Rewards streamed behind generation: what of their calls is left when the last response has ended."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.rule import streamed_seconds


def played(call_seconds: float, ends: list[float], workers: int) -> float:
    """Return the same by playing the calls one by one."""
    free = [0.0] * workers
    for end in sorted(ends):
        heapq.heapreplace(free, max(end, free[0]) + call_seconds)
    return max(free) - max(ends)


@given(st.floats(0.001, 5), st.lists(st.floats(0, 20), min_size=1, max_size=40), st.integers(1, 9))
def test_the_last_call_ends_as_if_calls_were_played_one_by_one(call, ends, workers):
    found = streamed_seconds(call, np.array(ends), workers)
    assert found == pytest.approx(played(call, ends, workers))
    assert found >= call
