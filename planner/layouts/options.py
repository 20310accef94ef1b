"""Level 1 of the search: what each role can do on a pool of a given size, with its costs.

A `RoleOption` fixes the layouts of all tasks of one role, generation's excepted. A role that both infers
and trains has one cut for both, since its weights live in one place. All layouts of a role are costed
together; what is left are those that no other beats in time and memory.
"""

from planner.exact.kept_fronts import KeptFront, KeptFronts
from planner.layouts.role_fronts import RoleTable
from planner.layouts.role_options import RoleOption, Tally
from planner.layouts.settings import generate_layouts
from profiles.facts import Facts
from rlplan.dataflow import Algorithm, Task
from rlplan.job import Job, Role
from rlplan.plan import TaskDraft, TaskPlan
from simulator.site import Site


class OptionTable:
    """List the options of roles on sites, each computed once.

    Args:
        drafts: Parts of tasks' layouts that the user fixed.
        usable_fraction: Share of every GPU's memory that plans may fill.
        kept: Fronts of earlier searches, which those made here are added to; None for no such.
    """

    def __init__(
        self,
        job: Job,
        algorithm: Algorithm,
        tasks: tuple[Task, ...],
        facts: Facts,
        drafts: dict[str, TaskDraft] | None = None,
        tally: Tally | None = None,
        *,
        usable_fraction: float = 1.0,
        kept: KeptFronts | None = None,
    ) -> None:
        self.job, self.algorithm, self.tasks, self.facts = job, algorithm, tasks, facts
        self.drafts = drafts or {}
        self.tally = tally or Tally()
        self.usable_fraction, self.kept = usable_fraction, kept
        self._roles: dict[tuple[Role, Site], list[RoleOption]] = {}
        self._least: dict[tuple[Role, Site], tuple[int, int] | None] = {}

    def capacity_bytes(self, site: Site) -> int:
        """Return the bytes of one GPU of a site that a plan may fill."""
        return int(self.usable_fraction * self.facts.device(site.device).sheet.memory_bytes)

    def role_options(self, role: Role, site: Site) -> list[RoleOption]:
        """Return the Pareto front of a role's options that fit a site's GPU by themselves."""
        key = (role, site)
        if key not in self._roles:
            found = self.kept.find(role, site) if self.kept else None
            if found is None:
                found = self._front(role, site)
                if self.kept:
                    self.kept.keep(role, site, found)
            self._roles[key], self._least[key] = found.options, found.least
            self.tally.add(found.tally)
        return self._roles[key]

    def _front(self, role: Role, site: Site) -> KeptFront:
        tally = Tally()
        table = RoleTable(self, role, site, tally)
        return KeptFront(table.front(), table.least, tally)

    def least_bytes(self, role: Role, site: Site) -> tuple[int, int] | None:
        """Return resident and transient bytes of a role's leanest layout, fitting or not.

        None if it cannot be laid out at all.
        """
        self.role_options(role, site)
        return self._least.get((role, site))

    def generate_task(self, role: Role = "actor") -> Task:
        """Return the task in which a role generates."""
        return next(task for task in self.tasks if task.kind == "generate" and task.role == role)

    def generate_options(self, site: Site) -> list[TaskPlan]:
        """Return the layouts of generation on a site, not costed yet."""
        task = self.generate_task()
        model = self.job.architecture(task.role)
        engine = self.facts.engine(self.engine_of(task))
        draft = self.drafts.get(task.name)
        layouts = generate_layouts(model, engine, self.job, site.gpus, site.gpus_per_node, draft)
        kept = []
        for layout in layouts:
            if _keeps(layout, draft):
                kept.append(layout)
            else:
                self.tally.prune("fixed by the user")
        self.tally.consider("layouts of generation", len(kept))
        return kept

    def engine_of(self, task: Task) -> str:
        """Return the engine that runs a task."""
        draft = self.drafts.get(task.name)
        if draft is not None and draft.engine is not None:
            return draft.engine
        engines = self.job.engines
        name = engines.generate if task.kind == "generate" else engines.train
        assert name is not None, "a resolved job names its engines"
        return name


def _keeps(layout: TaskPlan, draft: TaskDraft | None) -> bool:
    if draft is None:
        return True
    names = (name for name in TaskDraft.__dataclass_fields__ if name != "pool")
    fixed = ((name, getattr(draft, name)) for name in names)
    return all(value is None or getattr(layout, name) == value for name, value in fixed)
