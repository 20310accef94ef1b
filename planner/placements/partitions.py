"""Placements: partitions of a job's models into colocated sets."""

from collections.abc import Iterator
from typing import Final, Literal

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.job import Job, Role

RoleSet = tuple[Role, ...]
RolePlacement = tuple[RoleSet, ...]

# What a search places: roles, and the copy of the actor that generates where it has another pool.
PlacedModel = Role | Literal["actor.generate"]
ColocatedSet = tuple[PlacedModel, ...]
Placement = tuple[ColocatedSet, ...]

GENERATION: Final = "actor.generate"


def placed_roles(job: Job) -> tuple[Role, ...]:
    """Return the roles that need GPUs, in the order in which the dataflow first uses them."""
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    return tuple(dict.fromkeys(task.role for task in tasks if task.has_model))


def placements(roles: tuple[Role, ...]) -> Iterator[RolePlacement]:
    """Yield every partition of the roles: Bell(k) of them, the colocated one first.

    Sets are ordered by their first role, and roles inside a set keep their order, so every
    partition appears once and in one form.
    """
    if not roles:
        yield ()
        return
    first, rest = roles[0], roles[1:]
    for smaller in placements(rest):
        for index, members in enumerate(smaller):
            joined = ((first, *members), *smaller[:index], *smaller[index + 1 :])
            yield joined
        yield ((first,), *smaller)


def all_placements(job: Job) -> Iterator[Placement]:
    """Yield every partition of a job's models: first those in which the actor generates where it trains.

    A set that holds the actor and generates says the actor alone. A teacher whose whole distributions are compared is with
    the actor that trains.
    """
    together = [
        placement
        for placement in placements(placed_roles(job))
        if not job.compares_all or any({"actor", "teacher"} <= set(roles) for roles in placement)
    ]
    yield from together
    for placement in together:
        for index, members in enumerate(placement):
            if "actor" not in members:
                joined: ColocatedSet = (GENERATION, *members)
                yield (joined, *placement[:index], *placement[index + 1 :])
        yield ((GENERATION,), *placement)


def generating_set(placement: Placement) -> int:
    """Return the place of the set that generates."""
    copies = [place for place, members in enumerate(placement) if GENERATION in members]
    trained = [place for place, members in enumerate(placement) if "actor" in members]
    return (copies or trained)[0]


def show_placement(placement: Placement) -> str:
    """Return a placement for people, such as `{actor, reference} {critic, reward}`."""
    shown = (
        ", ".join("generation" if model == GENERATION else model for model in members)
        for members in placement
    )
    return " ".join("{" + members + "}" for members in shown)


def in_role_order(members: RoleSet, roles: tuple[Role, ...]) -> RoleSet:
    """Return a set's roles in the order of `roles`."""
    return tuple(role for role in roles if role in members)
