"""The heuristic of Megatron users: all models on all GPUs, TP = GPUs of a node, PP = nodes, DP 1.

Source: Mei et al. 2024, ReaL, arXiv:2406.14088, section 8.1, the baseline `Heuristic`: everything
colocated, one layout for all tasks, reference and reward models kept in host memory between uses.
Generation is one static batch, in as many micro-batches as pipeline stages.
"""

from collections.abc import Iterator
from dataclasses import replace

from rlplan.dataflow import Task
from rlplan.job import Job
from rlplan.plan import TaskPlan
from rlplan.planner.systems.system_plans import (
    SystemOption,
    best_of,
    choices_of,
    job_tasks,
    largest_group,
    local_batch,
    micro_batches,
    one_pool,
)
from rlplan.profiles.facts import Facts
from rlplan.results.accuracy import SystemForecast
from rlplan.rules.layouts import fits_model

ABOUT = (
    "all models on all GPUs in one layout: TP over the GPUs of a node, PP over the nodes, DP 1, "
    "generation as one static batch, reference and reward kept in host memory"
)
TRAIN, GENERATE = "real", "real-static"


def best_plan(job: Job, facts: Facts) -> SystemForecast:
    """Return its plan, or why it does not fit."""
    return best_of("megatron-heuristic", ABOUT, job, facts, _offers(job))


def _offers(job: Job) -> Iterator[SystemOption]:
    pools, group = one_pool(job), largest_group(job)
    sizes = TaskPlan(pool=pools[0].name, tp=group.gpus_per_node, pp=group.nodes, engine=TRAIN)
    trained = {task.role for task in job_tasks(job) if task.kind == "train"}

    def layouts(task: Task) -> Iterator[TaskPlan]:
        model, local = job.architecture(task.role), local_batch(job, task, 1)
        if not fits_model(sizes.tp, sizes.pp, model):
            return
        if task.kind == "generate":
            yield replace(sizes, engine=GENERATE, max_running=max(1, local))
            return
        trains = task.kind == "train"
        layout = replace(
            sizes,
            recompute="full" if trains else "none",
            offload=not trains and task.role not in trained,
        )
        yield from micro_batches(job, task, layout, max(1, local // sizes.pp))

    yield SystemOption(pools, choices_of(job, layouts), "none")
