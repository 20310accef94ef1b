"""Experts that are computed one by one: turns of the host, gradients of slices, all experts on all tokens."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import MissingFactError
from rlplan.files.frozen import FrozenDict
from rlplan.models import Batch
from rlplan.parts import expert_parameters
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_engine, load_model
from rlplan.simulator.costs.pricing import HOST_SPREAD, pass_seconds
from rlplan.simulator.costs.setting import setting_of
from rlplan.simulator.placed import PlacedTask
from rlplan.simulator.stages import task_cost, task_memory
from rlplan.trainers import TrainerOptions
from tests.simulator.cost_jobs import PPO, facts_of, job_of, site_of

MODULES, STACKED = "qwen3-30b-a3b", "qwen3-vl-30b-a3b"
EXPERTS, TURN = 128, load_engine("fsdp2-hf").expert_loop.turn_seconds
SHARDED = TaskPlan(pool="p0", engine="fsdp2-hf", dp=8, zero=3, micro_batch=1, recompute="full")
# So many tokens that every expert is reached.
MANY = Batch(sequences=1, tokens=8192, sequence_tokens=8192, head_tokens=8192)


def placed(model=MODULES, task="actor.update", experts="one by one", layout=SHARDED):
    job = job_of(model=model, nodes=1, prompt_tokens=512, response_tokens=512)
    roles = {role: TrainerOptions(experts=experts) for role in ("actor", "reference")}
    job = replace(job, trainers=FrozenDict(roles))
    return PlacedTask(PPO[task], layout, site_of(job, 8), job, facts_of(job))


def layer(task, direction):
    return pass_seconds(setting_of(task), task.computed_model, "layer", MANY, direction)


@pytest.mark.parametrize(("direction", "products"), [("forward", 1), ("full", 1), ("backward", 2)])
def test_a_layer_takes_a_turn_of_the_host_for_every_expert_that_is_reached(direction, products):
    loop = layer(placed(), direction).compute.seconds
    launches = products * EXPERTS * TURN
    engine = load_engine("fsdp2-hf")
    kernels = engine.layer_launch_seconds * 2 * products
    gathers = engine.unit_gather_seconds + engine.unit_reduce_seconds
    assert launches < loop < launches + kernels + gathers


def test_what_the_host_launches_is_known_to_a_half():
    compute = layer(placed(), "forward").compute
    assert compute.spread_seconds == pytest.approx(compute.seconds * HOST_SPREAD)


def test_what_recomputes_no_products_takes_no_turns():
    assert layer(placed(), "selective") == layer(placed(experts="grouped"), "selective")


def test_gradients_of_slices_move_all_experts_for_each_of_them():
    moved = EXPERTS * 4 * 2 * expert_parameters(load_model(STACKED))
    task = placed(STACKED)
    slower = task.engine.kernels_of(task.device.sheet).elementwise_rate
    seconds = task.device.memory_bound(moved).seconds / slower
    grouped = layer(placed(STACKED, experts="grouped"), "backward").compute.seconds
    assert layer(task, "backward").compute.seconds == pytest.approx(grouped + seconds, rel=0.01)
    assert seconds > 2 * EXPERTS * TURN  # the device's, longer than all turns of the host


def test_passes_without_gradients_compute_all_experts_on_all_tokens_where_they_are_one_tensor():
    all_experts, reached = (
        placed(model, task="reference.compute_log_prob") for model in (STACKED, MODULES)
    )
    assert all_experts.computed_model.experts_per_token == EXPERTS
    assert reached.computed_model.experts_per_token == 8
    flops = 2 * 8192 * expert_parameters(load_model(STACKED))
    peak = all_experts.device.sheet.peak_flops_per_second["bf16"]
    assert layer(all_experts, "forward").compute.seconds > flops / peak
    held, usual = (sum(task_memory(task).transient.values()) for task in (all_experts, reached))
    repeated = (EXPERTS - 8) * 1024 * load_model(STACKED).hidden_size * 2  # hidden states in bf16
    assert held - usual > repeated


def test_a_trainer_that_never_does_so_is_refused():
    task = placed(layout=replace(SHARDED, engine="megatron-core-2025", zero=1))
    with pytest.raises(MissingFactError, match=r"trainers\.actor\.experts"):
        setting_of(task)


@given(
    st.sampled_from([MODULES, STACKED, "qwen2.5-7b"]),
    st.sampled_from(["actor.update", "reference.compute_log_prob"]),
)
def test_one_by_one_is_never_quicker_and_dense_models_do_not_care(model, name):
    loop, grouped = (
        task_cost(placed(model, task=name, experts=each)).total.seconds
        for each in ("one by one", "grouped")
    )
    assert loop == grouped if model == "qwen2.5-7b" else loop > grouped
