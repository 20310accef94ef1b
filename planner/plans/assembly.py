"""A complete choice of the search, and the plan that it stands for."""

from collections.abc import Mapping as Layouts
from dataclasses import dataclass, replace

from planner.placements.allocations import Allocation, packing_order
from planner.placements.host import HOST_POOL, RULE_TASK, has_rule, host_pool
from planner.placements.orders import Orders
from planner.placements.partitions import GENERATION, UnitPlacement, UnitSet
from planner.requests.checks import STALENESS
from planner.requests.pinned import NOTHING_FIXED, Fixed
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, Role
from rlplan.plan import Mode, Plan, ResourcePool, TaskPlan, TransitionName

__all__ = [
    "HOST_POOL",
    "RULE_TASK",
    "Mapping",
    "has_rule",
    "host_pool",
    "plan_of",
    "pool_roles",
]


@dataclass(frozen=True, slots=True)
class Mapping:
    """Hold a complete choice: a placement, its pools' shares and all layouts.

    Attributes:
        layouts: For each set of the placement, by task name; their pools are still open.
        orders: For each set, its tasks in the order in which they get its pool; None is the dataflow's.
    """

    placement: UnitPlacement
    allocation: Allocation
    layouts: tuple[Layouts[str, TaskPlan], ...]
    transition: TransitionName
    mode: Mode = "sync"
    orders: Orders | None = None


def plan_of(
    mapping: Mapping,
    job: Job,
    task_names: tuple[str, ...],
    made_by: str,
    fixed: Fixed = NOTHING_FIXED,
) -> Plan:
    """Return the plan that a mapping stands for, pools in the order in which they take GPUs."""
    pools: list[ResourcePool] = []
    layouts: dict[str, TaskPlan] = {}
    order: dict[str, tuple[str, ...]] = {}
    packed = packing_order(mapping.allocation)
    names = fixed.names(tuple(mapping.placement[index] for index in packed))
    for name, index in zip(names, packed, strict=True):
        share, own = mapping.allocation[index], fixed.pool(mapping.placement[index])
        pool = ResourcePool(
            name=name,
            device=job.cluster[share.group].gpu,
            gpus=share.gpus,
            roles=pool_roles(mapping.placement[index]),
        )
        pools.append(pool)
        layouts |= {
            task: replace(each, pool=pool.name) for task, each in mapping.layouts[index].items()
        }
        here = tuple(name for name in task_names if name in mapping.layouts[index])
        chosen = mapping.orders[index] if mapping.orders else here
        order[pool.name] = own.order if own is not None and own.order else chosen
    if has_rule(task_names):
        host = fixed.host or host_pool(job)
        pools.append(host)
        layouts[RULE_TASK] = TaskPlan(pool=host.name, dp=host.gpus, engine="python")
        order[host.name] = (RULE_TASK,)
    return Plan(
        job=job,
        pools=tuple(pools),
        tasks=FrozenDict({name: layouts[name] for name in task_names}),
        order=FrozenDict(order),
        mode=mapping.mode,
        transition=mapping.transition,
        staleness=STALENESS[mapping.mode],
        made_by=made_by,
    )


def pool_roles(members: UnitSet) -> tuple[Role, ...]:
    """Return the roles that a set's pool holds; a copy that generates is its role's."""
    return tuple("actor" if member == GENERATION else member for member in members)
