"""Check that the layout of a task agrees with its model, its pool, its batches and its engine."""

from typing import NoReturn

from planner.layouts.sizes import divisors
from profiles.catalog import engine_names, load_engine
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task
from rlplan.errors import FileError, nearest_name
from rlplan.job import Job
from rlplan.plan import Plan, TaskPlan


def check_task(plan: Plan, task: Task, file: str) -> None:
    """Refuse a task's layout that its model, pool, batches or engine do not allow.

    Raises:
        FileError: Names the field, the value and what is allowed.
    """
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
