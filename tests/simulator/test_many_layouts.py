import random
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup
from rlplan.models import Adapter
from rlplan.plan import TaskPlan
from rlplan.profiles.analytic.ordered import row_keys
from rlplan.profiles.catalog import load_model
from rlplan.profiles.facts import load_facts
from rlplan.simulator.columns import columns_of
from rlplan.simulator.costs.layouts import layout_seconds
from rlplan.simulator.memory.task_memory import layout_memory
from rlplan.simulator.placed import PlacedTask, PlacedTasks, site_at
from rlplan.simulator.stages import task_cost, task_memory
from rlplan.trainers import TrainerOptions
from rlplan.workload import Lognormal, Workload
from tests.cases import draws

A100 = "a100-80gb-sxm"
ENGINES = (
    "megatron-core",
    "fsdp2",
    "torch-tp-dp",
    "torch-3d",
    "deepspeed-zero3",
    "real",
    "megatron-2022",
)
MODELS = ("llama-2-7b", "qwen2.5-1.5b", "mixtral-8x7b", "qwen3-30b-a3b")
ROWS = draws(15, 60)
ROUNDING = 1e-9


def drawn_job(generator, algorithm, engine):
    model = load_model(generator.choice(MODELS))
    roles = ("actor", "critic", "reference", "reward")
    lengths = generator.choice([700, Lognormal(mean=500, std=400, max=2048)])
    return Job(
        algorithm=algorithm,
        models=FrozenDict(dict.fromkeys(roles, replace(model, max_positions=10**6))),
        workload=Workload(
            prompts=64,
            samples_per_prompt=generator.choice([1, 4]),
            prompt_tokens=500,
            response_tokens=lengths,
            updates=2,
        ),
        cluster=(NodeGroup(gpu=A100, gpus_per_node=8, nodes=4, inter_node_gbps=200.0),),
        engines=Engines(train=engine, generate="vllm"),
        precision="bf16",
    )


def drawn_layout(generator, model, engine, trains):
    def one_of(*values):
        return generator.choice(values)

    dp = one_of(1, 2, 4, 8)
    return TaskPlan(
        pool="",
        engine=engine,
        tp=one_of(1, 2, 4),
        pp=one_of(1, 2, 4),
        dp=dp,
        cp=one_of(1, 1, 2),
        ep=generator.choice([size for size in (1, 2, 4, 8) if dp % size == 0])
        if model.num_experts
        else 1,
        zero=one_of(0, 1, 2, 3) if trains else one_of(0, 3),
        micro_batch=one_of(1, 2, 4),
        chunks=one_of(1, 2) if trains else 1,
        recompute=one_of("none", "selective", "alternate", "full") if trains else "none",
        offload=one_of(True, False),
    )


CASES = list(product(["ppo", "remax", "safe-rlhf"], ENGINES))


@pytest.mark.full
@pytest.mark.parametrize(("algorithm", "engine"), CASES)
def test_many_layouts_cost_what_each_costs_by_itself(engine, algorithm):
    generator = random.Random(f"{engine} {algorithm}")
    job = drawn_job(generator, algorithm, engine)
    facts, site = load_facts(job), site_at(job, A100, 0, 32)
    for task in tasks_of(load_algorithm(algorithm), job):
        if task.kind not in ("infer", "train"):
            continue
        model, trains = job.architecture(task.role), task.kind == "train"
        layouts = [drawn_layout(generator, model, engine, trains) for _ in range(ROWS)]
        columns = columns_of(engine, layouts)
        table = PlacedTasks(columns, PlacedTask(task, layouts[0], site, job, facts))
        seconds, sizes = layout_seconds(table), layout_memory(table)
        for row, layout in enumerate(layouts):
            assert columns.layout(row) == layout
            alone = PlacedTask(task, layout, site, job, facts)
            assert seconds[row] == pytest.approx(task_cost(alone).total.seconds, rel=ROUNDING)
            memory = task_memory(alone)
            assert sizes.row(row) == memory
            assert sizes.resident_bytes[row] == memory.resident_bytes
            assert sizes.transient_bytes[row] == memory.transient_bytes


