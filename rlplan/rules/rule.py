"""What a rule of a plan is, what it looks at, and what it answers; what a reader of valid plans cannot do.

Rules look at a plan or a draft by its parts, each with what is known of it. None is not known: open in a draft, or of
no such part. A rule that needs it has nothing to say. What a valid plan may ask for and an executor need not have is a
capability, by name.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Algorithm, Task, tasks_of
from rlplan.errors import CapabilityError
from rlplan.job import Job
from rlplan.models import ModelArchitecture
from rlplan.plan import (
    HOST_DEVICE,
    SIZES,
    Plan,
    PlanDraft,
    PoolDraft,
    Recompute,
    ResourcePool,
    TaskDraft,
    TaskPlan,
)
from rlplan.sheets import EngineSheet
from rlplan.transfers import Cut

Engines = Mapping[str, EngineSheet]
Pool = ResourcePool | PoolDraft
Layout = TaskPlan | TaskDraft

SETTINGS = ("ep", "expert_tp", "micro_batch", "chunks", "recompute", "zero", "shard_ranks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Hold what is known of one part of a plan.

    Attributes:
        place: Dotted path of the part in the plan's file.
    """

    place: str
    job: Job
    pools: tuple[Pool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext(Context):
    """Hold what is known of a plan as a whole.

    Attributes:
        whole_plan: The plan, where it is no draft.
        homes: The pool of every task.
        train_cut: How training cuts the actor.
        generate_cut: How generation cuts the actor.
    """

    plan: Plan | PlanDraft
    whole_plan: Plan | None
    algorithm: Algorithm
    tasks: tuple[Task, ...]
    homes: Mapping[str, str | None]
    train_pool: str | None
    generate_pool: str | None
    train_cut: Cut | None
    generate_cut: Cut | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolContext(Context):
    """Hold what is known of a pool.

    Attributes:
        device: Of a pool of GPUs.
        wanted_gpus: GPUs of that device that this pool and those before it take.
    """

    pool: Pool
    tasks: tuple[Task, ...]
    device: str | None
    wanted_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext(Context):
    """Hold what is known of a task.

    Attributes:
        pool_name: What the task is given, or in a draft the only pool that it can have.
        pool: The pool of that name, if there is one.
        layout: None where the plan does not say one.
    """

    task: Task
    pool_name: str | None
    pool: Pool | None
    layout: Layout | None
    tp: int | None
    pp: int | None
    dp: int | None
    cp: int | None

    @property
    def sizes(self) -> dict[str, int]:
        """Return the parallel sizes that are known, by name."""
        sizes = {name: getattr(self, name) for name in SIZES}
        return {name: size for name, size in sizes.items() if size is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext(TaskContext):
    """Hold what is known of a task that has a model, a layout, and a pool of GPUs or one that is open.

    Attributes:
        cluster_gpus: GPUs that there are for a task whose pool is not known.
        gpus_per_node: The most of a node on which it may run.
        engine_name: What the layout says, or the job.
        engine: The sheet of that name, where sheets are at hand and have it.
        zero_stages: Stages that the engine offers; all where it is not known.
        training: The layout of the task that trains the same model, for a task that infers.
        training_name: That task's name.
    """

    layout: Layout
    model: ModelArchitecture
    ep: int | None
    expert_tp: int | None
    micro_batch: int | None
    chunks: int | None
    recompute: Recompute | None
    zero: int | None
    shard_ranks: int | None
    cluster_gpus: int | None
    gpus_per_node: int | None
    engines: Engines | None
    engine_name: str | None
    engine: EngineSheet | None
    zero_stages: tuple[int, ...]
    training_name: str | None
    training: Layout | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderContext(Context):
    """Hold what is known of the order of a pool's tasks.

    Attributes:
        listed_tasks: As the plan orders them, if it does.
        tasks_there: Those whose pool it is, sorted.
    """

    pool: Pool
    whole_plan: Plan | None
    listed_tasks: tuple[str, ...] | None
    tasks_there: tuple[str, ...]


def contexts_of(plan: Plan | PlanDraft, job: Job, engines: Engines | None) -> tuple[Context, ...]:
    """Return the parts of a plan that rules look at, each kind in the plan's or the dataflow's order.

    Args:
        job: The plan's, resolved.
        engines: Sheets by name.
    """
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    homes = {task.name: _home(task, plan) for task in tasks}
    return (
        _of_plan(plan, job, tasks, homes),
        *_of_pools(plan, job, tasks),
        *(_of_task(task, plan, job, tasks, homes[task.name], engines) for task in tasks),
        *_of_orders(plan, job, homes),
    )


def _home(task: Task, plan: Plan | PlanDraft) -> str | None:
    """Return the pool that a task is given, or in a draft the only one that it can have."""
    layout = plan.tasks.get(task.name)
    if layout is not None and layout.pool is not None:
        home: str = layout.pool
        return home
    if isinstance(plan, Plan):
        return None
    generate = plan.tasks.get(f"{task.role}.generate")
    holding = [pool.name for pool in plan.pools if task.role in pool.roles]
    if len(holding) > 1 and generate is not None and not task.generates:
        holding = [name for name in holding if name != generate.pool]
    return holding[0] if len(holding) == 1 else None


def _of_plan(
    plan: Plan | PlanDraft, job: Job, tasks: tuple[Task, ...], homes: Mapping[str, str | None]
) -> PlanContext:
    return PlanContext(
        place="",
        job=job,
        pools=plan.pools,
        plan=plan,
        whole_plan=plan if isinstance(plan, Plan) else None,
        algorithm=load_algorithm(job.algorithm),
        tasks=tasks,
        homes=homes,
        train_pool=homes["actor.update"],
        generate_pool=homes["actor.generate"],
        train_cut=_cut(plan.tasks.get("actor.update")),
        generate_cut=_cut(plan.tasks.get("actor.generate")),
    )


def _cut(layout: Layout | None) -> Cut | None:
    """Return how a layout cuts a model, if both sizes are given."""
    if layout is None or layout.tp is None or layout.pp is None:
        return None
    return layout.tp, layout.pp


def _of_pools(plan: Plan | PlanDraft, job: Job, tasks: tuple[Task, ...]) -> Iterator[PoolContext]:
    wanted: Counter[str] = Counter()
    pools: tuple[Pool, ...] = plan.pools
    for index, pool in enumerate(pools):
        device = None if pool.device == HOST_DEVICE else pool.device
        if device is not None:
            wanted[device] += pool.gpus or 1
        yield PoolContext(
            place=f"pools.{index}",
            job=job,
            pools=pools,
            pool=pool,
            tasks=tasks,
            device=device,
            wanted_gpus=wanted[device] if device is not None else 0,
        )


def _of_task(
    task: Task,
    plan: Plan | PlanDraft,
    job: Job,
    tasks: tuple[Task, ...],
    home: str | None,
    engines: Engines | None,
) -> TaskContext:
    layout = plan.tasks.get(task.name)
    pool = next((each for each in plan.pools if each.name == home), None) if home else None
    common: dict[str, Any] = {
        "place": f"tasks.{task.name}",
        "job": job,
        "pools": plan.pools,
        "task": task,
        "pool_name": home,
        "pool": pool,
        "layout": layout,
        **{size: getattr(layout, size, None) for size in SIZES},
    }
    on_host = pool is not None and pool.device == HOST_DEVICE
    if layout is None or not task.has_model or on_host:
        return TaskContext(**common)
    device = pool.device if pool is not None else None
    nodes = [group.linked_gpus for group in job.cluster if device in (None, group.gpu)]
    usual = job.engines.generate if task.generates else job.engines.train
    name = layout.engine if layout.engine is not None else usual
    engine = engines.get(name) if engines is not None and name is not None else None
    trained = [other.name for other in tasks if other.trains and other.role == task.role]
    training = trained[0] if trained and not (task.trains or task.generates) else None
    return ModelContext(
        **common,
        **{setting: getattr(layout, setting) for setting in SETTINGS},
        model=job.architecture(task.role),
        cluster_gpus=job.gpus if pool is None else None,
        gpus_per_node=max(nodes, default=None),
        engines=engines,
        engine_name=name,
        engine=engine,
        zero_stages=engine.zero_stages if engine is not None else (0, 1, 2, 3),
        training_name=training,
        training=plan.tasks.get(training) if training is not None else None,
    )


def _of_orders(
    plan: Plan | PlanDraft, job: Job, homes: Mapping[str, str | None]
) -> Iterator[OrderContext]:
    for pool in plan.pools:
        there = [name for name, home in homes.items() if home == pool.name]
        yield OrderContext(
            place=f"order.{pool.name}",
            job=job,
            pools=plan.pools,
            pool=pool,
            whole_plan=plan if isinstance(plan, Plan) else None,
            listed_tasks=plan.order.get(pool.name or ""),
            tasks_there=tuple(sorted(there)),
        )


C = TypeVar("C", bound=Context)


@dataclass(frozen=True, slots=True)
class Problem:
    """Say what is wrong, as a clause, and what would be right.

    Attributes:
        field: Of the pool or task that the rule looks at; empty for all of it.
    """

    field: str
    words: str
    value: object = None
    allowed: str | None = None
    nearest: str | None = None


@dataclass(frozen=True, slots=True)
class Rule(Generic[C]):
    """Hold a rule of a plan.

    Attributes:
        reason: Why a plan that breaks it is none.
        looks_at: The parts of a plan that it is asked of.
        find: Returns the problem; None where the rule is kept, or what it needs is not known.
    """

    name: str
    reason: str
    looks_at: type[C]
    find: Callable[[C], Problem | None]

    def refusals(self, contexts: Iterable[Context]) -> Iterator["Refusal"]:
        """Yield the problems of those parts of a plan that the rule is asked of."""
        for context in contexts:
            if isinstance(context, self.looks_at):
                problem = self.find(context)
                if problem is not None:
                    yield Refusal(self, context.place, problem)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Hold a problem with the rule that found it, and the part of the plan that it was found in."""

    rule: Rule[Any]
    place: str
    problem: Problem

    @property
    def field(self) -> str:
        """Return the dotted path of the field."""
        return ".".join(part for part in (self.place, self.problem.field) if part)


def rule(looks_at: type[C]) -> Callable[[Callable[[C], Problem | None]], Rule[C]]:
    """Make a rule of a function: its name is the rule's, its docstring the reason."""

    def as_rule(find: Callable[[C], Problem | None]) -> Rule[C]:
        name, reason = find.__name__.replace("_", " "), (find.__doc__ or "").split("\n")[0]
        return Rule(name, reason, looks_at, find)

    return as_rule


def listed(values: Any) -> str:  # noqa: ANN401 -- of anything that has a text
    """Return values for people, separated by commas."""
    return ", ".join(map(str, values))


@dataclass(frozen=True, slots=True)
class Capability:
    """Name something that rules allow, and that not every executor or engine can do."""

    name: str

    def lacked_by(self, who: str, field: str, value: object, instead: str) -> CapabilityError:
        """Return what to say where an executor or engine cannot.

        Args:
            field: Dotted path of what asks for it, in the plan or its job.
            instead: What can be done, as a clause.
        """
        return CapabilityError(
            self.name, f"{field} is {value}: {who} cannot: {self.name}; {instead}"
        )


def refuse_first(lacks: Iterable[CapabilityError], file: str) -> None:
    """Raise the first thing that is lacking, if there is any.

    Args:
        file: What to call the plan in its message.

    Raises:
        CapabilityError: Names the file, what is lacked, and the field that asks for it.
    """
    for lack in lacks:
        raise CapabilityError(lack.capability, f"{file}: {lack}")
