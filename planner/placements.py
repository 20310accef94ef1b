"""Placements: partitions of a job's models into colocated sets."""

from collections.abc import Iterator

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.job import Job, Role

ColocatedSet = tuple[Role, ...]
Placement = tuple[ColocatedSet, ...]


def placed_roles(job: Job) -> tuple[Role, ...]:
    """Return the roles that need GPUs, in the order in which the dataflow first uses them."""
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    return tuple(dict.fromkeys(task.role for task in tasks if task.kind != "rule"))


def placements(roles: tuple[Role, ...]) -> Iterator[Placement]:
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


def show_placement(placement: Placement) -> str:
    """Return a placement for people, such as `{actor, reference} {critic, reward}`."""
    return " ".join("{" + ", ".join(members) + "}" for members in placement)


def in_role_order(members: ColocatedSet, roles: tuple[Role, ...]) -> ColocatedSet:
    """Return a set's roles in the order of `roles`."""
    return tuple(role for role in roles if role in members)
