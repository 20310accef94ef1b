"""Rewards streamed behind generation: what of their calls is left when the last response has ended."""

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.profiles.facts import load_facts
from rlplan.results.forecast import Forecast
from rlplan.simulator.simulate import simulate
from rlplan.simulator.stages.rule import streamed_seconds
from tests.simulator.test_frameworks import plan_of

RULE = "rule.compute_reward"
WORKERS, SEQUENCES = 8, 512


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


def forecast(call_seconds: float, *, streamed: bool) -> Forecast:
    """Return the forecast of a GRPO step with so slow a rule, on eight workers."""
    plan = plan_of("rlplan")
    rewards = replace(plan.job.rewards, function_seconds_per_sample=call_seconds, streamed=streamed)
    plan = replace(plan, job=replace(plan.job, rewards=rewards))
    return simulate(plan, load_facts(plan.job))


def rule_seconds(found: Forecast) -> float:
    (cost,) = (cost for cost in found.costs if cost.name == RULE)
    assert sum(cost.parts.values()) == pytest.approx(cost.seconds)
    return cost.seconds


def test_a_short_rule_is_a_call_behind_the_last_response():
    before, behind = forecast(0.01, streamed=False), forecast(0.01, streamed=True)
    saved = rule_seconds(before) - rule_seconds(behind)
    assert saved == pytest.approx(0.01 * (SEQUENCES / WORKERS - 1))
    assert behind.iteration_seconds == pytest.approx(before.iteration_seconds - saved)


def test_workers_that_never_rest_end_a_generation_earlier_than_after_it():
    """512 calls of 2 s on 8 workers are 128 s, all but the first few while others still generate."""
    before, behind = forecast(2.0, streamed=False), forecast(2.0, streamed=True)
    generation = before.stage_seconds["generation"]
    assert rule_seconds(before) == pytest.approx(128, rel=0.01)
    saved = rule_seconds(before) - rule_seconds(behind)
    assert 0.5 * generation < saved < generation
    assert behind.iteration_seconds < before.iteration_seconds
