"""Level 1 of the search: what each role can do on a pool of a given size, with its costs.

A `RoleOption` fixes the layouts of all tasks of one role, generation's excepted. A role that both infers
and trains has one cut for both, since its weights live in one place. All layouts of a role are costed
together; what is left are those that no other beats in time and memory.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import lt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlplan.dataflow import Task
from rlplan.job import Role
from rlplan.plan import TaskPlan
from rlplan.planner.layouts.layout_space import LayoutSpace
from rlplan.planner.layouts.listing import KeptListings, generations_of, listing_of
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.simulator.columns import Flags, Floats, Ints, LayoutColumns, Zero
from rlplan.simulator.memory.task_memory import COMMUNICATORS, GRADIENTS_SHARDED, layout_memory
from rlplan.simulator.memory.terms import LayoutMemory
from rlplan.simulator.memory.transition_memory import has_room_to_serve
from rlplan.simulator.placed import PlacedTask, PlacedTasks, Site
from rlplan.simulator.stages.infer import layout_seconds
from rlplan.simulator.timeline.pool_memory import inputs_away_bytes, off_loaded_terms
from rlplan.stages import Stage

Rows = npt.NDArray[Any]
Places = npt.NDArray[np.int64]


def front_rows(keys: Rows) -> Places:
    """Return the places of the rows that no other row matches or beats in every column, ascending.

    Lower is better. Of equal rows the first stays, so the result depends on nothing but the rows.

    Args:
        keys: Shape (rows, columns).
    """
    if len(keys) < 2:  # noqa: PLR2004 - one row is its own front
        return np.arange(len(keys))
    if len(keys) <= PAIRED_ROWS:
        return _front_of_pairs(keys)
    # Columns compare fastest one by one.
    columns, places = _after_strongest(np.ascontiguousarray(keys.T))
    # By the sum of all columns, what beats a row comes before it, and what beats many comes early. Ties go by the
    # columns, and then, the sort being stable, by place.
    order = np.lexsort((*columns[::-1], _scaled_sums(columns)))
    left, order = columns[:, order], places[order]
    kept: list[int] = []
    while len(order):
        # What is beaten is taken out once for several rows that beat it: that costs more than to compare.
        unbeaten, first = np.ones(len(order), dtype=bool), 0
        for _ in range(ROWS_AT_A_TIME):
            kept.append(int(order[first]))
            unbeaten &= _not_beaten(left, first)
            first += int(unbeaten[first:].argmax())
            if not unbeaten[first]:
                break
        left, order = left.compress(unbeaten, axis=1), order[unbeaten]
    return np.array(sorted(kept), dtype=np.int64)


# So few rows are compared each with each: less than to sort them.
PAIRED_ROWS = 64
LISTED_ROWS = 4  # and so few one by one: less than to make arrays of them


def _front_of_pairs(keys: Rows) -> Places:
    """Return the places of the front of few rows, as `front_rows` does."""
    if len(keys) <= LISTED_ROWS:
        rows = keys.tolist()
        kept = [j for j, row in enumerate(rows) if not _is_beaten(row, j, rows)]
        return np.array(kept, dtype=np.int64)
    # [i, j]: row j is lower than row i in some column, so that i does not beat it.
    lower = np.zeros((len(keys), len(keys)), dtype=bool)
    for column in keys.T:
        lower |= column < column[:, None]
    first = np.tri(len(keys), dtype=bool).T  # of equal rows; a row does not beat itself
    np.fill_diagonal(lower, True)
    beaten: Flags = ~lower & (lower.T | first)
    return np.flatnonzero(~beaten.any(axis=0))


def _is_beaten(row: list[float], place: int, rows: list[list[float]]) -> bool:
    """Tell whether another row beats one, or matches it and comes first."""
    for i, other in enumerate(rows):
        if i != place and not any(map(lt, row, other)) and (i < place or any(map(lt, other, row))):
            return True
    return False


# Rows that are compared with all others before those that they beat are taken out.
ROWS_AT_A_TIME = 16


def _scaled_sums(columns: Rows) -> Rows:
    """Return for each row the sum of its columns, each on its own scale. Shape (rows,)."""
    least = columns.min(axis=1, keepdims=True)
    spread = columns.max(axis=1, keepdims=True) - least
    sums: Rows = ((columns - least) / np.where(spread > 0, spread, 1)).sum(axis=0)
    return sums


def _not_beaten(columns: Rows, row: int) -> Flags:
    """Return which rows a row neither matches nor beats in every column. Shape (rows,)."""
    unbeaten: Flags = columns[0] < columns[0, row]
    for column in columns[1:]:
        unbeaten |= column < column[row]
    return unbeaten


def _after_strongest(columns: Rows) -> tuple[Rows, Places]:
    """Return the columns of the rows that are left by those which beat most, and their places, ascending.

    Of many rows most are beaten by a few, which are found without sorting all.
    """
    places = np.arange(columns.shape[1])
    if len(places) <= FEW_ROWS:
        return columns, places
    sums = _scaled_sums(columns)
    while len(places) > FEW_ROWS:
        row = int(sums.argmin())  # the first of equal ones
        sums[row] = np.inf
        stays = _not_beaten(columns, row)
        stays[row] = True
        columns, places, sums = columns.compress(stays, axis=1), places[stays], sums[stays]
        if len(places) > MOST_LEFT_FRACTION * len(stays):
            break
    return columns, places


# Where a row leaves more than this share of the others, those that come after it beat few as well.
MOST_LEFT_FRACTION = 0.9


# Groups of fewer rows are reduced together, row by row of each; larger ones pay for themselves.
FEW_ROWS = 256


def front_of_groups(keys: Rows, groups: Places) -> Places:
    """Return the places of the fronts of all groups, ascending: other groups' rows beat nothing."""
    if len(keys) < 2:  # noqa: PLR2004 - one row is its own front
        return np.arange(len(keys))
    order = np.argsort(groups, kind="stable")
    edges = np.flatnonzero(np.diff(groups[order])) + 1
    parts = np.split(order, edges)
    kept = [part[front_rows(keys[part])] for part in parts if len(part) > FEW_ROWS]
    few = [part for part in parts if len(part) <= FEW_ROWS]
    if few:
        places = np.sort(np.concatenate(few))
        kept.append(places[_fronts_together(keys[places], groups[places])])
    return np.sort(np.concatenate(kept))


