"""verl (HybridFlow as it is released): all models on all GPUs, Megatron training, vLLM in between.

Sources: Sheng et al. 2025, HybridFlow (EuroSys), sections 5 and 7; verl's documentation of Megatron
workers. Tuned: tensor and pipeline parallelism of training, tensor parallelism and running sequences
of generation, micro-batches, recomputation, and whether optimizer states and the models that only
infer are kept in host memory (`optimizer_offload`, `param_offload`).
"""

from collections.abc import Iterator
from dataclasses import replace

from rlplan.dataflow import Task
from rlplan.job import Job
from rlplan.plan import ResourcePool, TaskPlan
from rlplan.planner.systems.system_plans import (
    SystemOption,
    best_of,
    choices_of,
    job_tasks,
    local_batch,
    micro_batches,
    one_pool,
    splits,
    transition_on_one_pool,
)
from rlplan.profiles.facts import Facts
from rlplan.results.accuracy import SystemForecast

ABOUT = (
    "all models on all GPUs, Megatron training, vLLM on the same GPUs in a layout of its own, weights "
    "brought there inside micro-data-parallel groups"
)
TRAIN, GENERATE = "megatron-core", "vllm"
MOST_MICRO_BATCH = 16
MOST_PP = 8
RUNNING_LIMITS = (64, 256, 1024)


def best_plan(job: Job, facts: Facts) -> SystemForecast:
    """Return its best plan, or why none fits."""
    return best_of("verl", ABOUT, job, facts, _offers(job))


def _offers(job: Job) -> Iterator[SystemOption]:
    pools = one_pool(job)
    generate = next(task for task in job_tasks(job) if task.kind == "generate")
    for sizes in splits(job, generate, pools[0].gpus, most_pp=MOST_PP):
        for tp, _, dp in splits(job, generate, pools[0].gpus, most_pp=1):
            if tp > sizes[0]:
                continue
            generation = TaskPlan(pool=pools[0].name, tp=tp, dp=dp, engine=GENERATE)
            for offload in (False, True):
                yield _offer(job, pools, sizes, generation, offload=offload)


def _offer(
    job: Job,
    pools: tuple[ResourcePool, ...],
    sizes: tuple[int, int, int],
    generation: TaskPlan,
    *,
    offload: bool,
) -> SystemOption:
    tp, pp, dp = sizes
    train = TaskPlan(pool=pools[0].name, tp=tp, pp=pp, dp=dp, engine=TRAIN)
    trained = {task.role for task in job_tasks(job) if task.kind == "train"}

    def layouts(task: Task) -> Iterator[TaskPlan]:
        if task.kind == "generate":
            local = local_batch(job, task, generation.dp)
            limits = (limit for limit in RUNNING_LIMITS if limit < local)
            for running in (*limits, *([local] if local else [])):
                yield replace(generation, max_running=min(running, RUNNING_LIMITS[-1]))
        elif task.kind == "infer":
            layout = replace(train, offload=offload and task.role not in trained)
            yield from micro_batches(job, task, layout, MOST_MICRO_BATCH)
        else:
            for recompute in ("full", "none"):
                layout = replace(
                    train, offload=offload, recompute=recompute, zero=1 if dp > 1 else 0
                )
                yield from micro_batches(job, task, layout, MOST_MICRO_BATCH)

    return SystemOption(pools, choices_of(job, layouts), transition_on_one_pool(train, generation))
