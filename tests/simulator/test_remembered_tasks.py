"""Placed tasks are remembered from plan to plan; what plans are forecast does not depend on it."""

from dataclasses import replace

import pytest

from rlplan.job import NO_SPECS
from rlplan.planner.answers.fitting import FitRequest
from rlplan.planner.exact.first_plans import plan_on_all_gpus
from rlplan.profiles.facts import load_facts
from rlplan.simulator import stages
from rlplan.simulator.placed import PlacedPlan, placed_task
from rlplan.simulator.simulate import simulate


@pytest.fixture(scope="module")
def compared():
    """Return two plans that differ in one task, and their facts."""
    job = FitRequest(algorithm="grpo", model="tiny", gpu="cpu", gpus=2).job()
    facts = load_facts(job)
    plan = plan_on_all_gpus(job, facts, NO_SPECS)
    update = plan.tasks["actor.update"]
    changed = replace(update, micro_batch=1 if update.micro_batch > 1 else 2)
    return plan, replace(plan, tasks=plan.tasks.with_item("actor.update", changed)), facts


def test_a_forecast_is_the_same_whatever_was_forecast_before(compared):
    plan, other, facts = compared
    remembered = simulate(other, facts), simulate(plan, facts)
    placed_task.cache_clear()
    stages._costs.clear()
    stages._memories.clear()
    assert (simulate(other, facts), simulate(plan, facts)) == remembered
    assert remembered[0] != remembered[1]


def test_plans_share_the_tasks_that_they_have_alike(compared):
    plan, other, facts = compared
    one, two = PlacedPlan(plan, facts).tasks, PlacedPlan(other, facts).tasks
    alike = {name for name in one if one[name] is two[name]}
    assert alike == set(one) - {"actor.update"}