def _fronts_together(keys: Rows, groups: Places) -> Places:
    """Return the places of the fronts of groups, in any order, as `front_rows` finds each of them."""
    spread = np.ptp(keys, axis=0)
    scaled = (keys - keys.min(axis=0)) / np.where(spread > 0, spread, 1)
    order = np.lexsort((*keys.T[::-1], scaled.sum(axis=1), groups))
    left, group = np.ascontiguousarray(keys[order].T), groups[order]
    kept: list[Places] = []
    while len(order):
        begins = np.concatenate([[True], group[1:] != group[:-1]])
        kept.append(order[begins])
        own = np.cumsum(begins) - 1
        unbeaten = np.zeros(len(order), dtype=bool)
        for column in left:
            unbeaten |= column < column[begins][own]
        left, order, group = left.compress(unbeaten, axis=1), order[unbeaten], group[unbeaten]
    return np.concatenate(kept)


class WeightSharding(NamedTuple):
    """Say how the weights of a role that generates are sharded where it trains.

    It decides what bringing them to generation costs and keeps, so that only options of one sharding
    compare.

    Attributes:
        away: Whether they are in host memory while the model generates.
    """

    tp: int
    pp: int
    cp: int
    ep: int
    expert_tp: int
    sharded: Zero
    away: bool = False


Chosen = tuple[tuple[str, TaskPlan], ...]


