"""Plans one change away from a plan, drawn at random: the moves of local search."""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, Role
from rlplan.plan import USUAL_MODE, Mode, Plan, ResourcePool, TaskPlan
from rlplan.planner.layouts.settings import (
    PoolCuts,
    Sizes,
    generate_layouts,
    infer_layouts,
    train_layouts,
)
from rlplan.planner.placements.allocations import Share, packing_order, pool_sizes, sites_for
from rlplan.planner.placements.partitions import GENERATION, ColocatedSet, PlacedModel, placed_roles
from rlplan.planner.plans.assembly import assemble, with_largest_share
from rlplan.profiles.facts import Facts
from rlplan.simulator.placed import Site

ACTOR: Final = "actor"


@dataclass(frozen=True, slots=True)
class State:
    """Hold a complete choice.

    Attributes:
        pools: A share of the cluster and the models on it, for every pool.
        layouts: By task name; of no pool yet.
        priority: Task names in the order in which they get their pools; what comes first is first.
    """

    pools: tuple[tuple[Share, ColocatedSet], ...]
    layouts: FrozenDict[str, TaskPlan]
    priority: tuple[str, ...]
    mode: Mode = USUAL_MODE

    def pool_of(self, member: PlacedModel) -> int:
        """Return the place of the pool that holds a model."""
        return next(index for index, (_, members) in enumerate(self.pools) if member in members)


