"""NeMo-Aligner 0.2: actor with reference on one half of the GPUs, critic with reward on the other.

Sources: Shen et al. 2024, NeMo-Aligner, arXiv:2405.01481, section 5; Sheng et al. 2025, HybridFlow,
table 1 and section 8.1 (split, the same 3D parallelism in training and generation);
`examples/nlp/gpt/conf/gpt_ppo_actor.yaml` of NeMo-Aligner 0.2 (rollout micro-batches of 8, which its
forward passes share; its reference's weights lie in host memory between uses).
Tuned: tensor and pipeline parallelism, training's micro-batch, and whether activations are computed
again. Optimizer states are taken to be whole on every data-parallel rank, though its configuration
names the distributed Adam: with sharded ones 7B would fit TP 1 and 34B TP 8 alone, and every published
point would be two to three times as fast as it is. HybridFlow says that it generates without a KV cache; the sheet `megatron-no-cache` says why its
measured iterations cannot have been computed so, and `megatron-static` is taken.
"""

from collections.abc import Iterator
from dataclasses import replace

from rlplan.dataflow import Task
from rlplan.job import Job
from rlplan.plan import ResourcePool, TaskPlan
from rlplan.planner.placements.partitions import placed_roles
from rlplan.planner.placements.strategies import place
from rlplan.planner.systems.system_plans import (
    SystemOption,
    best_of,
    choices_of,
    largest_group,
    local_batch,
    micro_batches,
    powers_up_to,
)
from rlplan.profiles.facts import Facts
from rlplan.results.accuracy import SystemForecast
from rlplan.rules.layouts import fits_model

ABOUT = (
    "actor and reference on one half of the GPUs, critic and reward on the other, Megatron's 3D "
    "parallelism, generation in the layout of training by static micro-batches of 8"
)
TRAIN, GENERATE = "megatron-core", "megatron-static"
ROLLOUT_MICRO_BATCH = 8
MOST_MICRO_BATCH = 8
MOST_PP = 8


def best_plan(job: Job, facts: Facts) -> SystemForecast:
    """Return its best plan, or why none fits."""
    return best_of("nemo-aligner-0.2", ABOUT, job, facts, _offers(job))


def _offers(job: Job) -> Iterator[SystemOption]:
    sets = place("split", placed_roles(job))
    group = largest_group(job)
    gpus = group.gpus // len(sets)
    if not gpus:
        return
    names = ("actor side", "critic side")
    pools = tuple(
        ResourcePool(name=name, device=group.gpu, gpus=gpus, roles=members)
        for name, members in zip(names, sets, strict=False)
    )
    pool_of: dict[str, str] = {role: pool.name for pool in pools for role in pool.roles}
    for tp in powers_up_to(min(gpus, group.gpus_per_node)):
        for pp in powers_up_to(min(MOST_PP, gpus // tp)):
            if gpus % (tp * pp) == 0:
                yield _offer(job, pools, pool_of, (tp, pp, gpus // (tp * pp)))


def _offer(
    job: Job, pools: tuple[ResourcePool, ...], pool_of: dict[str, str], sizes: tuple[int, int, int]
) -> SystemOption:
    tp, pp, dp = sizes

    def layouts(task: Task) -> Iterator[TaskPlan]:
        model = job.architecture(task.role)
        if not fits_model(tp, pp, model):
            return
        engine = GENERATE if task.kind == "generate" else TRAIN
        layout = TaskPlan(pool=pool_of[task.role], tp=tp, pp=pp, dp=dp, engine=engine)
        if task.kind == "generate":
            yield from _rollouts(job, task, layout)
        elif task.kind == "infer":
            kept_on_host = replace(layout, offload=task.role == "reference")
            yield from micro_batches(job, task, kept_on_host, ROLLOUT_MICRO_BATCH)
        else:
            yield from _trainings(job, task, layout)

    return SystemOption(pools, choices_of(job, layouts), "none")


def _rollouts(job: Job, task: Task, layout: TaskPlan) -> Iterator[TaskPlan]:
    local = local_batch(job, task, layout.dp)
    if local:
        yield replace(layout, max_running=min(ROLLOUT_MICRO_BATCH, local))


def _trainings(job: Job, task: Task, layout: TaskPlan) -> Iterator[TaskPlan]:
    for recompute in ("full", "none"):
        computed = replace(layout, recompute=recompute)
        yield from micro_batches(job, task, computed, MOST_MICRO_BATCH)
