"""Bounds on generation in episodes: no play is faster, with any cache, host and environment."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlplan.planner.exact.generation_bounds import BoundedSettings, episode_loads, least_seconds
from rlplan.profiles.facts import load_facts
from rlplan.simulator.generation.generating import steps_of
from rlplan.simulator.memory.task_memory import least_kv_bytes, useful_kv_bytes
from rlplan.simulator.stages import task_cost
from rlplan.workload import Environment, LognormalSeconds, Uniform
from tests.cases import first
from tests.planner.test_generation_bounds import DENSE, drawn_case
from tests.simulator.placing import generating

CASES = 5


def drawn_environment(generator):
    tools = LognormalSeconds(mean=generator.choice([0.1, 2.0]), std=3.0, max=60.0)
    return Environment(
        name="drawn",
        turns=generator.choice([3, Uniform(low=1, high=6)]),
        observation_tokens=generator.choice([20, 300]),
        step_seconds=generator.choice([0.5, tools]),
        reset_seconds=generator.choice([0.0, 3.0]),
        workers=generator.choice([None, 8]),
        instances=generator.choice([None, 32]),
        episode_limit_seconds=generator.choice([None, 20.0]),
    )


def ratio_of(generator, engine):
    """Return the largest bound of drawn episodes over what they take."""
    job, layout, site = drawn_case(generator, engine, DENSE)
    work = replace(job.workload, environments=(drawn_environment(generator),))
    cluster = (replace(job.cluster[0], cpu_cores=32),)
    job = replace(job, workload=work, cluster=cluster)
    placed = generating(layout, site, job, load_facts(job))
    least, useful = least_kv_bytes(placed), useful_kv_bytes(placed)
    cache = least * (useful / least) ** generator.choice([0.3, 0.6, 1.0])
    steps: Any = steps_of(placed)
    running = min(layout.max_running, work.sequences // layout.dp)
    blocks = np.array([cache // placed.block_bytes])
    bounds = [
        least_seconds(steps, one.load, one.asked(BoundedSettings(running)), blocks)[0]
        + one.outside_seconds
        for one in episode_loads(job, placed.engine, layout.dp)
    ]
    return max(bounds) / task_cost(placed, cache).total.seconds


@pytest.mark.parametrize("engine", first(1, ["vllm", "vllm-0.3", "vllm-0.11", "tensorrt-llm-1"]))
def test_no_episodes_are_played_faster_than_their_bound(engine):
    generator = random.Random(engine)
    ratios = [ratio_of(generator, engine) for _ in range(CASES)]
    assert max(ratios) <= 1
    assert max(ratios) > 0.3
