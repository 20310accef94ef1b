"""An optimizer's moments that are on the GPU for its step alone: what is fullest then, what the host holds, how often they are copied."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.files.frozen import FrozenDict
from rlplan.parts import num_parameters
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_model
from rlplan.simulator.costs.passes import train_parts
from rlplan.simulator.costs.taskcost import STATES_AWAY, STATES_BACK
from rlplan.simulator.memory.task_memory import layout_memory
from rlplan.simulator.placed import PlacedTask, PlacedTasks
from rlplan.simulator.stages import task_memory
from rlplan.simulator.timeline.pool_memory import host_terms, off_loaded_terms
from rlplan.trainers import TrainerOptions
from tests.simulator.cost_jobs import PPO, facts_of, job_of, site_of

PARAMETERS = num_parameters(load_model("qwen2.5-7b"))
STATES = "actor optimizer states"
PRIME = TaskPlan(pool="p0", engine="prime-rl", dp=1, zero=3, micro_batch=1, recompute="full", offload=True)  # fmt: skip
ROLL = TaskPlan(pool="p0", engine="megatron-core-2025", dp=1, zero=1, micro_batch=1, recompute="full", offload=True)  # fmt: skip
SHORT, LONG = {"prompt_tokens": 16, "response_tokens": 16}, {"prompt_tokens": 512, "response_tokens": 131072}  # fmt: skip


def placed(framework, layout, offloads=None, **workload):
    job = replace(job_of(model="qwen2.5-7b", nodes=1, **workload), framework=framework)
    job = replace(job, trainers=FrozenDict(actor=TrainerOptions(offloads=offloads)))
    return PlacedTask(PPO["actor.update"], layout, site_of(job, 8), job, facts_of(job))


def test_moments_are_there_in_the_step_where_passes_hold_less():
    """prime-rl steps weights in fp32: moments of 8 bytes, and 4 that the step makes."""
    task = placed("prime-rl", PRIME, ("optimizer",), **SHORT)
    memory = task_memory(task)
    assert memory.transient[STATES] == 8 * PARAMETERS
    assert memory.transient["optimizer step"] == 4 * PARAMETERS
    assert not memory.transient.get("activations")
    assert not memory.waiting
    assert host_terms([(task, memory)])[STATES] == 8 * PARAMETERS


def test_moments_are_in_host_memory_while_passes_hold_more():
    task = placed("prime-rl", replace(PRIME, dp=8), ("optimizer",), **LONG)
    memory = task_memory(task)
    assert STATES not in memory.transient
    assert "optimizer step" not in memory.transient
    assert memory.waiting[STATES] == 8 * -(-PARAMETERS // 8)
    assert host_terms([(task, memory)])[STATES] == memory.waiting[STATES]


def test_master_copies_come_before_the_passes():
    """ROLL brings Megatron's copies in fp32 with its weights, and 8 of 12 bytes for the step."""
    memory = task_memory(placed("roll-megatron", ROLL, **LONG))
    assert memory.transient[STATES] == 4 * PARAMETERS
    assert memory.waiting == {STATES: 8 * PARAMETERS}


@pytest.mark.parametrize("framework", ["verl-fsdp", "skyrl-fsdp", "slime", "roll-fsdp"])
def test_states_of_others_are_there_for_the_whole_update(framework):
    memory = task_memory(placed(framework, replace(PRIME, engine="fsdp2-hf"), **LONG))
    assert not memory.waiting
    assert (memory.transient | memory.resident)[STATES] == 8 * PARAMETERS


@given(st.integers(16, 40_000), st.sampled_from([1, 2, 4, 8]))
def test_the_peak_is_the_fuller_of_passes_and_step(tokens, dp):
    layout = replace(PRIME, dp=dp)
    workload = {"prompt_tokens": 16, "response_tokens": tokens}
    away = task_memory(placed("prime-rl", layout, ("optimizer",), **workload))
    stays = task_memory(placed("prime-rl", replace(layout, offload=False), **workload))
    moments = stays.resident[STATES]
    held = away.transient.get(STATES, 0) + away.waiting.get(STATES, 0)
    assert held == moments
    peak = away.resident_bytes + away.transient_bytes
    assert peak <= stays.resident_bytes + stays.transient_bytes
    assert peak >= stays.resident_bytes + stays.transient_bytes - moments


def test_a_search_counts_on_the_host_what_a_forecast_does():
    for framework, layout in (("prime-rl", PRIME), ("roll-megatron", ROLL)):
        task = placed(framework, layout, **LONG)
        names, table = off_loaded_terms(task), PlacedTasks.of(task)
        held = int(layout_memory(table).off_loaded_bytes(names)[0])
        found = host_terms([(task, task_memory(task))])
        assert held == sum(found[name] for name in names if name in found) > 0


def test_moments_are_copied_for_every_update_and_the_rest_once():
    def parts(framework, layout, updates, offloads=None):
        task = placed(framework, layout, offloads, updates=updates, **SHORT)
        found = train_parts(PlacedTasks.of(task))
        return [float(found[name].seconds[0]) for name in (STATES_BACK, STATES_AWAY)]

    once, four = (parts("prime-rl", PRIME, each, ("optimizer",)) for each in (1, 4))
    assert four == pytest.approx([4 * each for each in once], rel=1e-3)
    once, four = (parts("verl-fsdp", replace(PRIME, engine="fsdp2-hf"), each) for each in (1, 4))
    assert four == once
    once, four = (parts("roll-megatron", ROLL, each) for each in (1, 4))
    assert four[0] == pytest.approx(once[0] * (14 + 3 * 8) / 14, rel=1e-3)


def test_states_that_stay_are_not_copied():
    task = placed("verl-fsdp", replace(PRIME, engine="fsdp2-hf"), ("weights", "gradients"), **SHORT)
    whole = placed("verl-fsdp", replace(PRIME, engine="fsdp2-hf"), **SHORT)
    back, all_back = (
        float(train_parts(PlacedTasks.of(each))[STATES_BACK].seconds[0]) for each in (task, whole)
    )
    assert 0 < back < all_back / 2
