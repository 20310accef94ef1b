"""What this engine runs, checked before anything is started."""

from executor.parallel.positions import TRAIN_ENGINES
from executor.rollout.engines import engine_module_names
from executor.rollout.vllm_limits import check_vllm_layout
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.errors import PlanError
from rlplan.model import ModelArchitecture
from rlplan.plan import Plan, TaskPlan

# Sizes that only tasks over whole sequences have: a step of generation has a token of each.
OF_WHOLE_SEQUENCES = ("cp", "ep")
# Modes that this engine runs, each with how many updates old its samples are.
MODES = (("sync", 0), ("one-step-off", 1))
FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
EXPERT_FAMILIES = ("mixtral", "qwen3_moe")
PRECISIONS = ("fp32", "bf16")
CPU = "cpu"


def check_runnable(plan: Plan) -> tuple[Task, ...]:
    """Return the plan's tasks in the dataflow's order if this engine runs all of them.

    Raises:
        PlanError: Names the task, the field, and what this engine runs.
    """
    algorithm = load_algorithm(plan.job.algorithm)
    tasks = tasks_of(algorithm, plan.job)
    if plan.job.precision not in (None, *PRECISIONS):
        raise PlanError(f"job.precision {plan.job.precision}: this engine runs {_list(PRECISIONS)}")
    for task in tasks:
        if task.name not in plan.tasks:
            raise PlanError(f"tasks.{task.name} is missing in the plan")
        _check_layout(plan, task, plan.tasks[task.name])
        if task.kind != "rule":
            _check_model(plan, task, plan.tasks[task.name])
        if task.kind == "train":
            _check_mini_batches(plan, task, groups=algorithm.groups)
    _check_mode(plan)
    _check_inference_layouts(plan, tasks)
    _check_transition(plan)
    check_vllm_layout(plan, on_cpu=plan.pool_of("actor.generate").device == CPU)
    return tasks


def _check_mode(plan: Plan) -> None:
    if (plan.mode, plan.staleness) not in MODES:
        raise PlanError(
            f"mode {plan.mode}, staleness {plan.staleness}: this engine runs"
            f" {_list(tuple(f'{mode} ({staleness})' for mode, staleness in MODES))}"
        )
    if plan.mode == "sync":
        return
    pools = {plan.tasks[name].pool for name in ("actor.generate", "actor.update")}
    if len(pools) == 1:
        raise PlanError(
            f"mode {plan.mode} wants actor.generate on another pool than actor.update;"
            f" both are on {pools.pop()}"
        )


def _list(values: object) -> str:
    return ", ".join(map(str, values)) if isinstance(values, tuple | list) else str(values)


def _check_layout(plan: Plan, task: Task, layout: TaskPlan) -> None:
    for field in OF_WHOLE_SEQUENCES if task.kind not in ("train", "infer") else ():
        if getattr(layout, field) > 1:
            raise PlanError(
                f"tasks.{task.name}.{field} is {getattr(layout, field)}: this engine runs 1 only"
                " where it does not train or infer"
            )
    if task.kind == "generate" and layout.zero:
        raise PlanError(f"tasks.{task.name}.zero is {layout.zero}: what generates is not sharded")
    pool = plan.pool_of(task.name)
    if layout.gpus != pool.gpus:
        raise PlanError(
            f"tasks.{task.name}: tp {layout.tp} x pp {layout.pp} x cp {layout.cp} x dp {layout.dp}"
            f" covers {layout.gpus} devices, but pool {pool.name} has {pool.gpus}"
        )
    if task.role not in pool.roles:
        raise PlanError(f"tasks.{task.name}.pool: pool {pool.name} does not hold {task.role}")
    if task.name not in plan.order.get(pool.name, ()):
        raise PlanError(f"order.{pool.name} does not name {task.name}")
    if task.kind != "rule" and layout.dp > plan.job.workload.prompts:
        raise PlanError(
            f"tasks.{task.name}.dp {layout.dp} leaves ranks without any of the"
            f" {plan.job.workload.prompts} prompts"
        )
    known = engine_module_names() if task.kind == "generate" else TRAIN_ENGINES
    if task.kind != "rule" and layout.engine not in ("", *known):
        raise PlanError(
            f"tasks.{task.name}.engine is {layout.engine}: this executor has {_list(known)};"
            f" plan with `engines: {{{'generate' if task.kind == 'generate' else 'train'}: ...}}`"
            " in the job"
        )


