"""Simulated annealing: random changes, judged by the simulator, the worse ones taken now and then.

The method by which ReaL maps RLHF (Mei et al. 2025, ReaL, MLSys, section 5: a Markov chain over
device meshes and layouts with a fixed budget of time). Here it is what the exact search is measured
against: same space, same simulator, no bound.

A change that makes a plan worse by the factor f is taken with the probability f^(-1/t), and the
temperature t falls by a constant factor a step or second. A plan that does not fit, or that breaks a
limit, counts as if it were worse by how far it is off.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.errors import InfeasibleError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, Role, Specs
from rlplan.plan import USUAL_MODE, Mode, Plan, ResourcePool, TaskPlan
from rlplan.planner.layouts.settings import (
    PoolCuts,
    Sizes,
    generate_layouts,
    infer_layouts,
    train_layouts,
)
from rlplan.planner.objectives import load_objective
from rlplan.planner.placements.allocations import Share, packing_order, pool_sizes, sites_for
from rlplan.planner.placements.partitions import GENERATION, ColocatedSet, PlacedModel, placed_roles
from rlplan.planner.plans.assembly import assemble, with_largest_share
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.specs import allowed_modes, violations
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Candidate, Forecast, SearchResult
from rlplan.simulator.placed import Site
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.assemble import batch_tokens

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
        shares = [share for share, _ in state.pools]
        for number, index in enumerate(packing_order(self.job, shares)):
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


Progress = Callable[[int, int, str], None]

HOTTEST, COLDEST = 0.3, 0.003
# So much worse counts a plan that needs twice the memory that there is: beyond what the seconds of
# a job's sensible layouts differ by.
PENALTY_FACTOR = 100.0
FIRST_TRIES = 100


@dataclass(frozen=True, slots=True)
class _EvaluatedState:
    state: State
    plan: Plan
    forecast: Forecast
    worth: float
    is_sound: bool


def search(  # noqa: PLR0913 -- what every searcher takes, and this one's budget
    job: Job,
    facts: Facts,
    *,
    pinned: Pinned = NOTHING_PINNED,
    progress: Progress | None = None,
    objective: str | None = None,
    specs: Specs | None = None,
    seconds: float | None = 60.0,
    steps: int | None = None,
    seed: int = 0,
) -> SearchResult:
    """Return the best plan that a random walk met within its seconds or steps.

    The result certifies nothing: its bound is 0 and its gap 1. With steps alone, the same seed gives
    the same plan on any machine.

    Args:
        objective: What to minimise; None takes the job's.
        specs: Limits that the plan keeps; None takes the job's.
        seconds: Of the processor's time, so that a busy machine does not shorten the walk; None sets
            no such end.

    Raises:
        InfeasibleError: No plan that it met fits and keeps the limits.
    """
    assert pinned == NOTHING_PINNED, "annealing pins nothing for the user"
    assert seconds is not None or steps is not None, "a walk needs an end"
    specs = job.specs if specs is None else specs
    judge = _Judge(job, facts, objective or job.objective, specs)
    walk = NeighbourDraws(job, facts, Random(seed), allowed_modes(specs))
    clock = _Clock(seconds, steps)
    here = judge.first(walk)
    best = here
    while here is not None and best is not None and not clock.is_over:
        if progress:
            progress(round(100 * clock.share), 100, "annealing")
        temperature = HOTTEST * (COLDEST / HOTTEST) ** clock.share
        clock.step()
        state = walk.neighbour(here.state)
        if state is None or state == here.state:
            continue
        there = judge.judged(state, walk)
        if math.log(there.worth / here.worth) <= -temperature * math.log(1 - walk.random.random()):
            here = there
        if (not there.is_sound, there.worth) < (not best.is_sound, best.worth):
            best = there
    if best is None or not best.is_sound:
        raise InfeasibleError(
            f"annealing met no plan of job {job.name!r} that fits and keeps its limits, in "
            f"{clock.taken} steps"
        )
    return _result(best, clock, judge, facts)


class _Judge:
    """Say what plans are worth, each once."""

    def __init__(self, job: Job, facts: Facts, objective: str, specs: Specs) -> None:
        self.job, self.facts, self.specs = job, facts, specs
        self.objective, self.tokens = load_objective(objective), batch_tokens(job)
        self.known: dict[Plan, tuple[Forecast, float, bool]] = {}

    def first(self, walk: NeighbourDraws) -> _EvaluatedState | None:
        """Return the best of a few random plans to begin with."""
        drawn = (walk.first() for _ in range(FIRST_TRIES))
        judged = [self.judged(state, walk) for state in drawn if state is not None]
        return min(judged, key=lambda each: each.worth, default=None)

    def judged(self, state: State, walk: NeighbourDraws) -> _EvaluatedState:
        plan = walk.plan(state, "annealing")
        if plan not in self.known:
            forecast = simulate(plan, self.facts)
            factor = self._penalty(plan, forecast)
            self.known[plan] = (
                forecast,
                factor * self.objective.value(forecast, self.tokens),
                factor == 1.0,
            )
        return _EvaluatedState(state, plan, *self.known[plan])

    def _penalty(self, plan: Plan, forecast: Forecast) -> float:
        """Return by how much worse a plan counts for what it breaks; 1 if it breaks nothing."""
        excess = sum(
            max(0.0, each.gpu_peak_bytes / each.capacity_bytes - 1) for each in forecast.memory
        )
        for each in violations(plan, forecast, self.specs):
            excess += abs(each.found - each.limit) / max(abs(each.limit), 1e-9)
        return 1 + PENALTY_FACTOR * excess


class _Clock:
    """Count steps and seconds against the budget."""

    def __init__(self, seconds: float | None, steps: int | None) -> None:
        self.seconds, self.steps, self.taken = seconds, steps, 0
        self.started, self.begun = time.perf_counter(), time.process_time()

    def step(self) -> None:
        self.taken += 1

    @property
    def elapsed_seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def share(self) -> float:
        """Return how much of the budget is used, from 0 to 1."""
        shares = [0.0]
        if self.seconds is not None:
            shares.append((time.process_time() - self.begun) / self.seconds)
        if self.steps is not None:
            shares.append(self.taken / max(1, self.steps))
        return min(1.0, max(shares))

    @property
    def is_over(self) -> bool:
        return self.share >= 1


def _result(best: _EvaluatedState, clock: _Clock, judge: _Judge, facts: Facts) -> SearchResult:
    return SearchResult(
        plans=(
            Candidate(
                plan=best.plan,
                forecast=best.forecast,
                loses_seconds=0.0,
                loses_to=FrozenDict(dict.fromkeys(best.forecast.stage_seconds, 0.0)),
            ),
        ),
        infeasible=(),
        considered=FrozenDict({"steps": clock.taken, "simulated plans": len(judge.known)}),
        pruned=FrozenDict(),
        bound_seconds=0.0,
        gap=1.0,
        search_seconds=clock.elapsed_seconds,
        profile=facts.label,
    )