@dataclass(frozen=True, slots=True)
class RoleOption:
    """Hold the layouts of all tasks of one role with what they cost.

    Attributes:
        chosen: For each task its name, and its layout as a row of columns.
        preparation_seconds: Sum over its inference tasks.
        training_seconds: Sum over its training tasks.
        resident_bytes: What stays on each GPU while other roles of the pool run.
        transient_bytes: What the hungriest of its tasks takes on top.
        met_bytes: Buffers of groups of ranks, which stay once its tasks have met, but are a pool's only once; 0 where
            each role is a process, with whose residents its own buffers count.
        sharding: Of the weights of a role that generates; None for other roles.
    """

    chosen: tuple[tuple[str, LayoutColumns, int], ...]
    preparation_seconds: float
    training_seconds: float
    resident_bytes: int
    transient_bytes: int
    met_bytes: int = 0
    sharding: WeightSharding | None = None

    @property
    def layouts(self) -> Chosen:
        """Return the layouts by task name."""
        return tuple((name, columns.layout(row)) for name, columns, row in self.chosen)


@dataclass(slots=True)
class SearchCounts:
    """Count what a search looked at and what it dropped, by rule."""

    considered: dict[str, int] = field(default_factory=dict)
    pruned: dict[str, int] = field(default_factory=dict)

    def consider(self, what: str, count: int = 1) -> None:
        """Count candidates of one level."""
        self.considered[what] = self.considered.get(what, 0) + count

    def prune(self, rule: str, count: int = 1) -> None:
        """Count candidates dropped by one rule."""
        if count:
            self.pruned[rule] = self.pruned.get(rule, 0) + count


