"""Level 1, second half: what a colocated set can do on a pool, its roles' memories together.

Roles of a pool run by turns, so their stage times add up, their resident bytes add up, and of their
transient bytes the largest counts. What generation may fill with its KV cache is what is left.
"""

import bisect
import math
from dataclasses import dataclass, replace
from itertools import product

from planner.options import OptionTable, RoleOption, TaskOption
from planner.pareto import front
from planner.placements import ColocatedSet
from rlplan.job import Role
from rlplan.plan import TaskPlan, TransitionName
from simulator.costs import task_cost, transition_cost
from simulator.memory import generation_kv_bytes
from simulator.site import Site
from simulator.task_memory import least_kv_bytes, useful_kv_bytes

ACTOR = "actor"


@dataclass(frozen=True, slots=True)
class Generation:
    """Hold how a pool generates, and with how much memory.

    Attributes:
        kv_bytes: What all residents of the pool leave to the KV cache on each GPU.
        useful_bytes: What its sequences can fill at most.
        move_seconds: The transition before it.
        seconds: What it takes with `costed_bytes` of KV cache, which is a lower bound while these
            are more than it has: a larger cache never makes generation slower.
    """

    option: TaskOption
    transition: TransitionName
    kv_bytes: float
    useful_bytes: float
    move_seconds: float
    seconds: float
    costed_bytes: float

    @property
    def is_exact(self) -> bool:
        """Tell whether the seconds are those of the cache that it has."""
        return self.costed_bytes <= self.kv_bytes

    @property
    def next_bytes(self) -> float:
        """Return the cache to cost next: a power of two below the useful size, then its own.

        Few different sizes share the first, and most options are out of the race after it.
        """
        halvings = math.floor(math.log2(self.useful_bytes / self.kv_bytes))
        rough = self.useful_bytes / 2**halvings
        return rough if rough < self.costed_bytes else self.kv_bytes


@dataclass(frozen=True, slots=True)
class PoolOption:
    """Hold layouts for every task of a pool.

    Attributes:
        layouts: By task name, generation's excepted.
        generation: None on pools without the actor.
    """

    layouts: tuple[tuple[str, TaskPlan], ...] = ()
    generation: Generation | None = None
    preparation_seconds: float = 0.0
    training_seconds: float = 0.0
    resident_bytes: int = 0

    @property
    def generation_seconds(self) -> float:
        """Return the transition's and generation's seconds, or a lower bound on them."""
        chosen = self.generation
        return chosen.move_seconds + chosen.seconds if chosen else 0.0

    @property
    def is_exact(self) -> bool:
        """Tell whether the seconds are those of the cost model rather than a bound."""
        return self.generation is None or self.generation.is_exact


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


