"""Check what a user fixed in a partial plan, before layouts are chosen that keep it.

A part that is wrong by itself is named here; parts that only contradict each other are found when
no layout keeps them all.
"""

from planner.requests.task_checks import check_engine, check_model_sizes, refuse
from rlplan.dataflow import Task
from rlplan.errors import nearest_name
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE, PlanDraft, PoolDraft, TaskDraft, TaskPlan

SIZES = ("tp", "pp", "dp", "cp")


def check_draft(draft: PlanDraft, job: Job, tasks: tuple[Task, ...], file: str) -> None:
    """Refuse fixed parts that name nothing, or that no layout can have.

    Args:
        job: The draft's job, resolved.
        tasks: The job's tasks.
        file: What to call the plan in messages.

    Raises:
        FileError: Names the field, the value and what is allowed.
    """
    by_name = {task.name: task for task in tasks}
    for name, fixed in draft.tasks.items():
        if name not in by_name:
            problem = f"is no task of {job.algorithm} with these models"
            allowed = ", ".join(sorted(by_name))
            refuse(file, f"tasks.{name}", problem, None, allowed, nearest_name(name, by_name))
        task = by_name[name]
        pool = _pool_of(draft, task, fixed, file)
        if task.kind != "rule" and (pool is None or pool.device != HOST_DEVICE):
            _check_sizes(job, task, fixed, pool, file)


def _pool_of(draft: PlanDraft, task: Task, fixed: TaskDraft, file: str) -> PoolDraft | None:
    """Return the pool that a task is fixed to, or the only one that holds its role."""
    homes = [pool for pool in draft.pools if task.role in pool.roles]
    if fixed.pool is None:
        return homes[0] if len(homes) == 1 else None
    named = [pool for pool in draft.pools if pool.name == fixed.pool]
    if not named:
        known = [str(pool.name) for pool in draft.pools]
        field, nearest = f"tasks.{task.name}.pool", nearest_name(fixed.pool, known)
        refuse(file, field, "no such pool", fixed.pool, ", ".join(known) or "one of pools", nearest)
    if named[0] not in homes:
        refuse(
            file,
            f"tasks.{task.name}.pool",
            f"pool {fixed.pool} does not hold the role {task.role}",
            fixed.pool,
            ", ".join(str(pool.name) for pool in homes)
            or f"a pool whose roles contain {task.role}",
        )
    return named[0]


def _check_sizes(job: Job, task: Task, fixed: TaskDraft, pool: PoolDraft | None, file: str) -> None:
    """Refuse sizes that no layout on the pool can have, or on any device of the cluster if it is open."""
    field = f"tasks.{task.name}"
    usual = job.engines.generate if task.kind == "generate" else job.engines.train
    given = {size: getattr(fixed, size) for size in SIZES if getattr(fixed, size) is not None}
    layout = TaskPlan(
        pool="",
        **{**given, "dp": fixed.dp or fixed.ep or 1},
        ep=fixed.ep or 1,
        engine=fixed.engine or usual or "",
        zero=fixed.zero or 0,
        recompute=fixed.recompute or "none",
    )
    if pool is not None and pool.device is not None:
        device = pool.device
    else:
        device = max(job.cluster, key=lambda group: group.gpus_per_node).gpu
    check_model_sizes(job, task, layout, device, file, field)
    covered = 1
    for size in given.values():
        covered *= size
    if pool is None and covered > job.gpus:
        words = " x ".join(f"{name} {size}" for name, size in given.items())
        refuse(file, field, f"{words} covers more than the cluster's {job.gpus} GPUs")
    if pool is not None and pool.gpus is not None and pool.gpus % covered:
        words = " x ".join(f"{name} {size}" for name, size in given.items())
        problem = f"{words} does not divide the {pool.gpus} GPUs of pool {pool.name}"
        refuse(file, field, problem)
    check_engine(layout, task.kind, file, field)
    _check_micro_batch(job, task, fixed, file)


def _check_micro_batch(job: Job, task: Task, fixed: TaskDraft, file: str) -> None:
    if fixed.micro_batch is None or task.kind == "generate":
        return
    local = job.workload.sequences // (fixed.dp or 1)
    if task.kind == "train":
        local //= job.workload.updates
    if local % fixed.micro_batch:
        problem = f"does not divide the {local} sequences of one data-parallel rank"
        allowed = f"a divisor of {local}"
        refuse(file, f"tasks.{task.name}.micro_batch", problem, fixed.micro_batch, allowed)