def sharding_of(train: TaskPlan, *, leaves: bool = False) -> WeightSharding:
    """Return how weights are sharded that train in a layout.

    Args:
        leaves: Whether weights leave the GPUs where the layout off-loads states.
    """
    # Optimizer states do not move; gradients that are sharded leave weights in shards as well.
    sharded = train.zero if train.zero >= GRADIENTS_SHARDED else 0
    return WeightSharding(
        train.tp,
        train.pp,
        train.cp,
        train.ep,
        train.expert_tp or 0,
        sharded,
        leaves and train.offload,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _TaskRows:
    """Hold one task's layouts that fit, a front for each cut of its role, with what they cost.

    Attributes:
        weights: Those that are resident.
        passing: Those that are there while the task runs, a part of what is transient.
        met: Buffers of groups of ranks, which no other bytes contain.
    """

    task: Task
    columns: LayoutColumns
    cut: Ints
    seconds: Floats
    weights: Ints
    passing: Ints
    resident: Ints
    transient: Ints
    met: Ints


Joint = list[tuple[_TaskRows, Ints]]


class RoleFront:
    """Cost all layouts of one role on sites of the same links, all in one table.

    What a layout infers or trains with takes and holds depends on its ranks and on their links; of its site's size
    nothing but whether that has several nodes (`rlplan.simulator.costs.setting.setting_on`).

    Args:
        sites: Alike by `links_of`.
        tally: Counts what is looked at and dropped.
        kept: Listings that jobs of other lengths share.

    Attributes:
        least: For each site resident and transient bytes of the leanest layout of the role's hungriest task, buffers of
            groups among the latter; None where a task has no layout.
    """

    def __init__(
        self,
        space: LayoutSpace,
        role: Role,
        sites: Sequence[Site],
        tally: SearchCounts,
        kept: KeptListings,
    ) -> None:
        self.space, self.role, self.sites, self.tally = space, role, sites, tally
        self.least: list[tuple[int, int] | None] = [None] * len(sites)
        own = [task for task in space.tasks if task.role == role]
        self.tasks = [task for task in own if task.has_model and not task.generates]
        self.generates = any(task.kind == "generate" for task in own)
        self.trains = any(task.kind == "train" for task in own)
        self.listing = listing_of(space, self.tasks, sites, kept)

    def options(self) -> list[list[RoleOption]]:
        """Return for each site the options that no other beats there in time and memory."""
        tally = self.tally
        joined = self._joined()
        if joined is None:
            return [[] for _ in self.sites]
        rows, (prepare, train, resident, transient, met) = joined
        fits = resident + transient + met <= self.space.capacity_bytes(self.sites[0])
        tally.prune("a role alone does not fit", int(np.sum(~fits)))
        places = np.flatnonzero(fits)
        keys = np.stack([prepare, train, resident, transient, met], axis=1)[places]
        sites = self.listing.cut_sites[rows[0][0].cut[rows[0][1][places]]]
        shardings = self._sharding_numbers(rows, places, sites)
        kept = front_of_groups(keys, shardings)
        tally.prune("another layout is better in time and memory", len(places) - len(kept))
        found = self._options(rows, keys[kept], places[kept], shardings[kept])
        edges = np.searchsorted(sites[kept], np.arange(len(self.sites) + 1)).tolist()
        return [found[first:last] for first, last in pairwise(edges)]

    def _joined(
        self,
    ) -> tuple[Joint, tuple[Floats, Floats, Ints, Ints, Ints]] | None:
        """Return every choice of one layout a task within a cut, with its times and bytes."""
        tables = [self._task_rows(task) for task in self.tasks]
        if not tables or any(not len(each.cut) for each in tables):
            return None
        chosen = [(tables[0], np.arange(len(tables[0].cut)))]
        for each in tables[1:]:
            left, right = _pairs(chosen[0][0].cut[chosen[0][1]], each.cut)
            chosen = [(rows, places[left]) for rows, places in chosen] + [(each, right)]
        if self._moves_alike:
            kept = self._moved_alike(chosen)
            self.tally.prune("not of the framework", int(np.sum(~kept)))
            chosen = [(rows, places[kept]) for rows, places in chosen]
        if not len(chosen[0][1]):
            return None
        prepare, train = self._stage(chosen, "preparation"), self._stage(chosen, "training")
        weights = np.max([rows.weights[places] for rows, places in chosen], axis=0)
        beside = sum(rows.resident[places] - rows.weights[places] for rows, places in chosen)
        # Weights that one task leaves resident need not come for another.
        there = weights > 0
        framework = self.space.facts.framework(self.space.job.framework)
        if self.role == "reference" and framework.swaps_reference:
            # They may lie in place of the actor's: what it has there no row of a reference alone tells.
            there = np.ones_like(there)
        transient = np.max(
            [
                rows.transient[places] - np.where(there, rows.passing[places], 0)
                for rows, places in chosen
            ],
            axis=0,
        )
        met = np.max([rows.met[places] for rows, places in chosen], axis=0)
        resident, transient, met = self._in_its_process(chosen, weights + beside, transient, met)
        return chosen, (prepare, train, resident, transient, met)

    def _in_its_process(
        self, chosen: Joint, resident: Ints, transient: Ints, met: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Return the bytes of a role whose process, where it has one, keeps its groups' buffers and its allocator's blocks.

        As `staying_on` and `kept_blocks` of the simulator have it. Blocks count as what stays, and a task takes what it has beyond its own
        role's. Weights that are sent count beside the actor's blocks too, though they lie in these.
        """
        framework = self.space.facts.framework(self.space.job.framework)
        if not framework.host.processes_by_role:
            return resident, transient, met
        resident, met = resident + met, np.zeros_like(met)
        if framework.keeps_blocks:
            context = self.space.facts.device(self.sites[0].device).context_bytes
            kept = np.max(
                [
                    np.where(rows.columns.offload[places] > 0, 0, rows.transient[places] - context)
                    for rows, places in chosen
                ],
                axis=0,
            )
            resident, transient = resident + kept, transient - kept
        return resident, transient, met

    @property
    def _moves_alike(self) -> bool:
        """Tell whether one setting off-loads states in all tasks of the role: as frameworks have it."""
        return self.space.arranged is not None and self.trains

    def _moved_alike(self, chosen: Joint) -> Flags:
        """Tell in which choices all tasks of the role off-load alike, and as its framework can."""
        assert self.space.arranged is not None, "a framework runs them"
        offload = np.stack([rows.columns.offload[places] for rows, places in chosen])
        choices = self.space.arranged.arrangement.offload
        allowed = np.isin(offload[0], [int(each) for each in choices])
        return np.asarray(allowed & np.all(offload == offload[0], axis=0))

    def _stage(self, chosen: Joint, stage: Stage) -> Floats:
        seconds = np.zeros(len(chosen[0][1]))
        for rows, places in chosen:
            if rows.task.stage == stage:
                seconds = seconds + rows.seconds[places]
        return seconds

    def _task_rows(self, task: Task) -> _TaskRows:
        """Cost all layouts of one task that fit, and keep a front for each cut."""
        space, tally = self.space, self.tally
        listed = self.listing.tasks[task.name]
        columns, cut = listed.columns, listed.cut
        for rule, count in listed.dropped.items():
            tally.prune(rule, count)
        tally.consider("layouts of tasks", len(columns))
        if not len(columns):
            nothing = np.zeros(0, dtype=np.int64)
            return _TaskRows(task, columns, cut, np.zeros(0), *[nothing] * 5)
        first = PlacedTask(task, columns.layout(0), self.sites[0], space.job, space.facts)
        table = PlacedTasks(columns, first)
        memory = layout_memory(table)
        resident, transient = memory.resident_bytes, memory.transient_bytes
        met = memory.transient[COMMUNICATORS]
        fits = resident + transient <= space.capacity_bytes(self.sites[0])
        fits &= has_room_to_serve(table)
        self._note_leanest(self.listing.cut_sites[cut], resident, transient)
        tally.prune("a task alone does not fit", int(np.sum(~fits)))
        places = np.flatnonzero(fits)
        columns, cut = columns.rows(places), cut[places]
        if space.is_priced and len(columns):
            seconds = layout_seconds(PlacedTasks(columns, replace(first, job=space.priced)))
        else:  # memory alone tells them apart, of which hosts have an end too
            seconds = _host_bytes(table, memory)[places]
        resident, met = resident[places], met[places]
        transient = transient[places] - met
        group = 2 * cut + columns.offload if self._moves_alike else cut
        kept = front_of_groups(np.stack([seconds, resident, transient, met], axis=1), group)
        tally.prune("another layout of the task is better in time and memory", len(cut) - len(kept))
        return _TaskRows(
            task,
            columns.rows(kept),
            cut[kept],
            seconds[kept],
            memory.weights_bytes[places][kept],
            memory.passing_weights_bytes[places][kept],
            resident[kept],
            transient[kept],
            met[kept],
        )

    def _note_leanest(self, sites: Ints, resident: Ints, transient: Ints) -> None:
        """Remember the leanest of a task's layouts on each site, if no task before needs more there.

        Args:
            sites: Places of the layouts' sites, ascending. Shape (layouts,), as the bytes.
        """
        whole = resident + transient
        edges = np.searchsorted(sites, np.arange(len(self.sites) + 1)).tolist()
        for site, (first, last) in enumerate(pairwise(edges)):
            if first == last:
                continue
            leanest, known = first + int(np.argmin(whole[first:last])), self.least[site]
            if known is None or whole[leanest] > sum(known):
                self.least[site] = int(resident[leanest]), int(transient[leanest])

    def _sharding_numbers(self, chosen: Joint, places: Ints, sites: Ints) -> Ints:
        """Return equal numbers for options of one site and sharding; of roles that do not generate, of one site.

        Args:
            places: Those asked for among what was joined, each on one of `sites`. Shape (options,), both.
        """
        trained = next((each for each in chosen if each[0].task.kind == "train"), None)
        if not self.generates or trained is None:
            return sites
        columns, rows = trained[0].columns, trained[1][places]
        sharded = columns.zero == FULLY_SHARDED
        away = columns.offload * self.space.weights_leave
        cut = (columns.tp, columns.pp, columns.cp, columns.ep, columns.expert_tp, sharded, away)
        keys = np.column_stack([sites, np.stack(cut, axis=1)[rows]])
        _, number = np.unique(keys, axis=0, return_inverse=True)
        return np.asarray(number.reshape(-1))

    def _options(
        self, chosen: Joint, keys: Rows, places: Ints, shardings: Ints
    ) -> list[RoleOption]:
        """Return options with these seconds and bytes, each of a place among what was joined."""
        known: dict[int, WeightSharding | None] = {}
        for number, place in zip(shardings.tolist(), places.tolist(), strict=True):
            if number not in known:
                known[number] = self._sharding(chosen, place)
        tasks = [
            (rows.task.name, rows.columns, rows_at[places].tolist()) for rows, rows_at in chosen
        ]
        each = [[(name, columns, row) for row in at] for name, columns, at in tasks]
        found = zip(zip(*each, strict=True), keys.tolist(), shardings.tolist(), strict=True)
        return [
            RoleOption(
                layouts, prepare, train, int(resident), int(transient), int(met), known[number]
            )
            for layouts, (prepare, train, resident, transient, met), number in found
        ]

    def _sharding(self, chosen: Joint, place: int) -> WeightSharding | None:
        """Return how the weights of a role that trains and generates are sharded at a place."""
        if not (self.generates and self.trains):
            return None
        rows, places = next(each for each in chosen if each[0].task.name == f"{self.role}.update")
        layout = rows.columns.layout(int(places[place]))
        return sharding_of(layout, leaves=self.space.weights_leave)


def _host_bytes(table: PlacedTasks, memory: LayoutMemory) -> Floats:
    """Return the bytes of states, and of layers' inputs, that each layout brings to the host. Shape (layouts,)."""
    held = memory.off_loaded_bytes(off_loaded_terms(table.any)) * table.columns.offload
    return np.asarray(held + inputs_away_bytes(table))


def _pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Return the places of all pairs with equal values, those of the left ones ascending; both sides ascend."""
    begins = np.searchsorted(right, left, side="left")
    counts = np.searchsorted(right, left, side="right") - begins
    first = np.repeat(np.arange(len(left)), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    return first, np.repeat(begins, counts) + np.arange(len(first)) - before


def links_of(site: Site) -> Hashable:
    """Return what decides what a layout that infers or trains takes on a site, beside its ranks."""
    links = (site.device, site.gpus_per_node, site.inter_node_bytes_per_second, site.network)
    return *links, site.spans_nodes


# Sites whose layouts are costed in one table: a table of many rows costs little more than one of few, and takes memory.
SITES_TOGETHER = 32


class OptionTable:
    """List the options of roles on sites, each computed once.

    Args:
        kept: Listings that jobs of other lengths share.
    """

    def __init__(self, space: LayoutSpace, kept: KeptListings | None = None) -> None:
        self.space, self.tally = space, SearchCounts()
        self._listings: KeptListings = {} if kept is None else kept
        self._roles: dict[tuple[Role, Site], list[RoleOption]] = {}
        self._least: dict[tuple[Role, Site], tuple[int, int] | None] = {}

    def role_options(self, role: Role, site: Site) -> list[RoleOption]:
        """Return the Pareto front of a role's options that fit a site's GPU by themselves."""
        self.prepare(role, (site,))
        return self._roles[role, site]

    def prepare(self, role: Role, sites: Iterable[Site]) -> None:
        """Find a role's options on sites that will be asked for, as far as they are not known, many at a time."""
        alike: dict[Hashable, list[Site]] = {}
        for site in dict.fromkeys(sites):
            if (role, site) not in self._roles:
                # Engines that serve a model look at their site themselves.
                key = site if self.space.job.serves else links_of(site)
                alike.setdefault(key, []).append(site)
        for new in alike.values():
            for first in range(0, len(new), SITES_TOGETHER):
                self._cost(role, new[first : first + SITES_TOGETHER])

    def _cost(self, role: Role, sites: Sequence[Site]) -> None:
        front = RoleFront(self.space, role, sites, self.tally, self._listings)
        for site, options, least in zip(sites, front.options(), front.least, strict=True):
            self._roles[role, site], self._least[role, site] = options, least

    def least_bytes(self, role: Role, site: Site) -> tuple[int, int] | None:
        """Return resident and transient bytes of a role's leanest layout, fitting or not.

        None if it cannot be laid out at all.
        """
        self.role_options(role, site)
        return self._least.get((role, site))

    def generate_options(self, site: Site) -> list[TaskPlan]:
        """Return the layouts of generation on a site, not costed yet."""
        layouts, pruned = generations_of(self.space, site, self._listings)
        self.tally.prune("pinned by the user", pruned)
        self.tally.consider("layouts of generation", len(layouts))
        return layouts