# What tells two roles apart whose tasks are alike else, one at a time.
UNLIKE: dict[str, dict[str, Any]] = {
    "as its trainer has it": {
        "trainers": FrozenDict(reward=TrainerOptions(shares_prompts=True, fills_budgets=True))
    },
    "adapters": {"adapters": FrozenDict(actor=Adapter(), critic=Adapter())},
    "another model": {},
    "nothing": {},
}


@pytest.mark.parametrize("name", UNLIKE)
def test_roles_share_what_passes_take_only_where_their_tasks_are_alike(name):
    generator = random.Random(name)
    job = replace(drawn_job(generator, "ppo", "megatron-core"), **UNLIKE[name])
    job = replace(job, workload=replace(job.workload, samples_per_prompt=4))
    if name == "another model":
        smaller = job.models.with_item("reward", load_model("qwen2.5-0.5b"))
        job = replace(job, models=smaller)
    facts, site = load_facts(job), site_at(job, A100, 0, 32)
    layouts = [
        TaskPlan(pool="", engine="megatron-core", tp=2, dp=dp, pp=16 // dp, micro_batch=size)
        for dp in (2, 4, 8)
        for size in (1, 2, 4)
    ]
    columns = columns_of("megatron-core", layouts)
    kept = {task.name: task for task in tasks_of(load_algorithm("ppo"), job)}
    both = (kept["critic.compute_values"], kept["reward.compute_reward"])
    asked = {PlacedTask(task, layouts[0], site, job, facts).passes for task in both}
    assert len(asked) == (1 if name == "nothing" else 2)
    for task in both:
        table = PlacedTasks(columns, PlacedTask(task, layouts[0], site, job, facts))
        alone = [PlacedTask(task, layout, site, job, facts) for layout in layouts]
        expected = [task_cost(each).total.seconds for each in alone]
        assert layout_seconds(table) == pytest.approx(expected, rel=ROUNDING)


@pytest.mark.parametrize("engine", ["fsdp2-hf", "megatron-core"])
def test_the_only_row_costs_what_it_does_by_itself_wherever_the_task_was_placed(engine):
    """Of many layouts one may fit: the task was placed in the first of all."""
    generator = random.Random(engine)
    job = drawn_job(generator, "ppo", engine)
    facts, site = load_facts(job), site_at(job, A100, 0, 32)
    task = next(
        task for task in tasks_of(load_algorithm("ppo"), job) if task.name == "actor.update"
    )
    model = job.architecture(task.role)
    for _ in range(4):
        layout = drawn_layout(generator, model, engine, trains=True)
        alone = PlacedTask(task, layout, site, job, facts)
        elsewhere = PlacedTask(task, replace(layout, dp=32 * layout.dp), site, job, facts)
        table = PlacedTasks(columns_of(engine, [layout]), elsewhere)
        (seconds,) = layout_seconds(table)
        assert seconds == pytest.approx(task_cost(alone).total.seconds, rel=ROUNDING)
        assert layout_memory(table).row(0) == task_memory(alone)


@given(
    st.integers(1, 6).flatmap(
        lambda columns: st.lists(
            st.lists(
                st.sampled_from([0, 1, 2, 3, 2**31, 2**32, 2**33, 2**40, 2**62]),
                min_size=columns,
                max_size=columns,
            ),
            min_size=1,
            max_size=12,
        )
    )
)
def test_rows_have_one_key_where_they_are_alike_and_no_other_row_has_it(rows):
    """Budgets of tokens and numbers of sequences are as large as a user writes them: their digits together wrap 64 bits."""
    table = np.array(rows, dtype=np.int64)
    keys = row_keys(list(table.T), len(rows)).tolist()
    for one, key in zip(rows, keys, strict=True):
        for other, its in zip(rows, keys, strict=True):
            assert (key == its) == (one == other)


def test_digits_that_wrap_are_told_apart():
    """By digits alone one row is 2^32 (2^32 + 1), the other 2^32: alike in their last 64 bits."""
    columns = [np.array([2**32, 0]), np.array([0, 2**32])]
    wrapped = columns[0] * (2**32 + 1) + columns[1]
    assert wrapped[0] == wrapped[1]
    first, second = row_keys(columns, 2).tolist()
    assert first != second
