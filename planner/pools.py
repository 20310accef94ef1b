"""Level 1, second half: what a colocated set can do on a pool, its roles' memories together.

Roles of a pool run by turns, so their stage times add up, their resident bytes add up, and of their
transient bytes the largest counts. What generation may fill with its KV cache is what is left.
"""

from dataclasses import dataclass, replace

from planner.layouts import Sizes
from planner.options import OptionTable, RoleOption, TaskOption
from planner.pareto import front
from planner.placements import ColocatedSet
from rlplan.plan import TaskPlan, TransitionName
from simulator.costs import task_cost, transition_cost
from simulator.memory import generation_kv_bytes
from simulator.site import Site

ACTOR = "actor"


@dataclass(frozen=True, slots=True)
class PoolOption:
    """Hold layouts for every task of a pool.

    Attributes:
        layouts: By task name.
        generation_seconds: Transition and generation; 0 on pools without the actor.
    """

    layouts: tuple[tuple[str, TaskPlan], ...]
    transition: TransitionName | None
    generation_seconds: float
    preparation_seconds: float
    training_seconds: float
    resident_bytes: int
    transient_bytes: int


@dataclass(frozen=True, slots=True)
class Misfit:
    """Hold the set of layouts that comes nearest to fitting a pool, and by how much it does not.

    Attributes:
        needed_bytes: Least bytes that one GPU needs.
        capacity_bytes: What it has.
    """

    members: ColocatedSet
    site: Site
    needed_bytes: int
    capacity_bytes: int
    reason: str = ""


EMPTY = PoolOption((), None, 0.0, 0.0, 0.0, 0, 0)


class PoolTable:
    """List the options of colocated sets on sites, each computed once."""

    def __init__(self, options: OptionTable) -> None:
        self.options = options
        self._fronts: dict[tuple[ColocatedSet, Site], list[PoolOption]] = {}
        self._generate_seconds: dict[tuple[TaskPlan, Site, int], float | None] = {}

    def pool_options(self, members: ColocatedSet, site: Site) -> list[PoolOption]:
        """Return the front of a set's options that fit a site's GPUs together."""
        key = (members, site)
        if key not in self._fronts:
            self._fronts[key] = self._front(members, site)
        return self._fronts[key]

    def misfit(self, members: ColocatedSet, site: Site) -> Misfit | None:
        """Return why a set does not fit a site: the least bytes it needs; None if it cannot be laid out."""
        least = [self.options.least_memory(role, site) for role in members]
        known = [option for option in least if option is not None]
        if len(known) < len(least):
            return None
        needed = sum(option.resident_bytes for option in known)
        needed += max(option.transient_bytes for option in known)
        return Misfit(members, site, needed, self.options.capacity_bytes(site))

    def _front(self, members: ColocatedSet, site: Site) -> list[PoolOption]:
        capacity = self.options.capacity_bytes(site)
        partial = [EMPTY]
        others = [role for role in members if role != ACTOR]
        for role in others:
            joined = [
                _join(pool, option)
                for pool in partial
                for option in self.options.role_options(role, site)
            ]
            partial = self._kept(joined, capacity)
        if ACTOR in members:
            partial = self._kept(self._with_actor(partial, site, capacity), capacity)
        return front(partial, _speed_key)

    def _kept(self, joined: list[PoolOption], capacity: int) -> list[PoolOption]:
        tally = self.options.tally
        tally.consider("layouts of pools", len(joined))
        fitting = [
            item for item in joined if item.resident_bytes + item.transient_bytes <= capacity
        ]
        tally.prune("colocated roles do not fit together", len(joined) - len(fitting))
        kept = front(fitting, _pool_key)
        tally.prune("another layout of the pool is better", len(fitting) - len(kept))
        return kept

    def _with_actor(self, partial: list[PoolOption], site: Site, capacity: int) -> list[PoolOption]:
        generates = self.options.generate_options(site)
        trained = self.options.role_options("actor", site)
        joined = [(_join(pool, option), option) for pool in partial for option in trained]
        joined = [
            (pool, option)
            for pool, option in joined
            if pool.resident_bytes + pool.transient_bytes <= capacity
        ]
        found = []
        for pool, actor in joined:
            for generate in generates:
                complete = self._with_generation(pool, actor, generate, site)
                if complete is not None:
                    found.append(complete)
        return found

    def _with_generation(
        self, pool: PoolOption, actor: RoleOption, generate: TaskOption, site: Site
    ) -> PoolOption | None:
        train = next(option.layout for option in actor.tasks if option.task.kind == "train")
        transition = transition_for(train, generate.layout)
        kv_bytes = generation_kv_bytes(
            pool.resident_bytes,
            train,
            generate.layout,
            transition,
            site,
            self.options.job,
            self.options.facts,
        )
        seconds = self._seconds_of_generation(generate, site, kv_bytes)
        if seconds is None:
            self.options.tally.prune("no room for the KV cache of one sequence")
            return None
        move = transition_cost(
            transition,
            self.options.job.architecture("actor"),
            train,
            generate.layout,
            site,
            site,
            True,
            self.options.job,
            self.options.facts,
        )
        return replace(
            pool,
            layouts=((generate.task.name, generate.layout), *pool.layouts),
            transition=transition,
            generation_seconds=seconds + move.total.seconds,
        )

    def _seconds_of_generation(
        self, generate: TaskOption, site: Site, kv_bytes: float
    ) -> float | None:
        key = (generate.layout, site, round(kv_bytes))
        if key not in self._generate_seconds:
            job, facts = self.options.job, self.options.facts
            cost = task_cost(generate.task, generate.layout, site, job, facts, kv_bytes=kv_bytes)
            seconds = cost.total.seconds
            self._generate_seconds[key] = seconds if seconds < float("inf") else None
        return self._generate_seconds[key]


def transition_for(train: TaskPlan, generate: TaskPlan) -> TransitionName:
    """Return the cheapest transition that brings one layout of a pool to another."""
    if (train.tp, train.pp) == (generate.tp, generate.pp):
        return "none"
    if train.tp % generate.tp == 0 and train.pp % generate.pp == 0:
        return "hybridflow"
    return "all-gather"


def sizes_of(layout: TaskPlan) -> Sizes:
    """Return a layout's parallel sizes."""
    return Sizes(layout.tp, layout.pp, layout.dp)


def _join(pool: PoolOption, option: RoleOption) -> PoolOption:
    return replace(
        pool,
        layouts=(*pool.layouts, *((chosen.task.name, chosen.layout) for chosen in option.tasks)),
        preparation_seconds=pool.preparation_seconds + option.preparation_seconds,
        training_seconds=pool.training_seconds + option.training_seconds,
        resident_bytes=pool.resident_bytes + option.resident_bytes,
        transient_bytes=max(pool.transient_bytes, option.transient_bytes),
    )


def _pool_key(pool: PoolOption) -> tuple[float, ...]:
    return (*_speed_key(pool), pool.resident_bytes, pool.transient_bytes)


def _speed_key(pool: PoolOption) -> tuple[float, ...]:
    return (pool.generation_seconds, pool.preparation_seconds, pool.training_seconds)
