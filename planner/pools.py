"""Level 1, second half: what a colocated set can do on a pool, its roles' memories together.

Roles of a pool run by turns, so their stage times add up, their resident bytes add up, and of their
transient bytes the largest counts. What generation may fill with its KV cache is what is left.
"""

import bisect
from dataclasses import dataclass, replace
from itertools import product

from planner.generations import ACTOR, Generation, GenerationTable, Move
from planner.layouts import Sizes
from planner.options import OptionTable, RoleOption
from planner.pareto import front, front_of_each, unbeaten
from planner.placements import ColocatedSet
from rlplan.plan import TaskPlan
from simulator.site import Site


@dataclass(frozen=True, slots=True)
class PoolOption:
    """Hold layouts for every task of a pool.

    Attributes:
        layouts: By task name, generation's excepted.
        generation: None on pools without the actor.
        kind: How the actor's weights lie after training; None on pools without it.
    """

    layouts: tuple[tuple[str, TaskPlan], ...] = ()
    generation: Generation | None = None
    preparation_seconds: float = 0.0
    training_seconds: float = 0.0
    resident_bytes: int = 0
    kind: Sizes | None = None

    @property
    def generation_seconds(self) -> float:
        """Return the transition's and generation's seconds, or a lower bound on them."""
        chosen = self.generation
        return chosen.move.seconds + chosen.seconds if chosen else 0.0

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
        self.generations = GenerationTable(options)
        self._fronts: dict[tuple[ColocatedSet, Site], list[PoolOption]] = {}

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
        if pool.generation is None or pool.generation.is_exact:
            return pool
        return replace(pool, generation=self.generations.refined(pool.generation, site))

    def _front(self, members: ColocatedSet, site: Site) -> list[PoolOption]:
        """Return the front of a set on a site.

        Residents add up and transients do not, so once every role's resident bytes are fixed, each
        role chooses by itself among its options whose transients fit into what is left.
        """
        capacity = self.options.capacity_bytes(site)
        classes = [_classes(self.options.role_options(role, site)) for role in members]
        found: list[PoolOption] = []
        for chosen in product(*classes):
            room = capacity - sum(item.resident_bytes for item in chosen)
            found.extend(_joined([item.fastest(room) for item in chosen]))
        tally = self.options.tally
        tally.consider("layouts of pools", len(found))
        kept = front_of_each(found, lambda pool: pool.kind, _pool_key)
        if ACTOR not in members:
            kept = front(kept, _speed_key)
        tally.prune("another layout of the pool is better", len(found) - len(kept))
        return self._with_generation(kept, site) if ACTOR in members else kept

    def _with_generation(self, trained: list[PoolOption], site: Site) -> list[PoolOption]:
        """Return the options with every layout of generation that leaves room for one sequence.

        More memory never makes generation slower, so that of options with the same layouts of
        the actor one beats another if it is no slower in the other stages and leaves no less.
        """
        tally = self.options.tally
        by_kind: dict[Sizes | None, list[PoolOption]] = {}
        for pool in trained:
            by_kind.setdefault(pool.kind, []).append(pool)
        found: list[PoolOption] = []
        for generate in self.options.generate_options(site):
            for group in by_kind.values():
                train = dict(group[0].layouts)[f"{ACTOR}.update"]
                move = self.generations.move(train, generate, site)
                found.extend(self._roomiest(group, move, site))
        exact = front([pool for pool in found if pool.is_exact], _speed_key)
        bounds = [pool for pool in found if not pool.is_exact]
        kept = exact + unbeaten(bounds, exact, _speed_key)
        tally.prune("another layout of the pool is better", len(found) - len(kept))
        return kept

    def _roomiest(self, group: list[PoolOption], move: Move, site: Site) -> list[PoolOption]:
        """Return the options that leave room for the move's generation and that no other beats."""
        tally, capacity = self.options.tally, self.options.capacity_bytes(site)
        roomy = [(pool, move.kv_bytes(pool.resident_bytes, capacity)) for pool in group]
        fitting = [(pool, kv_bytes) for pool, kv_bytes in roomy if kv_bytes is not None]
        tally.prune("no room for the KV cache of one sequence", len(group) - len(fitting))
        kept = front(fitting, lambda each: (*_speed_key(each[0]), -each[1]))
        tally.prune("another layout of the pool is better", len(fitting) - len(kept))
        return [
            replace(
                pool,
                generation=Generation(move, kv_bytes, move.generate_seconds, move.useful_bytes),
            )
            for pool, kv_bytes in kept
        ]


class _Class:
    """Hold a role's options of one kind and of equal resident bytes."""

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


def _classes(options: list[RoleOption]) -> list[_Class]:
    groups: dict[tuple[Sizes | None, int], list[RoleOption]] = {}
    for option in options:
        groups.setdefault((option.kind, option.resident_bytes), []).append(option)
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
            kind=next((option.kind for option in options if option.kind), None),
        )
        for options in product(*fronts)
    ]


def _role_speed(option: RoleOption) -> tuple[float, ...]:
    return (option.preparation_seconds, option.training_seconds)


def _pool_key(pool: PoolOption) -> tuple[float, ...]:
    return (pool.preparation_seconds, pool.training_seconds, pool.resident_bytes)


def _speed_key(pool: PoolOption) -> tuple[float, ...]:
    return (pool.generation_seconds, pool.preparation_seconds, pool.training_seconds)
