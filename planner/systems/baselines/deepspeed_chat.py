"""DeepSpeed-Chat 0.14: all models on all GPUs, ZeRO stage 3, a hybrid engine that generates with TP.

Sources: Yao et al. 2023, DeepSpeed-Chat, arXiv:2308.01320, sections 3 and 4; Sheng et al. 2025,
HybridFlow, table 1 and section 8.1 (colocated, ZeRO for training, TP for generation). Tuned as its
training scripts let one: the size of tensor parallelism in generation (`--inference_tp_size`) and the
micro-batches of inference and training. No model is offloaded. The batch of a generation
(`--per_device_generation_batch_size`) and the largest micro-batch are 4 on each GPU for 7B, the one
published setting that runs without offload (OpenRLHF's benchmark, table openrlhf_a800).
"""

from collections.abc import Iterator
from dataclasses import replace

from rlplan.dataflow import Task
from rlplan.job import Job
from rlplan.plan import TaskPlan
from rlplan.planner.systems.system_plans import (
    SystemOption,
    batch_by_weights,
    best_of,
    choices_of,
    local_batch,
    micro_batches,
    one_pool,
    splits,
)
from rlplan.profiles.facts import Facts
from rlplan.results.accuracy import SystemForecast

ABOUT = (
    "all models on all GPUs, trained by ZeRO stage 3, generation in DeepSpeed's hybrid engine with "
    "tensor parallelism, static batches, weights gathered over all GPUs"
)
TRAIN = "deepspeed-zero3"
PINNED, GATHERING = "deepspeed-hybrid", "deepspeed-hybrid-gathering"
BATCH_OF_7B = 4  # sequences of one generation batch on each GPU
MOST_MICRO_BATCH = 4


def best_plan(job: Job, facts: Facts) -> SystemForecast:
    """Return its best plan, or why none fits."""
    return best_of("deepspeed-chat", ABOUT, job, facts, _offers(job))


def _offers(job: Job) -> Iterator[SystemOption]:
    pools = one_pool(job)
    pool, gpus = pools[0].name, pools[0].gpus

    def layouts(task: Task) -> Iterator[TaskPlan]:
        if task.kind == "generate":
            yield from _generations(job, task, pool, gpus)
            return
        sharded = TaskPlan(
            pool=pool,
            dp=gpus,
            engine=TRAIN,
            zero=3,
            recompute="full" if task.kind == "train" else "none",
        )
        yield from micro_batches(job, task, sharded, MOST_MICRO_BATCH)

    yield SystemOption(pools, choices_of(job, layouts), "all-gather")


def _generations(job: Job, task: Task, pool: str, gpus: int) -> Iterator[TaskPlan]:
    """Yield generation by groups of GPUs, the largest groups and smallest batches first."""
    gathering = TaskPlan(pool=pool, dp=gpus, engine=GATHERING)
    yield from _batches(job, task, gathering)
    for tp, _, dp in sorted(splits(job, task, gpus, most_pp=1), reverse=True):
        yield from _batches(job, task, TaskPlan(pool=pool, tp=tp, dp=dp, engine=PINNED))


def _batches(job: Job, task: Task, layout: TaskPlan) -> Iterator[TaskPlan]:
    local = local_batch(job, task, layout.dp)
    if local:
        together = batch_by_weights(BATCH_OF_7B, job, task) * layout.tp
        yield replace(layout, max_running=min(local, together))
