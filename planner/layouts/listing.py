"""Listing the layouts of a role's tasks on sites, before any memory or time; jobs that differ in their lengths share most listings."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rlplan.dataflow import Task
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import TaskDraft, TaskPlan
from rlplan.planner.layouts.layout_space import LayoutSpace
from rlplan.planner.layouts.settings import (
    Setting,
    Sizes,
    columns_for,
    context_ranks,
    has_positions,
    infer_cut,
    infer_settings,
    packs,
    train_settings,
)
from rlplan.planner.placements.arrangements import Arranged
from rlplan.rules.batches import rank_sequences
from rlplan.sheets import EngineSheet
from rlplan.simulator.answers import job_of_any_lengths
from rlplan.simulator.columns import COLUMNS, RECOMPUTES, Flags, Ints, LayoutColumns
from rlplan.simulator.model import as_told
from rlplan.simulator.placed import Site

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class TaskLayouts:
    """Hold one task's layouts on sites.

    Attributes:
        columns: A row for each.
        cut: Of each the place among the role's cuts, ascending. Shape (layouts,).
        dropped: How many were left out, by rule.
    """

    columns: LayoutColumns
    cut: Ints
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Hold the layouts of a role's tasks on sites.

    Attributes:
        cut_sites: For each cut the place of its site. Shape (cuts,).
        tasks: By name.
    """

    cut_sites: Ints
    tasks: Mapping[str, TaskLayouts]


# Listings, and layouts of generation with how many what is pinned rules out, by all that decides them.
KeptListings = dict[Hashable, Any]


def listing_of(
    space: LayoutSpace, tasks: Sequence[Task], sites: Sequence[Site], kept: KeptListings
) -> Listing:
    """Return the layouts of a role's tasks on sites.

    Args:
        kept: What was listed before, which this adds to.
    """
    names = tuple(task.name for task in tasks)
    find = partial(_RoleLayouts(space, tasks).listing, sites)
    return _once(kept, _decides(space, tasks), (names, tuple(sites)), find)


def generations_of(
    space: LayoutSpace, site: Site, kept: KeptListings
) -> tuple[list[TaskPlan], int]:
    """Return the layouts of generation on a site, and how many what is pinned rules out.

    Args:
        kept: What was listed before, which this adds to.
    """
    task = space.generate_task()
    fits = has_positions(space.job.workload, space.job.architecture(task.role))
    find = partial(space.generation_layouts, site)
    return _once(kept, _decides(space, (task,)), (fits, site), find)


def _once(
    kept: KeptListings, decides: Hashable | None, asked: tuple[Hashable, ...], find: Callable[[], T]
) -> T:
    """Return what is found, once for all that decides it; each time where that is None."""
    if decides is None:
        return find()
    key = decides, *asked
    if key not in kept:
        kept[key] = find()
    listed: T = kept[key]
    return listed


def _decides(space: LayoutSpace, tasks: Sequence[Task]) -> Hashable | None:
    """Return what decides which layouts tasks have on a site; None where jobs of other lengths have others.

    Of lengths it is no more than how many ranks may share a sequence, unless micro-batches are budgets of tokens.
    """
    job = job_of_any_lengths(space.job)
    if job is space.job or any(_budgets(space, task) for task in tasks):
        return None
    limit, drafts = context_ranks(space.job.workload), FrozenDict(space.drafts)
    return job, limit, drafts, space.pinned_pools, space.arranged


def _budgets(space: LayoutSpace, task: Task) -> bool:
    """Tell whether a task's micro-batches may be packed up to budgets of tokens, which are of its lengths."""
    if task.generates:
        return False
    draft = space.drafts.get(task.name)
    if draft is not None and draft.token_budget is not None:
        return True
    return packs(_engine_of(space, task), space.job)


def _engine_of(space: LayoutSpace, task: Task) -> EngineSheet:
    """Return the engine that runs a task, as the job tells it."""
    return as_told(space.facts.engine(space.engine_of(task)), task, space.job)