class NeighbourDraws:
    """Draw first plans of a job and neighbours of plans.

    Args:
        modes: Modes in which plans may run.
    """

    def __init__(self, job: Job, facts: Facts, random: Random, modes: tuple[Mode, ...]) -> None:
        self.job, self.facts, self.random, self.modes = job, facts, random, modes
        self.algorithm = load_algorithm(job.algorithm)
        self.tasks = tasks_of(self.algorithm, job)
        self._placed = tuple(task for task in self.tasks if task.has_model)
        self._names = tuple(task.name for task in self.tasks)
        self.members: ColocatedSet = (*placed_roles(job), GENERATION)
        self._cuts: dict[tuple[PlacedModel, Site], list[Sizes]] = {}

    def first(self) -> State | None:
        """Return a plan with everything on one pool; None if no layout is on the pool drawn."""
        share = self.random.choice(self._shares())
        everywhere = State(((share, self.members),), FrozenDict(), self._names)
        return self._laid_out(everywhere, self.members)

    def neighbour(self, state: State) -> State | None:
        """Return a plan one change away; None if the change drawn is not possible."""
        moves = (
            self._retune,
            self._split_anew,
            self._resize,
            self._move_member,
            self._change_mode,
            self._reorder,
        )
        return self.random.choices(moves, weights=(4, 6, 4, 4, 2, 1))[0](state)

    def plan(self, state: State, made_by: str) -> Plan:
        """Return the plan that a state stands for."""
        pools: list[ResourcePool] = []
        pool_of: dict[PlacedModel, str] = {}
        for number, index in enumerate(packing_order([share for share, _ in state.pools])):
            share, members = state.pools[index]
            roles = tuple(dict.fromkeys(_role(member) for member in members))
            device = self.job.cluster[share.group].gpu
            pool = ResourcePool(name=f"p{number}", device=device, gpus=share.gpus, roles=roles)
            pools.append(pool)
            pool_of |= dict.fromkeys(members, pool.name)
        layouts = {
            task.name: replace(state.layouts[task.name], pool=pool_of[_member(task)])
            for task in self._placed
        }
        order = {
            pool.name: tuple(
                name
                for name in state.priority
                if name in layouts and layouts[name].pool == pool.name
            )
            for pool in pools
        }
        plan = assemble(self.job, pools, layouts, made_by=made_by, mode=state.mode, order=order)
        return with_largest_share(plan, self.facts)

    def _retune(self, state: State) -> State | None:
        """Draw another setting of one task, its cut as it is."""
        task = self.random.choice(self._placed)
        old, sites = state.layouts[task.name], self._sites(state)
        assert sites is not None, "a state's pools fit the cluster"
        cut = Sizes(old.tp, old.pp, old.dp, old.zero, old.cp, old.ep, old.expert_tp or 0)
        choices = self._settings(task, cut, sites[state.pool_of(_member(task))])
        return replace(
            state, layouts=state.layouts.with_item(task.name, self.random.choice(choices))
        )

    def _split_anew(self, state: State) -> State | None:
        """Draw another cut of one model."""
        member = self.random.choice(self.members)
        kept = {
            task.name: state.layouts[task.name] for task in self._placed if _member(task) != member
        }
        return self._laid_out(replace(state, layouts=FrozenDict(kept)), (member,))

    def _resize(self, state: State) -> State | None:
        """Draw another share of the cluster for one pool."""
        at = self.random.randrange(len(state.pools))
        members = state.pools[at][1]
        pools = (*state.pools[:at], (self.random.choice(self._shares()), members))
        return self._laid_out(replace(state, pools=(*pools, *state.pools[at + 1 :])), members)

    def _move_member(self, state: State) -> State | None:
        """Put one model on another pool, or on one of its own."""
        member = self.random.choice(self.members)
        new = (self.random.choice(self._shares()), ())
        pools = [
            (share, tuple(each for each in members if each != member))
            for share, members in (*state.pools, new)
        ]
        target = self.random.randrange(len(pools))
        share, members = pools[target]
        pools[target] = (share, tuple(each for each in self.members if each in (*members, member)))
        return self._laid_out(replace(state, pools=tuple(pools)), (member,))

    def _change_mode(self, state: State) -> State | None:
        if state.pool_of(GENERATION) == state.pool_of(ACTOR):
            return None
        return replace(state, mode=self.random.choice(self.modes))

    def _reorder(self, state: State) -> State:
        """Let two tasks of a stage change places in the order in which they get their pools."""
        one, other = self.random.choice(self.tasks), self.random.choice(self.tasks)
        if one.stage != other.stage:
            return state
        swapped = {one.name: other.name, other.name: one.name}
        return replace(state, priority=tuple(swapped.get(n, n) for n in state.priority))

    def _shares(self) -> list[Share]:
        return [
            Share(index, size)
            for index, group in enumerate(self.job.cluster)
            for size in pool_sizes(group)
        ]

    def _laid_out(self, state: State, members: ColocatedSet) -> State | None:
        """Return a state in which models have layouts for their pools, like the ones that they had."""
        state = replace(state, pools=tuple(pool for pool in state.pools if pool[1]))
        if state.pool_of(GENERATION) == state.pool_of(ACTOR):
            state = replace(state, mode=USUAL_MODE)
        sites = self._sites(state)
        if sites is None:
            return None
        found = dict(state.layouts)
        for member in members:
            chosen = self._layouts(member, sites[state.pool_of(member)], found)
            if chosen is None:
                return None
            found |= chosen
        return replace(state, layouts=FrozenDict(found))

    def _sites(self, state: State) -> tuple[Site, ...] | None:
        return sites_for(self.job, [share for share, _ in state.pools])

    def _layouts(
        self, member: PlacedModel, site: Site, before: dict[str, TaskPlan]
    ) -> dict[str, TaskPlan] | None:
        """Return layouts of a model's tasks: cut and set as before where that can be, else at random."""
        cuts = self._cuts_on(member, site)
        if not cuts:
            return None
        tasks = [task for task in self._placed if _member(task) == member]
        tasks.sort(key=lambda task: task.kind != "train")  # its cut says how weights are sharded
        old = next((before[task.name] for task in tasks if task.name in before), None)
        alike = [cut for cut in cuts if old and (cut.tp, cut.pp, cut.zero) == _cut(old)]
        cut = self.random.choice(alike or cuts)
        return {
            task.name: self._setting(self._settings(task, cut, site), before.get(task.name))
            for task in tasks
        }

    def _setting(self, choices: list[TaskPlan], before: TaskPlan | None) -> TaskPlan:
        kept = [
            each
            for each in choices
            if before
            and (each.micro_batch, each.recompute, each.max_running)
            == (before.micro_batch, before.recompute, before.max_running)
        ]
        return self.random.choice(kept or choices)

    def _settings(self, task: Task, cut: Sizes, site: Site) -> list[TaskPlan]:
        """Return the layouts of a task in one cut."""
        cuts = self._pool_cuts(_member(task), site)
        if task.kind == "generate":
            every = generate_layouts(cuts)
            return [each for each in every if (each.tp, each.pp) == (cut.tp, cut.pp)]
        engine = cuts.engine
        if task.kind == "train":
            return list(train_layouts(cut, engine, self.job, cuts.model))
        trains = any(each.kind == "train" and each.role == task.role for each in self.tasks)
        return list(infer_layouts(cut, engine, self.job, trains=trains))

    def _cuts_on(self, member: PlacedModel, site: Site) -> list[Sizes]:
        if (member, site) not in self._cuts:
            self._cuts[member, site] = self._find_cuts(member, site)
        return self._cuts[member, site]

    def _find_cuts(self, member: PlacedModel, site: Site) -> list[Sizes]:
        cuts = self._pool_cuts(member, site)
        if member == GENERATION:
            every = generate_layouts(cuts)
            return list(dict.fromkeys(Sizes(each.tp, each.pp, each.dp) for each in every))
        kinds = {task.kind for task in self.tasks if _member(task) == member}
        if "train" not in kinds:
            return list(cuts.infer())
        return [
            cut
            for cut in cuts.train()
            if "infer" not in kinds or cuts.lists_copies(cut.dp, trains=False)
        ]

    def _pool_cuts(self, member: PlacedModel, site: Site) -> PoolCuts:
        """Return the cuts of a model over a site."""
        engines = self.job.engines
        name = engines.generate if member == GENERATION else engines.train
        model, engine = self.job.architecture(_role(member)), self.facts.engine(name or "")
        return PoolCuts(model, engine, self.job, site.gpus, site.gpus_per_node)


def _member(task: Task) -> PlacedModel:
    return GENERATION if task.kind == "generate" else task.role


def _role(member: PlacedModel) -> Role:
    return ACTOR if member == GENERATION else member


def _cut(layout: TaskPlan) -> tuple[int, int, int]:
    return (layout.tp, layout.pp, layout.zero)
