"""Level 2 of the search: placements and allocations, with a bound on what each can reach."""

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, product

from planner.allocations import Allocation, allocations
from planner.generations import transition_for
from planner.placements import Placement
from planner.pools import PoolOption, PoolTable
from profiles.facts import Facts
from rlplan.dataflow import Task
from rlplan.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE, Plan, ResourcePool, TaskPlan
from simulator.costs import task_cost
from simulator.site import Site, host_site, site_at

HOST_POOL = "host"
RULE_TASK = "rule.compute_reward"

Rank = tuple[float, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Mapping:
    """Hold a complete choice: a placement, its pools' sites and their layouts.

    Attributes:
        packing: Places of the pools in the placement, in the order in which they take GPUs.
        bound_seconds: No schedule of these layouts is shorter: the critical path over the stages,
            transfers between pools not counted.
    """

    placement: Placement
    sites: tuple[Site, ...]
    packing: tuple[int, ...]
    options: tuple[PoolOption, ...]
    bound_seconds: float


@dataclass(frozen=True, slots=True)
class Division:
    """Hold what a placement can do when its pools have these sites: options for every pool.

    Attributes:
        rule_seconds: What the reward function takes meanwhile on its own processes.
    """

    placement: Placement
    sites: tuple[Site, ...]
    packing: tuple[int, ...]
    fronts: tuple[list[PoolOption], ...]
    rule_seconds: float = 0.0

    def __len__(self) -> int:
        return math.prod(len(front) for front in self.fronts)

    @property
    def bound_seconds(self) -> float:
        """Return what no mapping of the division can beat: every stage at its best."""
        return self._bound(
            max(min(option.generation_seconds for option in front) for front in self.fronts),
            max(min(option.preparation_seconds for option in front) for front in self.fronts),
            max(min(option.training_seconds for option in front) for front in self.fronts),
        )

    def mappings(self) -> Iterator[Mapping]:
        """Yield every choice of one option for each pool."""
        for options in product(*self.fronts):
            yield self.mapping(options)

    def mapping(self, options: tuple[PoolOption, ...]) -> Mapping:
        """Return one choice with its critical path: each stage ends when its slowest pool ends.

        Every preparation task waits for generation alone and every update for all preparation, so
        the stages of a synchronous iteration follow each other, and pools only overlap inside a
        stage.
        """
        bound_seconds = self._bound(
            max([option.generation_seconds for option in options]),
            max([option.preparation_seconds for option in options]),
            max([option.training_seconds for option in options]),
        )
        return Mapping(self.placement, self.sites, self.packing, options, bound_seconds)

    def _bound(self, generation: float, preparation: float, training: float) -> float:
        return generation + max(preparation, self.rule_seconds) + training


def sites_for(job: Job, allocation: Allocation) -> tuple[Site, ...] | None:
    """Return the sites of pools that take GPUs one after another; None if a device has too few."""
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
    """Return the order in which pools take GPUs: by group, then the largest first.

    From the largest to the smallest, pools that fit into a node do not straddle two.
    """
    return tuple(
        sorted(range(len(allocation)), key=lambda i: (allocation[i].group, -allocation[i].gpus, i))
    )


def divisions_of(
    placement: Placement, job: Job, table: PoolTable, rule_seconds: float = 0.0
) -> Iterator[Division]:
    """Yield every way to give a placement's pools GPUs in which each pool fits."""
    tally = table.options.tally
    for allocation in allocations(job, len(placement)):
        sites = sites_for(job, allocation)
        if sites is None:
            continue
        tally.consider("allocations")
        fronts = tuple(
            table.pool_options(members, site)
            for members, site in zip(placement, sites, strict=True)
        )
        if all(fronts):
            yield Division(placement, sites, packing_order(allocation), fronts, rule_seconds)
        else:
            tally.prune("an allocation in which a pool does not fit")


class Ranking:
    """Hand out mappings in the order of their bounds, which are made exact when their turn comes.

    A division stands for all of its mappings until its own bound comes first.
    """

    def __init__(self, divisions: Iterable[Division], table: PoolTable) -> None:
        self._table = table
        self._count = count()
        self._heap: list[tuple[Rank, int, Division, Mapping | None]] = [
            (_rank(each.bound_seconds, each.sites), next(self._count), each, None)
            for each in divisions
        ]
        heapq.heapify(self._heap)
        self.considered = sum(len(each) for _, _, each, _ in self._heap)

    @property
    def bound_seconds(self) -> float:
        """Return what no mapping that is still to come can beat."""
        return self._heap[0][0][0] if self._heap else math.inf

    def next(self, worth_seconds: float) -> Mapping | None:
        """Return the next mapping, its bound exact; None when none is below `worth_seconds`."""
        while self.bound_seconds < worth_seconds:
            _, _, division, mapping = heapq.heappop(self._heap)
            if mapping is None:
                for each in division.mappings():
                    if each.bound_seconds < worth_seconds:
                        self._push(division, each)
                continue
            if all(option.is_exact for option in mapping.options):
                return mapping
            exact = tuple(
                self._table.refined(option, site)
                for option, site in zip(mapping.options, mapping.sites, strict=True)
            )
            self._push(division, division.mapping(exact))
        return None

    def _push(self, division: Division, mapping: Mapping) -> None:
        rank = _rank(mapping.bound_seconds, mapping.sites)
        heapq.heappush(self._heap, (rank, next(self._count), division, mapping))


def _rank(bound_seconds: float, sites: tuple[Site, ...]) -> Rank:
    """Order by bound; of equals, fewer GPUs and larger first pools come first."""
    gpus = [site.gpus for site in sites]
    return (bound_seconds, sum(gpus), tuple(-count for count in gpus))


def plan_of(mapping: Mapping, job: Job, task_names: tuple[str, ...], made_by: str) -> Plan:
    """Return the plan that a mapping stands for, pools in the order in which they take GPUs."""
    pools: list[ResourcePool] = []
    layouts: dict[str, TaskPlan] = {}
    for number, index in enumerate(mapping.packing):
        name, site = f"p{number}", mapping.sites[index]
        members = mapping.placement[index]
        pools.append(ResourcePool(name=name, device=site.device, gpus=site.gpus, roles=members))
        layouts |= layouts_on(name, mapping.options[index])
    if has_rule(task_names):
        pools.append(host_pool(job))
        layouts[RULE_TASK] = TaskPlan(pool=HOST_POOL, dp=pools[-1].gpus, engine="python")
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
        transition=transition_for(layouts["actor.update"], layouts["actor.generate"]),
        made_by=made_by,
    )


