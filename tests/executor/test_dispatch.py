"""When tasks run: beside each other where they can, and in the plan's order where they share a pool."""

import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from rlplan.executor.workers.stages import infer as infer_stage
from tests.executor.plans import ALL_ROLES, make_job, make_plan

pytestmark = pytest.mark.ray

PREPARATION = ("critic.compute_values", "reference.compute_log_prob", "reward.compute_reward")
PATIENCE_SECONDS = 60.0
# A module whose function tests replace.
STAGE: Any = infer_stage
STANDALONE = {role: (1, (role,)) for role in ALL_ROLES}


@pytest.fixture
def meeting(worker_pool, tmp_path):
    """Let no model's inference begin before that of as many others as there are has."""
    count = len(STANDALONE)
    worker_pool.on_ranks(count, partial(begin_together, tmp_path, len(PREPARATION)))
    yield
    worker_pool.on_ranks(count, begin_alone)


def begin_together(folder, parties, rank, _ranks):
    alone = STAGE.infer

    def infer(*arguments, **named):
        (folder / f"{rank}-{time.time_ns()}").touch()
        count = len(list(folder.iterdir()))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(list(folder.iterdir())) < -(-count // parties) * parties:
            assert time.monotonic() < deadline, "the other tasks have not begun"
            time.sleep(0.001)
        return alone(*arguments, **named)

    STAGE.infer, STAGE.infer_alone = infer, alone


def begin_alone(_rank, _ranks):
    STAGE.infer = STAGE.infer_alone


@pytest.mark.full
def test_preparation_tasks_of_a_split_placement_run_at_the_same_time(worker_pool, meeting):
    # Each waits for the other two: one after the other, none of them would end.
    done = worker_pool.carry_out(make_plan(make_job(), STANDALONE))
    for record in done.finished:
        spans = {span.name: span for span in record.spans}
        latest_start = max(spans[name].start_seconds for name in PREPARATION)
        assert latest_start <= min(spans[name].end_seconds for name in PREPARATION)


@pytest.mark.parametrize("turned", [False, True], ids=["as they come", "the other way round"])
def test_tasks_of_a_shared_pool_run_one_after_the_other_in_the_plans_order(worker_pool, turned):
    plan = make_plan(make_job(), {"p0": (1, ALL_ROLES)})
    generate, *preparation = (name for name in plan.order["p0"] if not name.endswith("update"))
    updates = [name for name in plan.order["p0"] if name.endswith("update")]
    if turned:
        preparation, updates = preparation[::-1], updates[::-1]
    order = (generate, *preparation, *updates)
    assert set(PREPARATION) <= set(order)
    done = worker_pool.run(replace(plan, order=plan.order.with_item("p0", order)))
    for record in done.finished:
        spans = sorted(
            (span for span in record.spans if span.pool == "p0" and span.activity == "task"),
            key=lambda span: span.start_seconds,
        )
        assert tuple(span.name for span in spans) == order
        for before, after in pairwise(spans):
            assert before.end_seconds <= after.start_seconds
