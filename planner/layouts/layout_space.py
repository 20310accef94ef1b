"""Which layouts the tasks of a job may have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlplan.dataflow import Algorithm, Task
from rlplan.job import Job
from rlplan.plan import TaskDraft, TaskPlan
from rlplan.planner.layouts.settings import PinnedCut, PoolCuts, generate_layouts
from rlplan.planner.placements.arrangements import Arranged
from rlplan.profiles.facts import Facts
from rlplan.simulator.placed import Site


@dataclass(frozen=True, slots=True, eq=False)
class LayoutSpace:
    """Say which layouts the tasks of a job may have.

    Attributes:
        priced: The job whose work costs are of, where the job's own depends on how plans generate: then bounds.
        drafts: Parts of tasks' layouts that the user pinned.
        usable_fraction: Share of every GPU's memory that plans may fill.
        pinned_pools: GPUs of pools that the user pinned.
        arranged: How a framework arranges its roles, where plans are for one.
        is_priced: Whether layouts have seconds; else memory alone tells them apart, and what they bring to the
            host stands in their place: what needs least of GPUs may need more of the host than there is.
    """

    job: Job
    priced: Job
    algorithm: Algorithm
    tasks: tuple[Task, ...]
    facts: Facts
    drafts: Mapping[str, TaskDraft]
    usable_fraction: float = 1.0
    pinned_pools: frozenset[int] = frozenset()
    arranged: Arranged | None = None
    is_priced: bool = True

    def capacity_bytes(self, site: Site) -> int:
        """Return the bytes of one GPU of a site that a plan may fill.

        To the nearest byte, as caches are sized: one that fills its engine's share of a GPU fills as much of it.
        """
        return round(self.usable_fraction * self.facts.device(site.device).sheet.memory_bytes)

    def contexts_bytes(self, roles: int, site: Site) -> int:
        """Return what contexts of other processes take beside a task, on a GPU where so many roles train or score."""
        if not self.facts.framework(self.job.framework).host.processes_by_role:
            return 0
        return max(0, roles - 1) * self.facts.device(site.device).context_bytes

    @property
    def most_beside_bytes(self) -> int:
        """Return the most that the generation engine has on a GPU as long as it lives, beyond its share."""
        share = self.facts.engine(self.engine_of(self.generate_task())).share
        return max(share.lasting_bytes(gpus) for gpus in (1, 2))

    @property
    def weights_leave(self) -> bool:
        """Tell whether weights that are trained leave the GPUs where a layout off-loads their states."""
        framework = self.facts.framework(self.job.framework)
        return "weights" in framework.leaving(self.job, "actor")

    def engine_of(self, task: Task) -> str:
        """Return the engine that runs a task."""
        draft = self.drafts.get(task.name)
        if draft is not None and draft.engine is not None:
            return str(draft.engine)
        engines = self.job.engines
        name = engines.generate if task.kind == "generate" else engines.train
        assert name is not None, "a resolved job names its engines"
        return name

    def asked(self, tasks: Sequence[Task]) -> PinnedCut:
        """Return what is pinned of the cut of tasks that share one: the first that says a size, the one that trains before others."""
        ordered = sorted(tasks, key=lambda task: not task.trains)
        drafts = [self.drafts[task.name] for task in ordered if task.name in self.drafts]
        sizes = TaskDraft()
        for draft in reversed(drafts):
            said = ((name, getattr(draft, name)) for name in TaskDraft.__dataclass_fields__)
            sizes = replace(sizes, **{name: value for name, value in said if value is not None})
        return PinnedCut(sizes, self.pinned_pools)

    def cuts_of(self, tasks: Sequence[Task], site: Site) -> PoolCuts:
        """Return the cuts over a site of the model of tasks that share one: as it is trained, if it is."""
        task = next((task for task in tasks if task.trains), tasks[0])
        return PoolCuts(
            self.job.architecture(task.role),
            self.facts.engine(self.engine_of(task)),
            self.job,
            site.gpus,
            site.gpus_per_node,
            self.asked(tasks),
        )

    def generate_task(self) -> Task:
        """Return the task in which the actor generates."""
        return next(task for task in self.tasks if task.kind == "generate" and task.role == "actor")

    def generation_layouts(self, site: Site) -> tuple[list[TaskPlan], int]:
        """Return the layouts of generation on a site, and how many what is pinned rules out."""
        task = self.generate_task()
        draft = self.drafts.get(task.name)
        every = list(generate_layouts(self.cuts_of([task], site)))
        arranged = self.arranged
        kept = [
            layout
            for layout in every
            if _keeps(layout, draft) and (arranged is None or arranged.generates_with(layout))
        ]
        return kept, len(every) - len(kept)


def _keeps(layout: TaskPlan, draft: TaskDraft | None) -> bool:
    if draft is None:
        return True
    names = (name for name in TaskDraft.__dataclass_fields__ if name != "pool")
    pinned = ((name, getattr(draft, name)) for name in names)
    return all(value is None or getattr(layout, name) == value for name, value in pinned)
