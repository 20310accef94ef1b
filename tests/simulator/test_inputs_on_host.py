"""Inputs of layers that wait in host memory for the backward pass: what leaves the device, and what that takes."""

from dataclasses import replace

import pytest

from rlplan.job import NodeGroup
from rlplan.plan import TaskPlan
from rlplan.simulator.placed import PlacedTask, PlacedTasks, columns_of, site_at
from rlplan.simulator.stages import task_cost, task_memory
from rlplan.simulator.timeline.pool_memory import host_terms, inputs_away_bytes
from tests.simulator.cost_jobs import A100, PPO, facts_of, job_of

UPDATE, LAYERS = PPO["actor.update"], 32
# Of 64 sequences of an update in micro-batches of two, with 1,024 tokens each of 4,096 values of two bytes.
ROW_BYTES = 2 * 1024 * 4096 * 2
# In autocast, as the project's executor has it, hidden states between layers are in fp32.
WIDE_ROW_BYTES = 2 * ROW_BYTES
MICRO_BATCHES, UPDATES = 32, 2


def placed(recompute, device=A100, engine="torch-3d", **sizes):
    cluster = (NodeGroup(gpu=device, gpus_per_node=8, nodes=1, inter_node_gbps=200.0),)
    precision = "fp32" if device == "cpu" else "bf16"
    job = replace(job_of(nodes=1), cluster=cluster, precision=precision)
    layout = TaskPlan(pool="p0", engine=engine, recompute=recompute, micro_batch=2, **sizes)
    site = site_at(job, device, 0, layout.gpus)
    assert site is not None
    return PlacedTask(UPDATE, layout, site, job, facts_of(job))


def on_host(task):
    return host_terms([(task, task_memory(task))]).get("actor inputs of layers", 0)


def parts_of(task):
    return {name: part.seconds for name, part in task_cost(task).parts}


def test_inputs_that_wait_on_the_host_are_not_on_the_gpu_when_it_is_fullest():
    stays, leaves = placed("full"), placed("full-offload")
    held = [task_memory(task).transient["activations"] for task in (stays, leaves)]
    # That is in the loss, which has four rows of its own and needs no layer's input.
    assert held == [(LAYERS + 4) * WIDE_ROW_BYTES, 4 * WIDE_ROW_BYTES]
    assert [on_host(task) for task in (stays, leaves)] == [0, LAYERS * WIDE_ROW_BYTES]


def test_a_pipelines_first_stage_keeps_the_inputs_of_all_its_passes_in_flight():
    assert on_host(placed("full-offload", pp=4)) == 4 * (LAYERS // 4) * WIDE_ROW_BYTES


def test_a_table_of_layouts_has_each_ones_inputs():
    alone = [placed("full-offload"), placed("full"), placed("full-offload", pp=4), placed("none")]
    engine = alone[0].layout.engine
    table = PlacedTasks(columns_of(engine, [each.layout for each in alone]), alone[0])
    assert inputs_away_bytes(table).tolist() == [on_host(each) for each in alone]


def test_a_device_whose_memory_is_the_hosts_is_as_full_as_without():
    stays, leaves = placed("full", "cpu"), placed("full-offload", "cpu")
    assert task_memory(leaves) == task_memory(stays)
    assert parts_of(leaves) == parts_of(stays)
    assert on_host(leaves) == 0
    assert task_memory(stays).transient["activations"] > LAYERS * WIDE_ROW_BYTES


@pytest.mark.parametrize("engine", ["torch-3d", "prime-rl"])
def test_copies_take_time_where_no_kernel_runs_beside_them(engine):
    sizes = {"zero": 3, "dp": 2} if engine == "prime-rl" else {}
    stays, leaves = (
        parts_of(placed(mode, engine=engine, **sizes)) for mode in ("full", "full-offload")
    )
    device = placed("full").device
    ways = [device.copy(ROW_BYTES, way).seconds for way in ("device_to_host", "host_to_device")]
    copies = UPDATES * MICRO_BATCHES * LAYERS * sum(ways)
    waits = copies if engine == "torch-3d" else 0.0
    assert leaves["recompute"] - stays["recompute"] == pytest.approx(waits, rel=1e-6)
    assert copies > 0.1 * stays["recompute"]
    for name in stays.keys() - {"recompute", "uneven lengths"}:
        assert leaves[name] == stays[name]