class PoolTable:
    """List the options of colocated sets on sites, each computed once."""

    def __init__(self, options: OptionTable) -> None:
        self.options = options
        self._fronts: dict[tuple[ColocatedSet, Site], list[PoolOption]] = {}
        self._generate_seconds: dict[tuple[TaskPlan, Site, float], float] = {}
        self._costed_sizes: dict[tuple[TaskPlan, Site], list[float]] = {}

    def pool_options(self, members: ColocatedSet, site: Site) -> list[PoolOption]:
        """Return a set's options that fit a site's GPUs together and that no other option beats."""
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

    def refined(self, pool: PoolOption, site: Site) -> PoolOption:
        """Return the option with a tighter bound on its generation, exact after a few calls."""
        chosen = pool.generation
        if chosen is None or chosen.is_exact:
            return pool
        sizes = self._costed_sizes[chosen.option.layout, site]
        costed = sizes[bisect.bisect_left(sizes, chosen.kv_bytes)]  # the smallest that is enough
        if costed >= chosen.costed_bytes:
            costed = chosen.next_bytes
        seconds = self._seconds_of_generation(chosen.option, site, costed)
        tighter = replace(chosen, seconds=max(chosen.seconds, seconds), costed_bytes=costed)
        return replace(pool, generation=tighter)

    def _front(self, members: ColocatedSet, site: Site) -> list[PoolOption]:
        """Return the front of a set on a site.

        Residents add up and transients do not, so once every role's resident bytes are fixed, each
        role chooses by itself among its options whose transients fit into what is left.
        """
        capacity = self.options.capacity_bytes(site)
        classes = [_classes(role, self.options.role_options(role, site)) for role in members]
        found: list[PoolOption] = []
        for chosen in product(*classes):
            room = capacity - sum(item.resident_bytes for item in chosen)
            found.extend(_joined([item.fastest(room) for item in chosen]))
        tally = self.options.tally
        tally.consider("layouts of pools", len(found))
        kept = [pool for group in _by_actor(found) for pool in front(group, _pool_key)]
        tally.prune("another layout of the pool is better", len(found) - len(kept))
        if ACTOR not in members:
            return front(kept, _speed_key)
        return self._with_generation(kept, site)

    def _with_generation(self, trained: list[PoolOption], site: Site) -> list[PoolOption]:
        """Return the options with every layout of generation that leaves room for one sequence.

        More memory never makes generation slower, so that of options with the same layouts of
        the actor one beats another if it is no slower in the other stages and leaves no less.
        """
        tally = self.options.tally
        found: list[PoolOption] = []
        for generate in self.options.generate_options(site):
            for group in _by_actor(trained):
                move = self._move(group[0], generate, site)
                roomy = [self._generating(pool, move, site) for pool in group]
                fitting = [pool for pool in roomy if pool]
                tally.prune("no room for the KV cache of one sequence", len(group) - len(fitting))
                found.extend(front(fitting, _roomy_key))
        exact = front([pool for pool in found if pool.is_exact], _speed_key)
        bounds = [pool for pool in found if not pool.is_exact and not _is_beaten(pool, exact)]
        kept = exact + bounds
        tally.prune("another layout of the pool is better", len(found) - len(kept))
        return kept

    def _move(self, pool: PoolOption, generate: TaskOption, site: Site) -> "_Move":
        job, facts = self.options.job, self.options.facts
        train = _trained_layout(pool)
        assert train is not None, "the actor trains where it generates"
        transition = transition_for(train, generate.layout)
        cost = transition_cost(
            transition,
            job.architecture(ACTOR),
            train,
            generate.layout,
            site,
            site,
            same_pool=True,
            job=job,
            facts=facts,
        )
        return _Move(
            option=generate,
            transition=transition,
            seconds=cost.total.seconds,
            room_bytes=generation_kv_bytes(0, train, generate.layout, transition, site, job, facts),
            least_bytes=least_kv_bytes(ACTOR, generate.layout, job, facts),
            useful_bytes=useful_kv_bytes(ACTOR, generate.layout, job, facts),
        )

    def _generating(self, pool: PoolOption, move: "_Move", site: Site) -> PoolOption | None:
        kv_bytes = move.room_bytes - pool.resident_bytes
        if kv_bytes < move.least_bytes:
            return None
        useful = max(move.useful_bytes, 1.0)
        chosen = Generation(
            option=move.option,
            transition=move.transition,
            kv_bytes=min(kv_bytes, useful),
            useful_bytes=useful,
            move_seconds=move.seconds,
            seconds=self._seconds_of_generation(move.option, site, useful),
            costed_bytes=useful,
        )
        return replace(pool, generation=chosen)

    def _seconds_of_generation(self, generate: TaskOption, site: Site, kv_bytes: float) -> float:
        key = (generate.layout, site, kv_bytes)
        if key not in self._generate_seconds:
            job, facts = self.options.job, self.options.facts
            cost = task_cost(generate.task, generate.layout, site, job, facts, kv_bytes=kv_bytes)
            self._generate_seconds[key] = cost.total.seconds
            bisect.insort(self._costed_sizes.setdefault((generate.layout, site), []), kv_bytes)
        return self._generate_seconds[key]


