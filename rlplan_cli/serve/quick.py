"""Plans without a search, for an answer while a slider moves: the last one's layout at other sizes, or a usual layout.

They are plans like others: what is said of them is the simulator's forecast. That they are the best is not said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from rlplan.errors import UserError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import (
    USUAL_MODE,
    Plan,
    PlanDraft,
    PoolDraft,
    ResourcePool,
    TaskDraft,
    TaskPlan,
)

if TYPE_CHECKING:
    from rlplan.profiles.facts import Facts

# Sizes of tensor parallelism that a usual layout is tried with, the fastest to hand on first.
TRIED_TP = (1, 2, 4, 8)
MADE_BY = "quick estimate"


def quick_plan(draft: PlanDraft, job: Job, facts: Facts, near: Plan | None) -> Plan | None:
    """Return a plan of a job that needs no search; None where none is at hand.

    One that fits comes before one that does not, and the last answer's layout before others.

    Args:
        draft: What is said of the plan, such as its mode.
        near: The plan of the last answer.
    """
    from rlplan.simulator.placed import PlacedPlan
    from rlplan.simulator.timeline.assemble import device_pools
    from rlplan.simulator.timeline.pool_memory import pool_memory

    first = None
    for plan in _plans(draft, job, facts, near):
        placed = PlacedPlan(plan, facts)
        if all(pool_memory(placed, pool).fits for pool in device_pools(plan)):
            return plan
        first = first or plan
    return first


def _plans(draft: PlanDraft, job: Job, facts: Facts, near: Plan | None) -> Iterator[Plan]:
    if near is not None:
        plan = carried(near, draft, job, facts)
        if plan is not None:
            yield plan
    for usual in usual_drafts(draft, job):
        plan = _whole(usual, job, facts)
        if plan is not None:
            yield plan


def carried(near: Plan, draft: PlanDraft, job: Job, facts: Facts) -> Plan | None:
    """Return another job's plan for a job, with more or fewer copies where it has other GPUs; None where that is no plan."""
    from rlplan.planner.plans.assembly import with_largest_share
    from rlplan.planner.requests.specs import roomy, usable_fraction
    from rlplan.profiles.catalog import ENGINES
    from rlplan.rules import check_plan

    if not _is_near(near, draft, job):
        return None
    pools = _scaled(near, job)
    if pools is None:
        return None
    tasks: dict[str, TaskPlan] = {}
    sizes = {pool.name: pool.gpus for pool in pools}
    for name, layout in near.tasks.items():
        shared = layout.tp * layout.pp * layout.cp
        if near.pool_of(name).is_host:
            tasks[name] = layout
        elif sizes[layout.pool] % shared:
            return None
        else:
            tasks[name] = replace(layout, dp=sizes[layout.pool] // shared)
    plan = replace(near, job=job, pools=pools, tasks=FrozenDict(tasks), made_by=MADE_BY)
    if draft.staleness is not None:
        plan = replace(plan, staleness=draft.staleness)
    try:
        check_plan(plan, ENGINES)
        return with_largest_share(plan, facts, usable_fraction(roomy(job)))
    except UserError:
        return None


def _is_near(near: Plan, draft: PlanDraft, job: Job) -> bool:
    """Tell whether a plan's layouts mean the same of another job: models, algorithm, framework, devices, mode."""
    same = ("algorithm", "models", "framework", "precision", "rollout_precision", "engines")
    return (
        all(getattr(near.job, name) == getattr(job, name) for name in same)
        and near.mode == (draft.mode or USUAL_MODE)
        and [each.gpu for each in near.job.cluster] == [each.gpu for each in job.cluster]
    )


def _scaled(near: Plan, job: Job) -> tuple[ResourcePool, ...] | None:
    """Return a plan's pools on another number of GPUs, each in the same share of them; None where that is no whole number."""
    before, after = near.job.gpus, job.gpus
    found = []
    for pool in near.pools:
        gpus, rest = divmod(pool.gpus * after, before)
        if not pool.is_host and (rest or not gpus):
            return None
        found.append(pool if pool.is_host else replace(pool, gpus=gpus))
    return tuple(found)


def usual_drafts(draft: PlanDraft, job: Job) -> Iterator[PlanDraft]:
    """Yield plans of usual layouts: fully sharded trainers that compute activations again, over ever more tensor parallelism.

    All models share all GPUs; where generation runs beside training, each has half of them.
    """
    from rlplan.plan import FLOWS
    from rlplan.planner.placements.partitions import placed_roles
    from rlplan.planner.requests.drafts import with_generation

    group, mode = job.cluster[0], draft.mode or USUAL_MODE
    apart = FLOWS[mode].ahead != 0 or FLOWS[mode].by_sample
    roles, gpus = placed_roles(job), job.gpus
    generating = gpus // 2 if apart else 0
    pools = [PoolDraft(name="p0", device=group.gpu, gpus=gpus - generating, roles=roles)]
    if apart:
        pools.append(PoolDraft(name="p1", device=group.gpu, gpus=generating, roles=("generation",)))
    if not all(pool.gpus for pool in pools):
        return
    for tp, pp in product(TRIED_TP, dict.fromkeys((1, group.nodes))):
        sizes = [pool.gpus or 0 for pool in pools]
        if any(size % (tp * pp) for size in sizes) or tp > group.linked_gpus:
            continue
        for trained_tp in dict.fromkeys((1, tp)) if pp == 1 else (tp,):
            tasks = _tasks(job, pools, tp, (trained_tp, pp))
            usual = replace(draft, pools=tuple(pools), tasks=FrozenDict(tasks), made_by=MADE_BY)
            yield with_generation(usual, "plan")


def _tasks(
    job: Job, pools: list[PoolDraft], tp: int, trained: tuple[int, int]
) -> dict[str, TaskDraft]:
    """Return layouts of all tasks.

    Args:
        tp: Tensor parallelism of generation.
        trained: Tensor and pipeline parallelism of what trains and infers.
    """
    from rlplan.algorithms import load_algorithm
    from rlplan.dataflow import tasks_of
    from rlplan.profiles.catalog import load_engine

    found = {}
    zero = max(load_engine(job.engines.train or "").zero_stages)
    every = tasks_of(load_algorithm(job.algorithm), job)
    learning = {task.role for task in every if task.kind == "train"}
    for task in every:
        if not task.has_model:
            continue
        pool = pools[-1] if task.generates else pools[0]
        size, stages = (tp, 1) if task.generates else trained
        # Whatever passes over a role's weights finds them as its training shards them.
        more: dict[str, Any] = {}
        if task.role in learning and not task.generates:
            more = {"zero": zero}
        if task.kind == "train":
            more["recompute"] = "full"
        copies = (pool.gpus or 0) // (size * stages)
        found[task.name] = TaskDraft(pool=pool.name, tp=size, pp=stages, dp=copies, **more)
    return found


def _whole(draft: PlanDraft, job: Job, facts: Facts) -> Plan | None:
    from rlplan.planner.answers.completion import complete
    from rlplan.planner.plans.assembly import with_largest_share
    from rlplan.planner.requests.specs import roomy, usable_fraction

    try:
        # Written plans are completed to the brim; what searches leave free is left free here too.
        plan = complete(draft, job, facts)
        return with_largest_share(plan, facts, usable_fraction(roomy(job)))
    except UserError:
        return None
