"""Check that the parts of a plan agree with each other, with its job and with its engines.

A plan that passes may still not fit the memory; that is the forecast's to say.
"""

from collections import Counter
from collections.abc import Sequence

from planner.requests.task_checks import check_task, refuse
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.errors import nearest_name
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE, Mode, Plan, PoolDraft, ResourcePool
from simulator.simulate import MODES

# How many updates old the generating weights are in each mode.
STALENESS: dict[Mode, int] = {"sync": 0, "one-step-off": 1}


def check_plan(plan: Plan, file: str = "plan") -> None:
    """Refuse a plan whose parts contradict each other.

    Args:
        plan: A plan of a resolved job.
        file: What to call the plan in messages.

    Raises:
        FileError: Names the field, the value, what is allowed and the nearest fix.
    """
    algorithm = load_algorithm(plan.job.algorithm)
    tasks = tasks_of(algorithm, plan.job)
    if not plan.pools:
        refuse(file, "pools", "is empty: every model needs a pool")
    check_pools(plan.pools, plan.job, file)
    _check_names(plan, tasks, file)
    for task in tasks:
        check_task(plan, task, file)
    _check_one_home(plan, tasks, file)
    _check_order(plan, file)
    _check_transition(plan, file)
    _check_mode(plan, file)


def check_pools(pools: Sequence[ResourcePool | PoolDraft], job: Job, file: str) -> None:
    """Refuse pools that share a name, want more GPUs than the cluster has, or an unknown device.

    A draft's pool of open size wants one GPU at least, of its device if that is fixed.

    Raises:
        FileError: Names the pool and what the cluster has.
    """
    names = Counter(pool.name for pool in pools)
    for index, pool in enumerate(pools):
        if names[pool.name] > 1:
            refuse(file, f"pools.{index}.name", "is used by two pools", pool.name)
    available: Counter[str] = Counter()
    for group in job.cluster:
        available[group.gpu] += group.gpus
    wanted: Counter[str] = Counter()
    for index, pool in enumerate(pools):
        if pool.device is None or pool.device == HOST_DEVICE:
            continue
        if pool.device not in available:
            refuse(
                file,
                f"pools.{index}.device",
                "is not a device of the job's cluster",
                pool.device,
                ", ".join(sorted(available)),
                nearest_name(pool.device, available),
            )
        wanted[pool.device] += pool.gpus or 1
        if wanted[pool.device] > available[pool.device]:
            refuse(
                file,
                f"pools.{index}.gpus",
                f"the pools want {wanted[pool.device]} GPUs of {pool.device}, the cluster has fewer",
                pool.gpus,
                f"at most {available[pool.device]} over all pools",
            )


def _check_names(plan: Plan, tasks: tuple[Task, ...], file: str) -> None:
    names = {task.name for task in tasks}
    for name in plan.tasks:
        if name not in names:
            refuse(
                file,
                f"tasks.{name}",
                f"is no task of {plan.job.algorithm} with these models",
                allowed=", ".join(sorted(names)),
                nearest=nearest_name(name, names),
            )
    for task in tasks:
        if task.name not in plan.tasks:
            refuse(file, f"tasks.{task.name}", "is missing")
        if plan.tasks[task.name].pool not in {pool.name for pool in plan.pools}:
            known = [pool.name for pool in plan.pools]
            wanted = plan.tasks[task.name].pool
            field = f"tasks.{task.name}.pool"
            refuse(
                file, field, "no such pool", wanted, ", ".join(known), nearest_name(wanted, known)
            )
        pool = plan.pool_of(task.name)
        if task.role not in pool.roles:
            refuse(
                file,
                f"tasks.{task.name}.pool",
                f"pool {pool.name} does not hold the role {task.role}",
                pool.name,
                f"a pool whose roles contain {task.role}",
            )
        if pool.is_host != (task.kind == "rule"):
            field = f"tasks.{task.name}.pool"
            refuse(file, field, "models run on GPU pools, and rules on host pools", pool.name)


def _check_one_home(plan: Plan, tasks: tuple[Task, ...], file: str) -> None:
    """Refuse a role that infers elsewhere, or cut otherwise, than it trains.

    Its weights live where they are trained; only the actor's are brought to another layout, that of
    generation.
    """
    homes = {task.role: task for task in tasks if task.kind == "train"}
    for task in tasks:
        if task.kind != "infer" or task.role not in homes:
            continue
        home = homes[task.role].name
        for name in ("pool", "tp", "pp", "dp"):
            own, trained = getattr(plan.tasks[task.name], name), getattr(plan.tasks[home], name)
            if own != trained:
                problem = f"differs from {home}'s, where the weights of {task.role} live"
                refuse(file, f"tasks.{task.name}.{name}", problem, own, str(trained))


def _check_order(plan: Plan, file: str) -> None:
    for pool in plan.pools:
        there = sorted(name for name, layout in plan.tasks.items() if layout.pool == pool.name)
        if pool.name not in plan.order:
            refuse(
                file, f"order.{pool.name}", "is missing", allowed="its tasks: " + ", ".join(there)
            )
        if sorted(plan.order[pool.name]) != there:
            found = ", ".join(plan.order[pool.name])
            problem = "must name each task of the pool once"
            refuse(file, f"order.{pool.name}", problem, found, ", ".join(there))
    for name in plan.order:
        if name not in {pool.name for pool in plan.pools}:
            refuse(file, f"order.{name}", "no such pool")


def _check_transition(plan: Plan, file: str) -> None:
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    same_pool = train.pool == generate.pool
    if same_pool == (plan.transition == "two-copies"):
        problem = "two copies are for an actor that generates on another pool than it trains on"
        allowed = "hybridflow, hybridflow-v, all-gather, none" if same_pool else "two-copies"
        refuse(file, "transition", problem, plan.transition, allowed)
    if not same_pool:
        return
    equal = (train.tp, train.pp) == (generate.tp, generate.pp)
    divides = train.tp % generate.tp == 0 and train.pp % generate.pp == 0
    problem = f"cannot bring tp {train.tp}, pp {train.pp} to tp {generate.tp}, pp {generate.pp} of generation"
    if plan.transition == "none" and not equal:
        refuse(
            file, "transition", problem, plan.transition, "hybridflow" if divides else "all-gather"
        )
    if plan.transition in ("hybridflow", "hybridflow-v") and not divides:
        refuse(file, "transition", problem, plan.transition, "all-gather")


def _check_mode(plan: Plan, file: str) -> None:
    if plan.mode not in MODES:
        refuse(file, "mode", "is not simulated or executed yet", plan.mode, ", ".join(MODES))
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    if plan.mode == "one-step-off" and train.pool == generate.pool:
        problem = (
            f"generates the next batch while this one trains, but actor.generate shares pool "
            f"{train.pool} with actor.update"
        )
        allowed = "sync, or a pool of its own for actor.generate"
        refuse(file, "mode", problem, plan.mode, allowed)
    staleness = STALENESS[plan.mode]
    if plan.staleness != staleness:
        problem = f"must be {staleness} in mode {plan.mode}"
        refuse(file, "staleness", problem, plan.staleness, str(staleness))
