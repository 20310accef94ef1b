"""Check that the parts of a plan agree with each other, with its job and with its engines.

A plan that passes may still not fit the memory; that is the forecast's to say.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NoReturn

from planner.layouts import divisors
from profiles.catalog import engine_names, load_engine
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.errors import FileError, nearest_name
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE, Mode, Plan, PoolDraft, ResourcePool, TaskPlan
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
        _check_task(plan, task, file)
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


def _check_task(plan: Plan, task: Task, file: str) -> None:
    layout, pool = plan.tasks[task.name], plan.pool_of(task.name)
    field = f"tasks.{task.name}"
    if task.kind != "rule":
        check_model_sizes(plan.job, task, layout, pool.device, file, field)
    if layout.gpus != pool.gpus:
        refuse(
            file,
            field,
            f"tp {layout.tp} x pp {layout.pp} x dp {layout.dp} x cp {layout.cp} covers {layout.gpus} "
            f"GPUs, but pool {pool.name} has {pool.gpus}",
        )
    if task.kind == "rule":
        return
    _check_batches(plan, task, layout, file, field)
    _check_chunks(plan, task, layout, file, field)
    check_engine(layout, task.kind, file, field)


def check_model_sizes(
    job: Job, task: Task, layout: TaskPlan, device: str, file: str, field: str
) -> None:
    """Refuse parallel sizes that do not divide their model, or a tensor group larger than a node.

    Raises:
        FileError: Names the size and what is allowed.
    """
    model = job.architecture(task.role)
    heads = [n for n in divisors(model.num_heads) if model.num_kv_heads % n == 0]
    if layout.tp not in heads:
        refuse(
            file,
            f"{field}.tp",
            f"does not divide the {model.num_heads} heads and {model.num_kv_heads} KV heads of {model.name}",
            layout.tp,
            ", ".join(map(str, heads)),
        )
    group = next(group for group in job.cluster if group.gpu == device)
    if layout.tp > group.gpus_per_node:
        allowed = f"at most {group.gpus_per_node} (GPUs per node)"
        refuse(file, f"{field}.tp", "leaves the node", layout.tp, allowed)
    if model.num_layers % layout.pp:
        allowed = ", ".join(map(str, divisors(model.num_layers)))
        problem = f"does not divide the {model.num_layers} layers of {model.name}"
        refuse(file, f"{field}.pp", problem, layout.pp, allowed)
    if layout.ep > 1 and (
        not model.num_experts or model.num_experts % layout.ep or layout.dp % layout.ep
    ):
        problem = (
            f"needs a model with experts that it divides; {model.name} has {model.num_experts}"
        )
        refuse(file, f"{field}.ep", problem, layout.ep)


def _check_batches(plan: Plan, task: Task, layout: TaskPlan, file: str, field: str) -> None:
    work = plan.job.workload
    unit, name = work.sequences, "sequences of an iteration"
    if load_algorithm(plan.job.algorithm).groups or task.kind != "train":
        unit, name = work.prompts, "prompts of an iteration"
    if task.kind == "train":
        unit, name = unit // work.updates, name.replace("an iteration", "an update")
    if unit % layout.dp:
        allowed = ", ".join(str(n) for n in divisors(unit) if n <= plan.pool_of(task.name).gpus)
        refuse(file, f"{field}.dp", f"does not divide the {unit} {name}", layout.dp, allowed)


def _check_chunks(plan: Plan, task: Task, layout: TaskPlan, file: str, field: str) -> None:
    """Refuse chunks of layers that no interleaved schedule of the task can run."""
    if layout.chunks == 1:
        return
    field = f"{field}.chunks"
    if task.kind != "train" or layout.pp == 1 or not load_engine(layout.engine).interleaves:
        refuse(file, field, "needs a training pipeline that interleaves", layout.chunks, "1")
    layers = plan.job.architecture(task.role).num_layers // layout.pp
    if layers % layout.chunks:
        allowed = ", ".join(map(str, divisors(layers)))
        problem = f"does not divide the {layers} layers of a stage"
        refuse(file, field, problem, layout.chunks, allowed)
    work = plan.job.workload
    count = work.sequences // (work.updates * layout.dp * layout.micro_batch)
    if count % layout.pp:
        problem = f"needs micro-batches in rounds of all {layout.pp} stages, and a rank has {count}"
        refuse(file, field, problem, layout.chunks, "1")


def check_engine(layout: TaskPlan, kind: str, file: str, field: str) -> None:
    """Refuse a layout that its engine cannot run.

    Raises:
        FileError: Names the field and what the engine runs.
    """
    known = [name for name in engine_names() if _trains(name) == (kind != "generate")]
    if layout.engine not in known:
        nearest = nearest_name(layout.engine, known)
        refuse(file, f"{field}.engine", "no such engine", layout.engine, ", ".join(known), nearest)
    engine = load_engine(layout.engine)
    for size, limit in (("pp", engine.max_pp), ("cp", engine.max_cp), ("ep", engine.max_ep)):
        value = getattr(layout, size)
        if limit and value > limit:
            problem = f"engine {engine.name} does not run it"
            refuse(file, f"{field}.{size}", problem, value, f"at most {limit}")
    if kind == "generate":
        return
    stages = set(engine.zero_stages) if kind == "train" else {0, *engine.zero_stages} & {0, 3}
    if layout.zero not in stages:
        allowed = ", ".join(map(str, sorted(stages)))
        refuse(
            file, f"{field}.zero", f"engine {engine.name} does not offer it", layout.zero, allowed
        )
    if kind == "train" and layout.recompute not in engine.recompute_modes:
        problem = f"engine {engine.name} does not offer it"
        allowed = ", ".join(engine.recompute_modes)
        refuse(file, f"{field}.recompute", problem, layout.recompute, allowed)


def _trains(engine: str) -> bool:
    return load_engine(engine).role == "train"


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


def refuse(
    file: str,
    field: str,
    problem: str,
    value: object = None,
    allowed: str | None = None,
    nearest: str | None = None,
) -> NoReturn:
    """Refuse a field of a plan.

    Raises:
        FileError: Always.
    """
    raise FileError(file, problem, field=field, value=value, allowed=allowed, nearest=nearest)
