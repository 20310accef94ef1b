"""OpenRLHF as it is now: a hybrid engine, all models and vLLM on all GPUs, vLLM asleep in training.

Sources: Hu et al. 2024, OpenRLHF, arXiv:2405.11143; its documentation of the hybrid engine
(`--colocate_all_models`, `--vllm_enable_sleep`, `--deepspeed_enable_sleep`). Tuned: vLLM's tensor
parallelism and running sequences, micro-batches, and whether Adam's states are kept in host memory
(`--adam_offload`).
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
)
from rlplan.profiles.facts import Facts
from rlplan.results.accuracy import SystemForecast

ABOUT = "all models on all GPUs, trained by ZeRO stage 3, vLLM on the same GPUs, asleep while others work"
TRAIN, GENERATE = "deepspeed-zero3", "vllm"
MOST_MICRO_BATCH = 16
RUNNING_LIMITS = (64, 256, 1024)


def best_plan(job: Job, facts: Facts) -> SystemForecast:
    """Return its best plan, or why none fits."""
    return best_of("openrlhf", ABOUT, job, facts, _offers(job))


def _offers(job: Job) -> Iterator[SystemOption]:
    pools = one_pool(job)
    generate = next(task for task in job_tasks(job) if task.kind == "generate")
    for tp, _, dp in splits(job, generate, pools[0].gpus, most_pp=1):
        for offload in (False, True):
            layout = TaskPlan(pool=pools[0].name, tp=tp, dp=dp, engine=GENERATE)
            yield _offer(job, pools, layout, offload=offload)


def _offer(
    job: Job, pools: tuple[ResourcePool, ...], generation: TaskPlan, *, offload: bool
) -> SystemOption:
    def layouts(task: Task) -> Iterator[TaskPlan]:
        if task.kind == "generate":
            local = local_batch(job, task, generation.dp)
            for running in sorted({*(min(limit, local) for limit in RUNNING_LIMITS)} - {0}):
                yield replace(generation, max_running=running)
            return
        trains = task.kind == "train"
        sharded = TaskPlan(
            pool=pools[0].name,
            dp=pools[0].gpus,
            engine=TRAIN,
            zero=3,
            recompute="full" if trains else "none",
            offload=offload and trains,
        )
        yield from micro_batches(job, task, sharded, MOST_MICRO_BATCH)

    return SystemOption(pools, choices_of(job, layouts), "all-gather")
