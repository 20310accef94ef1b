"""Pools and names: a plan's pools are the cluster's, and its names mean something."""

from rlplan.dataflow import TEACHER_LOG_PROB
from rlplan.errors import nearest_name
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE
from rlplan.rules.rule import PlanContext, PoolContext, Problem, TaskContext, listed, rule


@rule(PlanContext)
def plan_has_pools(given: PlanContext) -> Problem | None:
    """Give every model somewhere to run."""
    if given.whole_plan is None or given.pools:
        return None
    return Problem("pools", "is empty: every model needs a pool")


@rule(PoolContext)
def pool_has_its_own_name(given: PoolContext) -> Problem | None:
    """Let a name mean one pool."""
    name = given.pool.name
    if sum(pool.name == name for pool in given.pools) == 1:
        return None
    return Problem("name", "is used by two pools", name)


@rule(PoolContext)
def device_is_in_the_cluster(given: PoolContext) -> Problem | None:
    """Take GPUs that are at hand."""
    device, known = given.device, sorted({group.gpu for group in given.job.cluster})
    if device is None or device in known:
        return None
    words, nearest = "is not a device of the job's cluster", nearest_name(device, known)
    return Problem("device", words, device, listed(known), nearest)


@rule(PoolContext)
def cluster_has_the_gpus(given: PoolContext) -> Problem | None:
    """Take each GPU once: pools share none."""
    device, wanted = given.device, given.wanted_gpus
    available = sum(group.gpus for group in given.job.cluster if group.gpu == device)
    if device is None or wanted <= available:
        return None
    words = f"the pools want {wanted} GPUs of {device}, the cluster has fewer"
    return Problem("gpus", words, given.pool.gpus, f"at most {available} over all pools")


@rule(PoolContext)
def pool_holds_models_of_the_job(given: PoolContext) -> Problem | None:
    """Place what the algorithm has."""
    known = tuple(dict.fromkeys(task.role for task in given.tasks))
    for role in given.pool.roles:
        if role not in known:
            return Problem("roles", "no such model", role, listed(known), nearest_name(role, known))
    return None


@rule(PlanContext)
def task_is_the_algorithms(given: PlanContext) -> Problem | None:
    """Plan what the dataflow has, and nothing else."""
    known = sorted(task.name for task in given.tasks)
    for name in given.plan.tasks:
        if name not in known:
            words = f"is no task of {given.algorithm.name} with these models"
            allowed, nearest = listed(known), nearest_name(name, known)
            return Problem(f"tasks.{name}", words, None, allowed, nearest)
    return None


@rule(PlanContext)
def every_task_is_planned(given: PlanContext) -> Problem | None:
    """Say of every task where and how it runs: the iteration ends with the last one."""
    if given.whole_plan is None:
        return None
    for task in given.tasks:
        if task.name not in given.whole_plan.tasks:
            return Problem(f"tasks.{task.name}", "is missing")
    return None


@rule(TaskContext)
def pool_is_listed(given: TaskContext) -> Problem | None:
    """Run on a pool that there is."""
    pool_name, known = given.pool_name, [str(pool.name) for pool in given.pools]
    if pool_name is None or pool_name in known:
        return None
    allowed, nearest = listed(known) or "one of pools", nearest_name(pool_name, known)
    return Problem("pool", "no such pool", pool_name, allowed, nearest)


@rule(TaskContext)
def pool_holds_the_role(given: TaskContext) -> Problem | None:
    """Run where the model is."""
    pool, role = given.pool, given.task.role
    if pool is None or role in pool.roles:
        return None
    homes = [each.name for each in given.pools if role in each.roles]
    words = f"pool {pool.name} does not hold the role {role}"
    allowed = listed(homes) or f"a pool whose roles contain {role}"
    return Problem("pool", words, pool.name, allowed)


@rule(TaskContext)
def models_run_on_gpus(given: TaskContext) -> Problem | None:
    """Run models on devices, and what has none in processes of the host."""
    pool = given.pool
    if pool is None or given.task.has_model == (pool.device != HOST_DEVICE):
        return None
    words = "models run on GPU pools, and tasks without one, such as rules, on host pools"
    return Problem("pool", words, pool.name)


@rule(PlanContext)
def role_has_one_home(given: PlanContext) -> Problem | None:
    """Keep a model's weights in one place; what generates may have a copy elsewhere."""
    for role in dict.fromkeys(task.role for task in given.tasks):
        tasks = [task for task in given.tasks if task.role == role]
        holding = [pool.name for pool in given.pools if role in pool.roles]
        if len(holding) > 1 and set(holding) != {given.homes[task.name] for task in tasks}:
            copies = any(task.generates for task in tasks)
            allowed = f"one; on two, tasks.{role}.generate.pool says" if copies else "one pool"
            return Problem("pools", f"the role {role} is on {len(holding)} pools", None, allowed)
    return None


@rule(PlanContext)
def whole_distributions_stay_on_their_pool(given: PlanContext) -> Problem | None:
    """Have a teacher on the pool that trains where its whole distributions are compared: nothing hands them on."""
    teacher = TEACHER_LOG_PROB.name
    home, own = given.train_pool, given.homes.get(teacher)
    if not given.job.compares_all or home is None or own in (None, home):
        return None
    words = "is not the actor's, and job.teacher.top_tokens: all compares micro-batch by micro-batch there"
    return Problem(f"tasks.{teacher}.pool", words, own, str(home))


@rule(PlanContext)
def nodes_have_the_cores_of_environments(given: PlanContext) -> Problem | None:
    """Let steps of environments hold no more cores than there are, where that is known."""
    return lacking_cores(given.job)


def lacking_cores(job: Job) -> Problem | None:
    """Return what of a job's environments holds more cores than all its nodes have; None where nothing does."""
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