def transition_for(train: TaskPlan, generate: TaskPlan) -> TransitionName:
    """Return the cheapest transition that brings one layout of a pool to another."""
    if (train.tp, train.pp) == (generate.tp, generate.pp):
        return "none"
    if train.tp % generate.tp == 0 and train.pp % generate.pp == 0:
        return "hybridflow"
    return "all-gather"


@dataclass(frozen=True, slots=True)
class _Move:
    """Hold what options with one training and one generation layout of the actor share.

    Attributes:
        room_bytes: The KV cache's bytes on a GPU without residents.
        least_bytes: With less, not one sequence runs.
        useful_bytes: More is of no use.
    """

    option: TaskOption
    transition: TransitionName
    seconds: float
    room_bytes: float
    least_bytes: float
    useful_bytes: float


class _Class:
    """Hold a role's options of equal resident bytes (and of one training layout of the actor)."""

    def __init__(self, options: list[RoleOption]) -> None:
        self.resident_bytes = options[0].resident_bytes
        self._options = sorted(options, key=lambda option: option.transient_bytes)
        self._limits = [option.transient_bytes for option in self._options]
        self._fronts: dict[int, list[RoleOption]] = {}

    def fastest(self, room_bytes: int) -> list[RoleOption]:
        """Return the options that no other beats in time, of those whose transients fit the room."""
        fitting = bisect.bisect_right(self._limits, room_bytes)
        if fitting not in self._fronts:
            self._fronts[fitting] = front(self._options[:fitting], _role_speed)
        return self._fronts[fitting]


def _classes(role: Role, options: list[RoleOption]) -> list[_Class]:
    groups: dict[tuple[object, ...], list[RoleOption]] = {}
    for option in options:
        key: tuple[object, ...] = (option.resident_bytes,)
        if role == ACTOR:
            key = (*key, _actor_key(next(t.layout for t in option.tasks if t.task.kind == "train")))
        groups.setdefault(key, []).append(option)
    return [_Class(group) for group in groups.values()]


def _joined(fronts: list[list[RoleOption]]) -> list[PoolOption]:
    return [
        PoolOption(
            layouts=tuple(
                (task.task.name, task.layout) for option in options for task in option.tasks
            ),
            preparation_seconds=sum(option.preparation_seconds for option in options),
            training_seconds=sum(option.training_seconds for option in options),
            resident_bytes=sum(option.resident_bytes for option in options),
        )
        for options in product(*fronts)
    ]


def _trained_layout(pool: PoolOption) -> TaskPlan | None:
    return next((layout for name, layout in pool.layouts if name == f"{ACTOR}.update"), None)


def _by_actor(pools: list[PoolOption]) -> list[list[PoolOption]]:
    """Group options by what of the actor's training decides the cost of generation beside memory."""
    groups: dict[tuple[int, ...] | None, list[PoolOption]] = {}
    for pool in pools:
        train = _trained_layout(pool)
        key = _actor_key(train) if train else None
        groups.setdefault(key, []).append(pool)
    return list(groups.values())


def _actor_key(train: TaskPlan) -> tuple[int, ...]:
    return (train.tp, train.pp, train.dp, train.zero)


def _role_speed(option: RoleOption) -> tuple[float, ...]:
    return (option.preparation_seconds, option.training_seconds)


def _is_beaten(pool: PoolOption, exact: list[PoolOption]) -> bool:
    key = _speed_key(pool)
    return any(
        all(mine >= theirs for mine, theirs in zip(key, _speed_key(other), strict=True))
        for other in exact
    )


def _pool_key(pool: PoolOption) -> tuple[float, ...]:
    return (pool.preparation_seconds, pool.training_seconds, pool.resident_bytes)


def _roomy_key(pool: PoolOption) -> tuple[float, ...]:
    chosen = pool.generation
    assert chosen is not None
    room = 0.0 if chosen.is_exact else -chosen.kv_bytes
    return (*_speed_key(pool), room)


def _speed_key(pool: PoolOption) -> tuple[float, ...]:
    return (pool.generation_seconds, pool.preparation_seconds, pool.training_seconds)