def layouts_on(pool: str, option: PoolOption) -> dict[str, TaskPlan]:
    """Return an option's layouts by task name, on the pool of that name."""
    layouts = dict(option.layouts)
    if option.generation:
        generate = option.generation.move.option
        layouts[generate.task.name] = generate.layout
    return {task: replace(layout, pool=pool) for task, layout in layouts.items()}


def has_rule(task_names: tuple[str, ...]) -> bool:
    """Tell whether a reward function runs on CPU workers."""
    return RULE_TASK in task_names


def rule_seconds(job: Job, tasks: tuple[Task, ...], facts: Facts) -> float:
    """Return the seconds of the reward function on its workers; 0 if the job has none."""
    rule = next((task for task in tasks if task.name == RULE_TASK), None)
    if rule is None:
        return 0.0
    workers = host_pool(job).gpus
    layout = TaskPlan(pool=HOST_POOL, dp=workers, engine="python")
    return task_cost(rule, layout, host_site(job, workers), job, facts).total.seconds


def host_pool(job: Job) -> ResourcePool:
    """Return the pool of CPU workers: as many as the first nodes say they have cores, else one."""
    workers = job.cluster[0].cpu_cores or 1
    return ResourcePool(name=HOST_POOL, device=HOST_DEVICE, gpus=workers, roles=("rule",))
