"""What a host takes to plan attention for rows of widths that its process has not had."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.plan import TaskPlan
from rlplan.simulator.costs.rows import planned_seconds
from rlplan.simulator.placed import PlacedTask, PlacedTasks
from rlplan.simulator.workload import RUN_STEPS
from rlplan.workload import Uniform
from tests.simulator.cost_jobs import PPO, facts_of, job_of, site_of

PADDED = "megatron-core-2025-padded"
LAYOUT = TaskPlan(pool="p0", engine=PADDED, tp=2, dp=4, zero=1, micro_batch=1)
# So wide a spread that no width comes twice in a run.
UNLIKE = Uniform(low=1, high=10**9)


def planned(micro_batches, response_tokens=UNLIKE, task="actor.update", **layout):
    """Return the seconds of a pass or an update over so many micro-batches of a rank."""
    job = job_of(nodes=1, response_tokens=response_tokens)
    placed = PlacedTask(PPO[task], replace(LAYOUT, **layout), site_of(job, 8), job, facts_of(job))
    (found,) = planned_seconds(PlacedTasks.of(placed), np.array([micro_batches])).tolist()
    return found


@pytest.mark.parametrize(
    ("engine", "seconds"),
    [
        (PADDED, 64),  # a second, forwards and backwards
        (f"{PADDED}-to-rank", 2),
        (f"{PADDED}-to-limits", 0),
        ("megatron-core-2025-flash-padded", 0),
        ("megatron-core-2025", 0),
    ],
)
def test_each_new_width_is_planned_once_in_each_direction(engine, seconds):
    assert planned(32, engine=engine) == pytest.approx(seconds, rel=1e-3)
    passed = planned(32, engine=engine, task="critic.compute_values")
    assert passed == pytest.approx(seconds / 2, rel=1e-3)


@pytest.mark.parametrize("engine", [PADDED, f"{PADDED}-to-rank"])
def test_rows_of_one_width_are_planned_once_in_a_run(engine):
    assert planned(32, response_tokens=512, engine=engine) < 0.01


@given(st.integers(1, 512), st.integers(1, 4096))
def test_no_run_plans_more_widths_than_there_are_nor_a_pass_more_than_it_has_micro_batches(
    micro_batches, most
):
    found = planned(micro_batches, Uniform(low=1, high=most), "critic.compute_values", tp=1)
    assert 0 < found <= min(micro_batches, most / RUN_STEPS) * (1 + 1e-9)
    halved = planned(micro_batches, Uniform(low=1, high=most), "critic.compute_values", tp=2)
    assert halved <= found  # rows that TP divides have fewer widths
