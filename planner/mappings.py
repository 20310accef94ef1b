"""Level 2 of the search: placements and allocations, with a bound on what each can reach."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.allocations import Allocation, allocations
from planner.placements import Placement
from planner.pools import PoolOption, PoolTable
from rlplan.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE, Plan, ResourcePool, TaskPlan
from simulator.site import Site, site_at

HOST_POOL = "host"


@dataclass(frozen=True, slots=True)
class Mapping:
    """Hold a complete choice: a placement, its pools' sites and their layouts.

    Attributes:
        bound_seconds: No schedule of these layouts is shorter: the critical path over the stages,
            transfers between pools not counted.
    """

    placement: Placement
    sites: tuple[Site, ...]
    options: tuple[PoolOption, ...]
    bound_seconds: float


def mapping_bound(options: tuple[PoolOption, ...]) -> float:
    """Return the critical path in seconds: each stage ends when its slowest pool ends.

    Every preparation task waits for generation alone and every update for all preparation, so the
    stages of a synchronous iteration follow each other, and pools only overlap inside a stage.
    """
    return (
        max(option.generation_seconds for option in options)
        + max(option.preparation_seconds for option in options)
        + max(option.training_seconds for option in options)
    )


def sites_for(job: Job, allocation: Allocation) -> tuple[Site, ...] | None:
    """Return the sites of pools that take GPUs one after another; None when they straddle nodes badly.

    Pools are listed from the largest to the smallest, so that those inside a node do not straddle.
    """
    taken: dict[str, int] = {}
    sites: dict[int, Site] = {}
    for index in packing_order(allocation):
        share = allocation[index]
        device = job.cluster[share.group].gpu
        site = site_at(job, device, taken.get(device, 0), share.gpus)
        if site is None:
            return None
        taken[device] = taken.get(device, 0) + share.gpus
        sites[index] = site
    return tuple(sites[index] for index in range(len(allocation)))


def packing_order(allocation: Allocation) -> tuple[int, ...]:
    """Return the order in which pools take GPUs: by group, then the largest first."""
    return tuple(
        sorted(range(len(allocation)), key=lambda i: (allocation[i].group, -allocation[i].gpus, i))
    )


def mappings_of(placement: Placement, job: Job, table: PoolTable) -> Iterator[Mapping]:
    """Yield every mapping of a placement in which each pool fits."""
    tally = table.options.tally
    for allocation in allocations(job, len(placement)):
        sites = sites_for(job, allocation)
        if sites is None:
            continue
        tally.consider("allocations")
        fronts = [
            table.pool_options(members, site)
            for members, site in zip(placement, sites, strict=True)
        ]
        if not all(fronts):
            tally.prune("an allocation in which a pool does not fit")
            continue
        for options in _products(fronts):
            tally.consider("mappings")
            yield Mapping(placement, sites, options, mapping_bound(options))


def _products(fronts: list[list[PoolOption]]) -> Iterator[tuple[PoolOption, ...]]:
    if not fronts:
        yield ()
        return
    for rest in _products(fronts[1:]):
        for option in fronts[0]:
            yield (option, *rest)


class Ranking:
    """Hand out mappings in the order of their bounds, which are made exact when their turn comes."""

    def __init__(self, mappings: list[Mapping], table: PoolTable) -> None:
        self._heap = [(_rank(mapping), index, mapping) for index, mapping in enumerate(mappings)]
        heapq.heapify(self._heap)
        self._table = table

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def bound_seconds(self) -> float:
        """Return what no mapping that is still to come can beat."""
        return self._heap[0][2].bound_seconds if self._heap else float("inf")

    def next(self, worth_seconds: float) -> Mapping | None:
        """Return the next mapping, its bound exact; None when none is below `worth_seconds`."""
        while self._heap and self._heap[0][2].bound_seconds < worth_seconds:
            _, index, mapping = heapq.heappop(self._heap)
            if all(option.is_exact for option in mapping.options):
                return mapping
            exact = tuple(
                self._table.refined(option, site)
                for option, site in zip(mapping.options, mapping.sites, strict=True)
            )
            mapping = replace(mapping, options=exact, bound_seconds=mapping_bound(exact))
            heapq.heappush(self._heap, (_rank(mapping), index, mapping))
        return None


def best_first(placement: Placement, job: Job, table: PoolTable) -> Ranking:
    """Return a placement's mappings, to be handed out in the order of their bounds."""
    return Ranking(list(mappings_of(placement, job, table)), table)


def _rank(mapping: Mapping) -> tuple[float, int, tuple[int, ...]]:
    """Order mappings by their bound; of equals, fewer GPUs and larger first pools come first."""
    gpus = tuple(site.gpus for site in mapping.sites)
    return (mapping.bound_seconds, sum(gpus), tuple(-count for count in gpus))


def plan_of(mapping: Mapping, job: Job, task_names: tuple[str, ...], made_by: str) -> Plan:
    """Return the plan that a mapping stands for, pools in the order in which they take GPUs."""
    order = sorted(
        range(len(mapping.sites)),
        key=lambda i: (_group_of(job, mapping.sites[i].device), -mapping.sites[i].gpus, i),
    )
    pools, layouts = [], {}
    for number, index in enumerate(order):
        name, site = f"p{number}", mapping.sites[index]
        members = mapping.placement[index]
        pools.append(ResourcePool(name=name, device=site.device, gpus=site.gpus, roles=members))
        option = mapping.options[index]
        for task, layout in option.layouts:
            layouts[task] = replace(layout, pool=name)
        if option.generation:
            generate = option.generation.option
            layouts[generate.task.name] = replace(generate.layout, pool=name)
    if has_rule(task_names):
        pools.append(host_pool(job))
        layouts[RULE_TASK] = TaskPlan(pool=HOST_POOL, dp=pools[-1].gpus, engine="python")
    moves = [option.generation.transition for option in mapping.options if option.generation]
    return Plan(
        job=job,
        pools=tuple(pools),
        tasks=FrozenDict({name: layouts[name] for name in task_names}),
        order=FrozenDict(
            {
                pool.name: tuple(name for name in task_names if layouts[name].pool == pool.name)
                for pool in pools
            }
        ),
        transition=moves[0],
        made_by=made_by,
    )


RULE_TASK = "rule.compute_reward"


def has_rule(task_names: tuple[str, ...]) -> bool:
    """Tell whether a reward function runs on CPU workers."""
    return RULE_TASK in task_names


def host_pool(job: Job) -> ResourcePool:
    """Return the pool of CPU workers: as many as the first nodes say they have cores, else one."""
    workers = job.cluster[0].cpu_cores or 1
    return ResourcePool(name=HOST_POOL, device=HOST_DEVICE, gpus=workers, roles=("rule",))


def _group_of(job: Job, device: str) -> int:
    return next(index for index, group in enumerate(job.cluster) if group.gpu == device)
