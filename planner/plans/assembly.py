"""Plans from pools and layouts: what everything that makes a plan goes through."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, Role
from rlplan.plan import HOST_DEVICE, USUAL_MODE, Mode, Plan, ResourcePool, TaskDraft, TaskPlan
from rlplan.planner.placements.allocations import Allocation, packing_order, rented_cores
from rlplan.planner.placements.orders import Orders
from rlplan.planner.placements.partitions import GENERATION, ColocatedSet, Placement
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.schedules import SYNC, Schedule
from rlplan.profiles.facts import Facts
from rlplan.rules.flow import STALENESS, transition_for
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.pool_memory import memory_fraction_left
from rlplan.transfers import TWO_COPIES, TransitionName

HOST_POOL = "host"
HOST_ENGINE = "python"
NO_DRAFTS: FrozenDict[str, TaskDraft] = FrozenDict()


def assemble(
    job: Job,
    pools: Sequence[ResourcePool],
    layouts: Mapping[str, TaskPlan],
    *,
    made_by: str,
    mode: Mode = USUAL_MODE,
    transition: TransitionName | None = None,
    order: Mapping[str, tuple[str, ...]] | None = None,
    host: ResourcePool | None = None,
) -> Plan:
    """Return the plan of pools and layouts, with a host pool where tasks without a model need one.

    Args:
        layouts: By task name, pools included; those of tasks without a model may be left out.
        transition: None takes that of the job, or the usual one.
        order: By pool, its tasks in the order in which they get it; None, and pools that it leaves out,
            take the dataflow's order.
        host: The pool of tasks without a model that have no layout yet; None takes the usual one.
    """
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    known, held = dict(layouts), list(pools)
    hosted = [task.name for task in tasks if not task.has_model and task.name not in known]
    if hosted:
        if not any(pool.is_host for pool in held):
            held.append(host or host_pool(job, gpus_by_device(held)))
        known |= dict.fromkeys(hosted, host_layout(next(pool for pool in held if pool.is_host)))
    ordered = {task.name: known[task.name] for task in tasks}
    orders = {
        pool.name: tuple(name for name, each in ordered.items() if each.pool == pool.name)
        for pool in held
    }
    if transition is None:
        train, generate = ordered["actor.update"], ordered["actor.generate"]
        sync = job.weight_sync
        if train.pool == generate.pool:
            transition = sync.shared_pool or transition_for(train, generate)
        else:
            transition = sync.between_pools or TWO_COPIES
    return Plan(
        job=job,
        pools=tuple(held),
        tasks=FrozenDict(ordered),
        order=FrozenDict(orders | dict(order or {})),
        mode=mode,
        transition=transition,
        staleness=STALENESS.get(mode, 1),
        made_by=made_by,
    )


def gpus_by_device(pools: Iterable[ResourcePool]) -> Counter[str]:
    """Return how many GPUs of each device pools have together."""
    held: Counter[str] = Counter()
    for pool in pools:
        if not pool.is_host:
            held[pool.device] += pool.gpus
    return held


def host_pool(job: Job, gpus: Mapping[str, int] | None = None) -> ResourcePool:
    """Return the pool of CPU workers: one for each core of a plan's own nodes, but no more than responses.

    Args:
        gpus: Those of the plan, by device; None is all of the cluster.
    """
    cores = (job.host_cores or 0) if gpus is None else rented_cores(job, gpus)
    workers = max(1, min(cores, job.workload.sequences))
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    roles = tuple(dict.fromkeys(task.role for task in tasks if not task.has_model))
    return ResourcePool(name=HOST_POOL, device=HOST_DEVICE, gpus=workers, roles=roles)


def host_layout(host: ResourcePool) -> TaskPlan:
    """Return the layout of a task without a model on its pool of CPU workers."""
    return TaskPlan(pool=host.name, dp=host.gpus, engine=HOST_ENGINE)


@dataclass(frozen=True, slots=True)
class Choice:
    """Hold a complete choice of the search: a placement, its pools' shares and all layouts.

    Attributes:
        layouts: For each set of the placement, by task name; their pools are still open.
        orders: For each set, its tasks in the order in which they get its pool; None is the dataflow's.
    """

    placement: Placement
    allocation: Allocation
    layouts: tuple[Mapping[str, TaskPlan], ...]
    transition: TransitionName
    schedule: Schedule = SYNC
    orders: Orders | None = None


def plan_of(choice: Choice, job: Job, made_by: str, pinned: Pinned = NOTHING_PINNED) -> Plan:
    """Return the plan that a choice stands for, pools in the order in which they take GPUs."""
    pools: list[ResourcePool] = []
    layouts: dict[str, TaskPlan] = {}
    order: dict[str, tuple[str, ...]] = {}
    packed = packing_order(job, choice.allocation)
    names = pinned.names(tuple(choice.placement[index] for index in packed))
    for name, index in zip(names, packed, strict=True):
        members, share = choice.placement[index], choice.allocation[index]
        device = job.cluster[share.group].gpu
        pools.append(
            ResourcePool(name=name, device=device, gpus=share.gpus, roles=pool_roles(members))
        )
        layouts |= {task: replace(each, pool=name) for task, each in choice.layouts[index].items()}
        own = pinned.pool(members)
        if own is not None and own.order:
            order[name] = own.order
        elif choice.orders:
            order[name] = choice.orders[index]
    schedule = choice.schedule
    plan = assemble(
        job,
        pools,
        layouts,
        made_by=made_by,
        mode=schedule.mode,
        transition=choice.transition,
        order=order,
        host=pinned.host,
    )
    return replace(
        plan,
        staleness=schedule.staleness,
        sync_every=schedule.sync_every,
        in_flight=schedule.in_flight,
        bucket_bytes=pinned.bucket_bytes,
    )


def pool_roles(members: ColocatedSet) -> tuple[Role, ...]:
    """Return the roles that a set's pool holds; a copy that generates is its role's."""
    return tuple("actor" if member == GENERATION else member for member in members)


def with_largest_share(
    plan: Plan,
    facts: Facts,
    usable_fraction: float = 1.0,
    pinned: Mapping[str, TaskDraft] = NO_DRAFTS,
) -> Plan:
    """Return a plan whose generation engines take as much of each GPU as all else on their pools leaves them.

    Args:
        usable_fraction: Share of every GPU's memory that the plan may fill.
        pinned: Parts of layouts that stay as the user has them.
    """
    tasks, placed = plan.tasks, PlacedPlan(plan, facts)
    for name, task in placed.tasks.items():
        own = pinned.get(name)
        if task.task.kind != "generate" or (own is not None and own.memory_fraction is not None):
            continue
        fraction = memory_fraction_left(placed, task, usable_fraction)
        if fraction != task.layout.memory_fraction:
            tasks = tasks.with_item(name, replace(plan.tasks[name], memory_fraction=fraction))
    return plan if tasks is plan.tasks else replace(plan, tasks=tasks)
