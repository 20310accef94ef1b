"""Better settings: what is spared of playing streamed plans changes no answer."""

import pytest

from planner.configs import improving
from planner.configs.checking import check_config
from planner.configs.importing import ImportOptions
from planner.configs.improving import improvements
from simulator.simulate import simulate
from tests.planner.configs.test_rules import ASYNC, ASYNC_START, A, R

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=60, environment={"HOME": "~"})
# Of short responses on many GPUs, so that generation waits for training.
WAITING = (
    "rollout.nnodes=4",
    "data.max_response_length=512",
    f"{R}.n=2",
    f"{A}.ppo_mini_batch_size=64",
)


@pytest.fixture(scope="module")
def checked():
    return check_config("verl", [*ASYNC_START, *ASYNC, *WAITING], OPTIONS)


def test_no_streamed_iteration_is_shorter_than_it_is_said_to_be_at_least(checked):
    changes = list(improving._fitting(checked.plan, checked.facts))[:3]
    assert checked.plan.mode == "async"
    for _, changed in changes:
        least_seconds = improving._least_seconds(changed, checked.facts)
        assert 0 < least_seconds <= simulate(changed, checked.facts).iteration_seconds * (1 + 1e-9)


def test_settings_are_better_in_the_same_order_with_fewer_plans_played(checked, monkeypatch):
    played = []
    monkeypatch.setattr(
        improving, "simulate", lambda plan, facts: played.append(plan) or simulate(plan, facts)
    )
    given = (checked.plan, checked.facts, checked.forecast, None)
    spared, few = improvements(*given), len(played)
    monkeypatch.setattr(improving, "_least_seconds", lambda *_: 0.0)
    assert improvements(*given) == spared
    assert few < len(played) - few
