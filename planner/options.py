"""Level 1 of the search: what each role can do on a pool of a given size, with its costs.

A `RoleOption` fixes the layouts of all tasks of one role. A role that both infers and trains has one
layout for both, since its weights live in one place; the actor generates in a layout of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import product

from planner.layouts import (
    Sizes,
    generate_layouts,
    infer_layouts,
    infer_sizes,
    infers_on,
    train_layouts,
    train_sizes,
)
from planner.pareto import front, front_of_each
from profiles.facts import Facts
from rlplan.dataflow import Algorithm, Stage, Task
from rlplan.job import Job, Role
from rlplan.plan import TaskDraft, TaskPlan
from simulator.costs import task_cost
from simulator.memory import TaskMemory, task_memory
from simulator.site import Site


@dataclass(frozen=True, slots=True)
class TaskOption:
    """Hold one layout of one task with what it costs on its pool.

    Attributes:
        seconds: Infinite for generation, whose cost depends on the memory that others leave.
    """

    task: Task
    layout: TaskPlan
    seconds: float
    memory: TaskMemory


@dataclass(frozen=True, slots=True)
class RoleOption:
    """Hold layouts for all tasks of one role, generation's excepted.

    Attributes:
        preparation_seconds: Sum over its inference tasks.
        training_seconds: Sum over its training tasks.
        resident_bytes: What stays on each GPU while other roles of the pool run.
        transient_bytes: What the hungriest of its tasks takes on top.
        kind: How a generating role's weights lie after training, which decides the cost of bringing
            them to generation, so that only options of one kind compare; None for other roles.
    """

    tasks: tuple[TaskOption, ...]
    preparation_seconds: float
    training_seconds: float
    resident_bytes: int
    transient_bytes: int
    kind: Sizes | None = None


@dataclass(slots=True)
class Tally:
    """Count what a search looked at and what it dropped, by rule."""

    considered: dict[str, int] = field(default_factory=dict)
    pruned: dict[str, int] = field(default_factory=dict)

    def consider(self, what: str, count: int = 1) -> None:
        """Count candidates of one level."""
        self.considered[what] = self.considered.get(what, 0) + count

    def prune(self, rule: str, count: int = 1) -> None:
        """Count candidates dropped by one rule."""
        self.pruned[rule] = self.pruned.get(rule, 0) + count


# What a user may set to any value, while only some are tried when it is left open.
SETTINGS = ("micro_batch", "max_running", "memory_fraction", "offload")


def is_allowed(layout: TaskPlan, draft: TaskDraft | None) -> bool:
    """Tell whether a layout keeps what the user fixed."""
    if draft is None:
        return True
    fixed = (
        (item.name, getattr(draft, item.name)) for item in fields(draft) if item.name != "pool"
    )
    return all(value is None or getattr(layout, name) == value for name, value in fixed)


class OptionTable:
    """List the options of roles on sites, each computed once."""

    def __init__(
        self,
        job: Job,
        algorithm: Algorithm,
        tasks: tuple[Task, ...],
        facts: Facts,
        drafts: dict[str, TaskDraft] | None = None,
        tally: Tally | None = None,
    ) -> None:
        self.job, self.algorithm, self.tasks, self.facts = job, algorithm, tasks, facts
        self.drafts = drafts or {}
        self.tally = tally or Tally()
        self._roles: dict[tuple[Role, Site], list[RoleOption]] = {}
        self._least: dict[tuple[Role, Site], RoleOption | None] = {}

    def capacity_bytes(self, site: Site) -> int:
        """Return the bytes of one GPU of a site that a plan may fill."""
        return self.facts.device(site.device).sheet.memory_bytes

    def role_options(self, role: Role, site: Site) -> list[RoleOption]:
        """Return the Pareto front of a role's options that fit a site's GPU by themselves."""
        key = (role, site)
        if key not in self._roles:
            self._roles[key] = self._front_of_role(role, site)
        return self._roles[key]

    def least_memory(self, role: Role, site: Site) -> RoleOption | None:
        """Return the option that needs least memory, fitting or not, to explain a misfit."""
        self.role_options(role, site)
        return self._least[role, site]

    def generate_options(self, site: Site) -> list[TaskOption]:
        """Return the layouts of `actor.generate` on a site, not costed yet."""
        task = next(task for task in self.tasks if task.kind == "generate")
        model = self.job.architecture(task.role)
        engine = self.facts.engine(self._engine(task))
        layouts = generate_layouts(model, engine, self.job, site.gpus, site.gpus_per_node)
        return [
            TaskOption(
                task, layout, float("inf"), task_memory(task, layout, site, self.job, self.facts)
            )
            for layout in self._drafted(task, layouts)
        ]

    def _engine(self, task: Task) -> str:
        draft = self.drafts.get(task.name)
        if draft is not None and draft.engine is not None:
            return draft.engine
        engines = self.job.engines
        name = engines.generate if task.kind == "generate" else engines.train
        assert name is not None, "a resolved job names its engines"
        return name

    def _drafted(self, task: Task, layouts: Iterator[TaskPlan]) -> Iterator[TaskPlan]:
        draft = self.drafts.get(task.name)
        if draft is not None:
            layouts = iter(dict.fromkeys(self._with_settings(task, draft, layouts)))
        for layout in layouts:
            if is_allowed(layout, draft):
                yield layout
            else:
                self.tally.prune("fixed by the user")

    def _with_settings(
        self, task: Task, draft: TaskDraft, layouts: Iterator[TaskPlan]
    ) -> Iterator[TaskPlan]:
        """Yield layouts with the user's own settings, which need not be among those to try."""
        given = {name: getattr(draft, name) for name in SETTINGS}
        given = {name: value for name, value in given.items() if value is not None}
        updates = self.job.workload.updates if task.kind == "train" else 1
        for layout in layouts:
            local = self.job.workload.sequences // updates // layout.dp
            if local % given.get("micro_batch", 1) == 0:
                yield replace(layout, **given)

    def _front_of_role(self, role: Role, site: Site) -> list[RoleOption]:
        capacity = self.capacity_bytes(site)
        everything = list(self._options_of_role(role, site))
        self.tally.consider("layouts of roles", len(everything))
        self._least[role, site] = min(
            everything,
            key=lambda option: option.resident_bytes + option.transient_bytes,
            default=None,
        )
        fitting = [
            option
            for option in everything
            if option.resident_bytes + option.transient_bytes <= capacity
        ]
        self.tally.prune("a role alone does not fit", len(everything) - len(fitting))
        kept = front_of_each(fitting, lambda option: option.kind, _role_key)
        self.tally.prune("another layout is better in time and memory", len(fitting) - len(kept))
        return kept

    def _options_of_role(self, role: Role, site: Site) -> Iterator[RoleOption]:
        tasks = [task for task in self.tasks if task.role == role and task.kind != "generate"]
        generates = any(task.role == role and task.kind == "generate" for task in self.tasks)
        for sizes in self._sizes(role, tasks, site):
            fronts = [self._task_front(task, sizes, site) for task in tasks]
            for chosen in product(*fronts):
                yield _role_option(chosen, sizes if generates else None)

    def _sizes(self, role: Role, tasks: list[Task], site: Site) -> Iterator[Sizes]:
        """Yield the cuts that suit all tasks of a role."""
        model = self.job.architecture(role)
        trained = [task for task in tasks if task.kind == "train"]
        engine = self.facts.engine(self._engine((trained or tasks)[0]))
        if not trained:
            yield from infer_sizes(model, engine, self.job, site.gpus, site.gpus_per_node)
            return
        for sizes in train_sizes(
            model, engine, self.job, self.algorithm, site.gpus, site.gpus_per_node
        ):
            if len(trained) == len(tasks) or infers_on(self.job, sizes.dp):
                yield sizes

    def _task_front(self, task: Task, sizes: Sizes, site: Site) -> list[TaskOption]:
        engine = self.facts.engine(self._engine(task))
        make = train_layouts if task.kind == "train" else infer_layouts
        options = []
        for layout in self._drafted(task, make(sizes, engine, self.job)):
            cost = task_cost(task, layout, site, self.job, self.facts).total
            memory = task_memory(task, layout, site, self.job, self.facts)
            options.append(TaskOption(task, layout, cost.seconds, memory))
        self.tally.consider("layouts of tasks", len(options))
        return front(options, _task_key)


def _task_key(option: TaskOption) -> tuple[float, ...]:
    memory = option.memory
    return (option.seconds, memory.resident_bytes, memory.transient_bytes)


def _role_key(option: RoleOption) -> tuple[float, ...]:
    return (
        option.preparation_seconds,
        option.training_seconds,
        option.resident_bytes,
        option.transient_bytes,
    )


def _role_option(tasks: tuple[TaskOption, ...], kind: Sizes | None) -> RoleOption:
    resident: dict[str, int] = {}
    for option in tasks:
        for term, size in option.memory.resident.items():
            resident[term] = max(resident.get(term, 0), size)  # tasks of a role share its weights
    return RoleOption(
        tasks=tasks,
        preparation_seconds=_stage_seconds(tasks, "preparation"),
        training_seconds=_stage_seconds(tasks, "training"),
        resident_bytes=sum(resident.values()),
        transient_bytes=max(option.memory.transient_bytes for option in tasks),
        kind=kind,
    )


def _stage_seconds(tasks: tuple[TaskOption, ...], stage: Stage) -> float:
    return sum(option.seconds for option in tasks if option.task.stage == stage)
