"""OpenRLHF 0.2 (early 2024): every model on GPUs of its own, ZeRO stage 3, vLLM beside them.

Sources: Hu et al. 2024, OpenRLHF, arXiv:2405.11143, section 3; Sheng et al. 2025, HybridFlow, table 1
and section 8.1 (standalone, two copies of the actor); `train_ppo_llama_ray.sh` and its 70B variant
among OpenRLHF's examples (micro-batches of up to 16 in rollout, 8 in training, gradient
checkpointing, for 7B). Tuned: the GPUs of every model and of vLLM, vLLM's tensor parallelism, the
micro-batches, and whether Adam steps on the hosts (`--adam_offload`), as its scripts for 34B (branch wuxibin/benchmark,
`train_ppo_llama_ray_34b.sh`) and 70B have it. An actor rank hands its rollout micro-batch to one vLLM engine and waits, so that there
are no more engines than actor ranks.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from rlplan.dataflow import Task
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import ResourcePool, TaskPlan
from rlplan.planner.placements.partitions import RoleSet, placed_roles
from rlplan.planner.systems.system_plans import (
    SystemOption,
    batch_by_width,
    best_of,
    choices_of,
    job_tasks,
    largest_group,
    local_batch,
    micro_batches,
    powers_up_to,
    splits,
)
from rlplan.profiles.facts import Facts
from rlplan.results.accuracy import SystemForecast

ABOUT = (
    "every model on GPUs of its own, trained by ZeRO stage 3, vLLM with a second copy of the actor on "
    "further GPUs, fed one micro-batch of every actor rank at a time"
)
TRAIN, GENERATE = "deepspeed-zero3", "vllm-0.3-calls"
ENGINES = "vllm"
SCORERS = frozenset({"reward", "cost"})  # one server can hold several (`--remote_rm_url`)
ROLLOUT_OF_7B, TRAINING_OF_7B = 16, 8  # sequences of a micro-batch, as its scripts have them
# Shares that differ more than so many times are no good tuning of models that take turns.
LARGEST_SHARE_RATIO = 16


def best_plan(job: Job, facts: Facts) -> SystemForecast:
    """Return its best plan, or why none fits."""
    found = [
        best_of("openrlhf-0.2", ABOUT, each, facts, _offers(each))
        for each in (job, _stepping_on_hosts(job))
    ]
    considered = sum(each.considered for each in found)
    best = min(found, key=lambda each: math.inf if each.seconds is None else each.seconds)
    return replace(best, considered=considered)


def _stepping_on_hosts(job: Job) -> Job:
    """Return a job whose trainers keep Adam's states in host memory and step there."""
    roles = {task.role for task in job_tasks(job) if task.kind == "train"}
    away = {role: replace(job.trainer(role), host_optimizer=1.0) for role in roles}
    return replace(job, trainers=FrozenDict({**(job.trainers or {}), **away}))


def _offers(job: Job) -> Iterator[SystemOption]:
    alone: list[RoleSet] = [(role,) for role in placed_roles(job)]
    served: list[RoleSet] = [(role,) for role in placed_roles(job) if role not in SCORERS]
    scorers = tuple(role for role in placed_roles(job) if role in SCORERS)
    for sets in (alone, [*served, scorers]) if len(scorers) > 1 else (alone,):
        for sizes in _shares(largest_group(job).gpus, len(sets) + 1):
            yield _offer(job, sets, sizes)


def _shares(gpus: int, pools: int) -> Iterator[tuple[int, ...]]:
    """Yield powers of two that fill the GPUs so far that none can double."""
    sizes = [size for size in powers_up_to(gpus) if size * LARGEST_SHARE_RATIO >= gpus]
    for shares in product(sizes, repeat=pools):
        left = gpus - sum(shares)
        if 0 <= left < min(shares):
            yield shares


def _offer(job: Job, sets: list[RoleSet], sizes: tuple[int, ...]) -> SystemOption:
    device = largest_group(job).gpu
    pools = [
        ResourcePool(name=members[0], device=device, gpus=gpus, roles=members)
        for members, gpus in zip(sets, sizes, strict=False)
    ]
    pool_of = {role: pool for pool in pools for role in pool.roles}
    engines = ResourcePool(name=ENGINES, device=device, gpus=sizes[-1], roles=("actor",))

    def layouts(task: Task) -> Iterator[TaskPlan]:
        pool = pool_of[task.role]
        if task.kind == "generate":
            yield from _engines(job, task, engines.gpus, ranks=pool.gpus)
            return
        trains = task.kind == "train"
        sharded = TaskPlan(
            pool=pool.name,
            dp=pool.gpus,
            engine=TRAIN,
            zero=3,
            recompute="full" if trains else "none",
        )
        most = batch_by_width(TRAINING_OF_7B if trains else ROLLOUT_OF_7B, job, task)
        yield from micro_batches(job, task, sharded, most)

    return SystemOption((*pools, engines), choices_of(job, layouts), "two-copies")


def _engines(job: Job, task: Task, gpus: int, *, ranks: int) -> Iterator[TaskPlan]:
    """Yield vLLM engines of each TP, the largest first, each rank calling with its micro-batch."""
    rollout = min(batch_by_width(ROLLOUT_OF_7B, job, task), local_batch(job, task, ranks))
    if not rollout:
        return
    for tp, _, dp in sorted(splits(job, task, gpus, most_pp=1), reverse=True):
        if dp <= ranks and local_batch(job, task, dp):
            yield TaskPlan(pool=ENGINES, tp=tp, dp=dp, engine=GENERATE, max_running=rollout)