@dataclass(frozen=True, slots=True)
class _RoleLayouts:
    """List the layouts of tasks that share the weights of a role."""

    space: LayoutSpace
    tasks: Sequence[Task]

    @property
    def trains(self) -> bool:
        """Tell whether a task trains the role."""
        return any(task.kind == "train" for task in self.tasks)

    def listing(self, sites: Sequence[Site]) -> Listing:
        """Return the layouts on sites."""
        each = [list(self._cuts(site)) if self.tasks else [] for site in sites]
        cuts = [cut for some in each for cut in some]
        cut_sites = np.repeat(np.arange(len(sites)), [len(some) for some in each])
        return Listing(cut_sites, {task.name: self._layouts(task, cuts) for task in self.tasks})

    def _cuts(self, site: Site) -> Iterator[Sizes]:
        """Yield the cuts over a site that suit all tasks of the role."""
        cuts = self.space.cuts_of(self.tasks, site)
        if not self.trains:
            yield from cuts.infer()
            return
        infers = any(task.kind != "train" for task in self.tasks)
        for sizes in cuts.train():
            if not infers or cuts.lists_copies(sizes.dp, trains=False):
                yield sizes

    def _layouts(self, task: Task, cuts: Sequence[Sizes]) -> TaskLayouts:
        """Return a task's layouts in every cut."""
        space, draft = self.space, self.space.drafts.get(task.name)
        engine, pinned = _engine_of(space, task), space.asked(self.tasks).sizes
        groups = [self._settings(task, engine, sizes) for sizes in cuts]
        columns = columns_for(
            engine,
            groups,
            (pinned.first_stage_layers or 0, pinned.last_stage_layers or 0),
            pinned.shard_ranks or 0,
        )
        cut = np.repeat(np.arange(len(groups)), [len(settings) for _, settings in groups])
        dropped: dict[str, int] = {}
        if space.arranged is not None:
            kept = np.flatnonzero(_arranged_rows(columns, task, space.arranged, space.job))
            dropped["not of the framework"] = len(columns) - len(kept)
            columns, cut = columns.rows(kept), cut[kept]
        if draft is not None:
            kept = np.flatnonzero(_kept_rows(columns, draft))
            dropped["pinned by the user"] = len(columns) - len(kept)
            columns, cut = columns.rows(kept), cut[kept]
        return TaskLayouts(columns, cut, dropped)

    def _settings(
        self, task: Task, engine: EngineSheet, sizes: Sizes
    ) -> tuple[Sizes, tuple[Setting, ...]]:
        """Return the sizes with which a task has a cut, and its settings there."""
        space, draft = self.space, self.space.drafts.get(task.name)
        if task.kind == "train":
            model = space.job.architecture(task.role)
            return sizes, train_settings(sizes, model, engine, space.job, draft)
        settings = infer_settings(
            sizes, engine, space.job, draft, trains=self.trains, alike=space.arranged is not None
        )
        return infer_cut(sizes), settings


def _arranged_rows(columns: LayoutColumns, task: Task, arranged: Arranged, job: Job) -> Flags:
    """Tell which rows a framework runs: packed or counted; of an update whole micro-batches, and its recomputation."""
    packed = columns.token_budget > 0
    is_fixed = task.role in arranged.arrangement.layouts
    alike: Flags = np.ones_like(packed)
    if is_fixed:
        fixed = arranged.arrangement.layouts[task.role]
        alike = ~packed | (fixed.micro_batch is None)
    elif arranged.packs is not None:
        alike = packed == arranged.packs
    if task.kind != "train":
        return alike
    local = np.array([rank_sequences(int(dp), job.workload, trains=True) for dp in columns.dp])
    kept: Flags = alike & (packed | (local % columns.micro_batch == 0))
    if arranged.recompute:
        kept &= np.isin(columns.recompute, [RECOMPUTES.index(each) for each in arranged.recompute])
    return kept


def _kept_rows(columns: LayoutColumns, draft: TaskDraft) -> Flags:
    """Tell which rows have the sizes that the user pinned."""
    kept = np.ones(len(columns), dtype=bool)
    for name in COLUMNS:
        value = getattr(draft, name)
        if value is not None:
            number = RECOMPUTES.index(value) if name == "recompute" else int(value)
            kept &= getattr(columns, name) == number
    return kept
