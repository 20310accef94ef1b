"""What a plan or a draft gives to rules, by the names of their parameters.

What is open in a draft is not given, so that rules which need it are not asked.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE, Plan, PlanDraft, PoolDraft, ResourcePool, TaskDraft, TaskPlan
from rlplan.rules.rule import Scope
from rlplan.sheets.hardware import EngineSheet

Engines = Mapping[str, EngineSheet]
Pool = ResourcePool | PoolDraft
Layout = TaskPlan | TaskDraft

SIZES = ("tp", "pp", "dp", "cp")
SETTINGS = ("ep", "expert_tp", "micro_batch", "chunks", "recompute", "zero", "shard_ranks")


@dataclass(frozen=True, slots=True)
class Situation:
    """Hold what is given of one part of a plan.

    Attributes:
        place: Dotted path of the part in the plan's file.
    """

    place: str
    given: dict[str, Any]


def situations_of(
    plan: Plan | PlanDraft, job: Job, engines: Engines | None
) -> dict[Scope, list[Situation]]:
    """Return the parts of a plan that rules look at, by scope."""
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    homes = {task.name: _home(task, plan) for task in tasks}
    return {
        "plan": [Situation("", _given(_of_plan(plan, job, tasks, homes)))],
        "pool": list(_of_pools(plan, job, tasks)),
        "task": [
            Situation(
                f"tasks.{task.name}", _given(_of_task(task, plan, job, tasks, homes, engines))
            )
            for task in tasks
        ],
        "order": list(_of_orders(plan, homes)),
    }


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _home(task: Task, plan: Plan | PlanDraft) -> str | None:
    """Return the pool that a task is given, or in a draft the only one that it can have."""
    layout = plan.tasks.get(task.name)
    if layout is not None and layout.pool is not None:
        return layout.pool
    if isinstance(plan, Plan):
        return None
    generate = plan.tasks.get(f"{task.role}.generate")
    holding = [pool.name for pool in plan.pools if task.role in pool.roles]
    if len(holding) > 1 and generate is not None and not task.generates:
        holding = [name for name in holding if name != generate.pool]
    return holding[0] if len(holding) == 1 else None


def _of_plan(
    plan: Plan | PlanDraft, job: Job, tasks: tuple[Task, ...], homes: Mapping[str, str | None]
) -> dict[str, Any]:
    return {
        "whole_plan": plan if isinstance(plan, Plan) else None,
        "job": job,
        "algorithm": load_algorithm(job.algorithm),
        "tasks": tasks,
        "task_names": tuple(plan.tasks),
        "pools": plan.pools,
        "order": plan.order,
        "mode": plan.mode,
        "staleness": plan.staleness,
        "sync_every": plan.sync_every,
        "in_flight": plan.in_flight,
        "transition": plan.transition,
        "transport": plan.transport,
        "train_cut": _cut(plan.tasks.get("actor.update")),
        "generate_cut": _cut(plan.tasks.get("actor.generate")),
        "homes": homes,
        "train_pool": homes["actor.update"],
        "generate_pool": homes["actor.generate"],
    }


def _cut(layout: Layout | None) -> tuple[int, int] | None:
    """Return how a layout cuts a model: tensor- and pipeline-parallel sizes, if both are given."""
    if layout is None or layout.tp is None or layout.pp is None:
        return None
    return layout.tp, layout.pp


def _of_pools(plan: Plan | PlanDraft, job: Job, tasks: tuple[Task, ...]) -> Iterator[Situation]:
    wanted: Counter[str] = Counter()
    pools: tuple[Pool, ...] = plan.pools
    for index, pool in enumerate(pools):
        on_host = pool.device == HOST_DEVICE
        device = None if on_host else pool.device
        if device is not None:
            wanted[device] += pool.gpus or 1
        values = {
            "pool": pool,
            "pools": pools,
            "job": job,
            "tasks": tasks,
            "device": device,
            "wanted_gpus": wanted[device] if device is not None else None,
        }
        yield Situation(f"pools.{index}", _given(values))


def _of_task(
    task: Task,
    plan: Plan | PlanDraft,
    job: Job,
    tasks: tuple[Task, ...],
    homes: Mapping[str, str | None],
    engines: Engines | None,
) -> dict[str, Any]:
    layout = plan.tasks.get(task.name)
    home = homes[task.name]
    pool = next((each for each in plan.pools if each.name == home), None) if home else None
    values: dict[str, Any] = {
        "task": task,
        "job": job,
        "pools": plan.pools,
        "pool_name": home,
        "pool": pool,
    }
    if layout is None:
        return values
    sizes = _given({name: getattr(layout, name) for name in SIZES})
    values |= {"layout": layout, "sizes": sizes, **sizes}
    if not task.has_model or (pool is not None and pool.device == HOST_DEVICE):
        return values
    device = pool.device if pool is not None else None
    nodes = [group.linked_gpus for group in job.cluster if device in (None, group.gpu)]
    usual = job.engines.generate if task.generates else job.engines.train
    name = layout.engine if layout.engine is not None else usual
    engine = engines.get(name) if engines is not None and name is not None else None
    trained = [other.name for other in tasks if other.trains and other.role == task.role]
    training = trained[0] if trained and not (task.trains or task.generates) else None
    return values | {
        "model": job.architecture(task.role),
        "algorithm": load_algorithm(job.algorithm),
        "cluster_gpus": job.gpus if pool is None else None,
        "gpus_per_node": max(nodes, default=None),
        "engines": engines,
        "engine_name": name,
        "engine": engine,
        "zero_stages": engine.zero_stages if engine is not None else (0, 1, 2, 3),
        "training_name": training,
        "training": plan.tasks.get(training) if training is not None else None,
        **{name: getattr(layout, name) for name in SETTINGS},
    }


def _of_orders(plan: Plan | PlanDraft, homes: Mapping[str, str | None]) -> Iterator[Situation]:
    for pool in plan.pools:
        there = [name for name, home in homes.items() if home == pool.name]
        values = {
            "whole_plan": plan if isinstance(plan, Plan) else None,
            "order": plan.order,
            "listed_tasks": plan.order.get(pool.name or ""),
            "tasks_there": tuple(sorted(there)),
            "pool": pool,
        }
        yield Situation(f"order.{pool.name}", _given(values))