def _check_model(plan: Plan, task: Task, layout: TaskPlan) -> None:
    model = plan.job.architecture(task.role)
    if plan.pool_of(task.name).is_host:
        raise PlanError(f"tasks.{task.name}.pool is a host pool: models run on device pools")
    _check_family(model, task)
    width = model.moe_ffn_size if model.num_experts else model.ffn_size
    if model.num_heads % layout.tp or model.num_kv_heads % layout.tp or width % layout.tp:
        raise PlanError(
            f"tasks.{task.name}.tp {layout.tp} does not divide the {model.num_heads} heads,"
            f" {model.num_kv_heads} KV heads and MLP width {width} of {model.name}"
        )
    if layout.ep > 1 and (
        not model.num_experts or model.num_experts % layout.ep or layout.dp % layout.ep
    ):
        raise PlanError(
            f"tasks.{task.name}.ep {layout.ep} does not divide the {model.num_experts} experts of"
            f" {model.name} and the {layout.dp} data-parallel ranks"
        )
    stages = layout.pp * (layout.chunks if task.kind == "train" else 1)
    if stages > model.num_layers:
        raise PlanError(
            f"tasks.{task.name}: {stages} pipeline stages (pp x chunks) are more than the"
            f" {model.num_layers} layers of {model.name}"
        )
    vocab = plan.job.architecture("actor").vocab_size
    if model.vocab_size < vocab:
        raise PlanError(
            f"models.{task.role} has a vocabulary of {model.vocab_size}: the actor generates"
            f" tokens up to {vocab - 1}"
        )


def _check_family(model: ModelArchitecture, task: Task) -> None:
    has_experts = model.family in EXPERT_FAMILIES
    if (
        model.family not in FAMILIES
        or bool(model.num_experts) != has_experts
        or not model.gated_mlp
    ):
        raise PlanError(
            f"models.{task.role} is a {model.family} with {model.num_experts} experts:"
            f" this engine runs models of {_list(FAMILIES)}, with experts {_list(EXPERT_FAMILIES)}"
        )


def _check_mini_batches(plan: Plan, task: Task, *, groups: bool) -> None:
    work, dp = plan.job.workload, plan.tasks[task.name].dp
    unit, name = (work.prompts, "prompts") if groups else (work.sequences, "sequences")
    if unit % (work.updates * dp):
        raise PlanError(
            f"tasks.{task.name}.dp {dp} and workload.updates {work.updates} do not divide"
            f" the {unit} {name} of an iteration"
        )


def _check_inference_layouts(plan: Plan, tasks: tuple[Task, ...]) -> None:
    """Refuse a second layout of a trained model; only the actor has one, for generation."""
    trained = {task.role: task.name for task in tasks if task.kind == "train"}
    for task in tasks:
        if task.kind != "infer" or task.role not in trained:
            continue
        train, here = plan.tasks[trained[task.role]], plan.tasks[task.name]
        for field in ("pool", "tp", "pp", "cp", "ep"):
            if getattr(here, field) != getattr(train, field):
                raise PlanError(
                    f"tasks.{task.name}.{field} is {getattr(here, field)}: this engine runs it in"
                    f" the layout of {trained[task.role]}, {field} {getattr(train, field)}"
                )


def _check_transition(plan: Plan) -> None:
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    if train.pool != generate.pool or (train.tp, train.pp) == (generate.tp, generate.pp):
        return
    divides = train.tp % generate.tp == 0 and train.pp % generate.pp == 0
    if plan.transition == "none" or (plan.transition.startswith("hybridflow") and not divides):
        raise PlanError(
            f"transition {plan.transition} cannot bring actor.update.tp {train.tp}, pp {train.pp} to"
            f" actor.generate.tp {generate.tp}, pp {generate.pp};"
            f" use {'hybridflow' if divides else 'all-gather'}"
        )
