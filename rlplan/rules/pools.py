"""Pools and names: a plan's pools are the cluster's, and its names mean something."""

from collections.abc import Mapping

from rlplan.dataflow import Algorithm, Task
from rlplan.errors import nearest_name
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE, Plan
from rlplan.rules.rule import Problem, listed, rule
from rlplan.rules.situations import Pool


@rule("plan")
def plan_has_pools(whole_plan: Plan) -> Problem | None:
    """Give every model somewhere to run."""
    return None if whole_plan.pools else Problem("pools", "is empty: every model needs a pool")


@rule("pool")
def pool_has_its_own_name(pool: Pool, pools: tuple[Pool, ...]) -> Problem | None:
    """Let a name mean one pool."""
    if sum(each.name == pool.name for each in pools) == 1:
        return None
    return Problem("name", "is used by two pools", pool.name)


@rule("pool")
def device_is_in_the_cluster(device: str, job: Job) -> Problem | None:
    """Take GPUs that are at hand."""
    known = sorted({group.gpu for group in job.cluster})
    if device in known:
        return None
    words, nearest = "is not a device of the job's cluster", nearest_name(device, known)
    return Problem("device", words, device, listed(known), nearest)


@rule("pool")
def cluster_has_the_gpus(pool: Pool, device: str, wanted_gpus: int, job: Job) -> Problem | None:
    """Take each GPU once: pools share none."""
    available = sum(group.gpus for group in job.cluster if group.gpu == device)
    if wanted_gpus <= available:
        return None
    words = f"the pools want {wanted_gpus} GPUs of {device}, the cluster has fewer"
    return Problem("gpus", words, pool.gpus, f"at most {available} over all pools")


@rule("pool")
def pool_holds_models_of_the_job(pool: Pool, tasks: tuple[Task, ...]) -> Problem | None:
    """Place what the algorithm has."""
    known = tuple(dict.fromkeys(task.role for task in tasks))
    for role in pool.roles:
        if role not in known:
            return Problem("roles", "no such model", role, listed(known), nearest_name(role, known))
    return None


@rule("plan")
def task_is_the_algorithms(
    task_names: tuple[str, ...], tasks: tuple[Task, ...], algorithm: Algorithm
) -> Problem | None:
    """Plan what the dataflow has, and nothing else."""
    known = sorted(task.name for task in tasks)
    for name in task_names:
        if name not in known:
            words = f"is no task of {algorithm.name} with these models"
            allowed, nearest = listed(known), nearest_name(name, known)
            return Problem(f"tasks.{name}", words, None, allowed, nearest)
    return None


@rule("plan")
def every_task_is_planned(whole_plan: Plan, tasks: tuple[Task, ...]) -> Problem | None:
    """Say of every task where and how it runs: the iteration ends with the last one."""
    for task in tasks:
        if task.name not in whole_plan.tasks:
            return Problem(f"tasks.{task.name}", "is missing")
    return None


@rule("task")
def pool_is_listed(pool_name: str, pools: tuple[Pool, ...]) -> Problem | None:
    """Run on a pool that there is."""
    known = [str(pool.name) for pool in pools]
    if pool_name in known:
        return None
    allowed, nearest = listed(known) or "one of pools", nearest_name(pool_name, known)
    return Problem("pool", "no such pool", pool_name, allowed, nearest)


@rule("task")
def pool_holds_the_role(task: Task, pool: Pool, pools: tuple[Pool, ...]) -> Problem | None:
    """Run where the model is."""
    if task.role in pool.roles:
        return None
    homes = [pool.name for pool in pools if task.role in pool.roles]
    words = f"pool {pool.name} does not hold the role {task.role}"
    allowed = listed(homes) or f"a pool whose roles contain {task.role}"
    return Problem("pool", words, pool.name, allowed)


@rule("task")
def models_run_on_gpus(task: Task, pool: Pool) -> Problem | None:
    """Run models on devices, and what has none in processes of the host."""
    if task.has_model == (pool.device != HOST_DEVICE):
        return None
    words = "models run on GPU pools, and tasks without one, such as rules, on host pools"
    return Problem("pool", words, pool.name)


@rule("plan")
def role_has_one_home(
    pools: tuple[Pool, ...], tasks: tuple[Task, ...], homes: Mapping[str, str | None]
) -> Problem | None:
    """Keep a model's weights in one place; what generates may have a copy elsewhere."""
    for role in dict.fromkeys(task.role for task in tasks):
        holding = [pool.name for pool in pools if role in pool.roles]
        at_work = {homes[task.name] for task in tasks if task.role == role}
        if len(holding) > 1 and set(holding) != at_work:
            copies = any(task.generates for task in tasks if task.role == role)
            allowed = f"one; on two, tasks.{role}.generate.pool says" if copies else "one pool"
            return Problem("pools", f"the role {role} is on {len(holding)} pools", None, allowed)
    return None


@rule("plan")
def nodes_have_the_cores_of_environments(job: Job) -> Problem | None:
    """Let steps of environments hold no more cores than there are, where that is known."""
    cores = job.host_cores
    if cores is None:
        return None
    for at, environment in enumerate(job.environments):
        field, held = f"job.workload.environments.{at}", environment.cpu_cores
        if held > cores:
            return Problem(
                f"{field}.cpu_cores",
                f"is more than all nodes have together, {cores}",
                held,
                f"at most {cores}, or 0 where steps run outside of the cluster",
            )
        if environment.workers is not None and environment.workers * held > cores:
            return Problem(
                f"{field}.workers",
                f"hold {environment.workers * held:g} cores, and all nodes together have {cores}",
                environment.workers,
                f"at most {int(cores / held)}, or none for as many as fit",
            )
    return None
