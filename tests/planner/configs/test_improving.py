"""Better settings: what is spared of playing streamed plans changes no answer."""

import pytest

from planner.configs import improving
from planner.configs.checking import check_config
from planner.configs.importing import ImportOptions
from planner.configs.improving import improvements
from simulator.simulate import simulate
from tests.planner.configs.test_importing import VERL
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
    changes = list(improving._fitting(checked.plan, checked.facts, None))[:3]
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


MEGATRON = ("model_engine=megatron", f"{A}.megatron.tensor_model_parallel_size=2")
RECOMPUTES = f"{A}.megatron.override_transformer_config.recompute_granularity"


@pytest.mark.parametrize(
    ("more", "said", "never"),
    [
        # FSDP has no tensor parallelism and computes whole layers again, or none.
        (
            (),
            {
                "actor_rollout_ref.model.enable_gradient_checkpointing=false",
                f"{A}.fsdp_config.param_offload=true, {A}.fsdp_config.optimizer_offload=true",
                f"{A}.ulysses_sequence_parallel_size=",
            },
            "tensor_model_parallel_size=2, dp",
        ),
        (
            MEGATRON,
            {f"{RECOMPUTES}=full", f"{A}.megatron.param_offload=true"},
            "enable_gradient_checkpointing",
        ),
    ],
)
def test_changes_are_said_in_keys_that_the_framework_has(more, said, never):
    checked = check_config("verl", [*VERL, f"{A}.ulysses_sequence_parallel_size=2", *more], OPTIONS)
    changes = (*improving._of_generation(checked.plan), *improving._of_training(checked.plan))
    known = [improving._words(each, checked.imported) for each in changes]
    words = [", ".join(each) for each in known if each]
    assert not any(word.startswith(("actor.update", "actor.generate")) for word in words)
    for each in said:
        assert any(each in word for word in words), each
    assert not any(never in word for word in words)
