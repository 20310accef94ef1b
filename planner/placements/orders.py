"""Orders in which tasks of one stage that share a pool can get it, where the order can matter.

Only tasks of one stage ever wait for a pool together: preparation waits for generation, and every
update for all preparation. What order decides is when data from other pools is wanted, when data for
them is ready, and, where iterations overlap, when the weights can go over. Bounds of the search hold
for any order, so leaving orders out can only leave a gap.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations, product

from rlplan.dataflow import Task, parents_of
from rlplan.plan import FLOWS, Mode
from rlplan.planner.placements.partitions import GENERATION, ColocatedSet

# Of more tasks than these in a stage, each is tried as the last one, whose data leaves last.
MOST_PERMUTED = 3

Orders = tuple[tuple[str, ...], ...]


def tasks_of_set(members: ColocatedSet, tasks: Iterable[Task], *, apart: bool) -> list[Task]:
    """Return the tasks of a set, in the dataflow's order.

    Args:
        apart: Whether the actor generates on another pool than it trains on.
    """
    generates = GENERATION if apart else "actor"
    return [
        task for task in tasks if (generates if task.name == GENERATION else task.role) in members
    ]


def other_orders(
    placement: Sequence[ColocatedSet],
    tasks: tuple[Task, ...],
    mode: Mode,
    pinned: frozenset[int] = frozenset(),
) -> Iterator[Orders]:
    """Yield, set by set, every sensible order of tasks but the dataflow's own.

    Args:
        pinned: Places of sets whose order is not to change.
    """
    apart = any(GENERATION in members for members in placement)
    sets = [tasks_of_set(members, tasks, apart=apart) for members in placement]
    choices = [
        [tuple(task.name for task in own)]
        if index in pinned
        else list(_orders_of(own, tasks, mode))
        for index, own in enumerate(sets)
    ]
    every = product(*choices)
    next(every)
    yield from every


def _orders_of(
    own: Sequence[Task], tasks: tuple[Task, ...], mode: Mode
) -> Iterator[tuple[str, ...]]:
    """Yield the orders of a pool's tasks, the dataflow's first."""
    stages = dict.fromkeys(task.stage for task in own)
    groups = [[task for task in own if task.stage == stage] for stage in stages]
    for chosen in product(*(_group_orders(group, own, tasks, mode) for group in groups)):
        yield tuple(name for names in chosen for name in names)


def _group_orders(
    group: Sequence[Task], own: Sequence[Task], tasks: tuple[Task, ...], mode: Mode
) -> list[tuple[str, ...]]:
    names = tuple(task.name for task in group)
    if not _matters(group, own, tasks, mode):
        return [names]
    if len(names) <= MOST_PERMUTED:
        return list(permutations(names))
    moved = [(*(other for other in names if other != name), name) for name in reversed(names)]
    return list(dict.fromkeys((names, *moved)))


def _matters(
    group: Sequence[Task], own: Sequence[Task], tasks: tuple[Task, ...], mode: Mode
) -> bool:
    """Tell whether tasks of one stage may end an iteration sooner in another order."""
    if len(group) == 1:
        return False
    if FLOWS[mode].overlaps:
        return True
    here = {task.name for task in own}
    arrivals = {
        frozenset(
            (parent.name, key)
            for parent in parents_of(task, tasks)
            if parent.name not in here
            for key in parent.outputs
            if key in task.inputs
        )
        for task in group
    }
    leaving = {key for task in group for key in task.outputs}
    wanted = {key for task in tasks if task.name not in here for key in task.inputs}
    return len(arrivals) > 1 or bool(leaving & wanted)
