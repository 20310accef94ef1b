"""A first plan of a job that fits, where one is enough: whether any does is a question of memory alone."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from rlplan.job import NO_SPECS, Job, Specs
from rlplan.plan import Plan
from rlplan.planner.exact.best_first import (
    MADE_BY,
    PlacementSearch,
    SearchBudget,
    Simulated,
)
from rlplan.planner.exact.space import Space
from rlplan.planner.placements.partitions import all_placements
from rlplan.planner.plans.assembly import Choice, plan_of, with_largest_share
from rlplan.planner.requests.schedules import SYNC
from rlplan.planner.requests.specs import ROUNDING, usable_fraction
from rlplan.profiles.catalog import ENGINES
from rlplan.profiles.facts import Facts
from rlplan.rules import refusals
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.assemble import device_pools
from rlplan.simulator.timeline.pool_memory import pool_memory

OBJECTIVE = "throughput"

Search = TypeVar("Search", bound=PlacementSearch)


class MemorySearch(PlacementSearch):
    """Search the plans of one placement for one that fits, in a space that prices nothing."""

    def simulated(self, choice: Choice) -> Simulated:
        """Look at the memory of a choice's plan; return no seconds where it fits, else infinitely many."""
        space = self.space
        plan = plan_of(choice, space.job, MADE_BY, space.pinned)
        fitted = _fitted(plan, space.facts, usable_fraction(space.specs))
        if fitted is None:
            return Simulated()
        self.found.choice, self.found.plan, self.found.value = choice, fitted, 0.0
        return Simulated(0.0, 0.0)


def _fitted(plan: Plan, facts: Facts, usable: float) -> Plan | None:
    """Return a plan with the largest shares of its generation engines, where it fits a share of every GPU; else None."""
    plan = with_largest_share(plan, facts, usable)
    placed = PlacedPlan(plan, facts)
    for memory in (pool_memory(placed, pool) for pool in device_pools(plan)):
        filled = memory.gpu_peak_bytes / memory.capacity_bytes
        if not memory.fits or filled > usable + ROUNDING:
            return None
    return plan


def still_fits(plan: Plan, job: Job, facts: Facts) -> bool:
    """Tell whether a plan's layouts fit another job of the same roles and cluster, such as one of longer responses, too.

    Yes says that `fits_somewhere`; no says nothing of other plans.
    """
    plan = replace(plan, job=job)
    if next(refusals(plan, job, ENGINES), None) is not None:
        return False
    return _fitted(plan, facts, usable_fraction(NO_SPECS)) is not None


def fits_somewhere(job: Job, facts: Facts) -> bool:
    """Tell whether any synchronous plan of a job fits."""
    return lean_plan(job, facts) is not None


def lean_plan(job: Job, facts: Facts, specs: Specs = NO_SPECS) -> Plan | None:
    """Return some synchronous plan of a job that fits, whatever it takes; None where none does.

    Layouts that take less memory than others fit wherever those do: seconds, which only say which plan is better,
    are left out, and nothing is played.

    Args:
        specs: The share of memory that it leaves free; limits of other kinds are not looked at.
    """
    room = Specs(memory_headroom_fraction=specs.memory_headroom_fraction)
    space = Space(job, facts, {}, OBJECTIVE, room, is_priced=False)
    every: list[MemorySearch] = []
    for search in itertools.chain(_on_the_whole_cluster(space, MemorySearch), _each(space, every)):
        search.quick()
        if search.found.plan is not None:
            return search.found.plan
    for search in every:
        search.exact(math.inf, SearchBudget())
        if search.found.plan is not None:
            return search.found.plan
    return None


def _each(space: Space, every: list[MemorySearch]) -> Iterator[MemorySearch]:
    """Yield a search of every placement, and keep it in a list."""
    for placement in all_placements(space.job):
        every.append(MemorySearch(space, placement))
        yield every[-1]


def plan_on_all_gpus(job: Job, facts: Facts, specs: Specs) -> Plan | None:
    """Return a good synchronous plan that has all roles on all GPUs of one device; None where none is found.

    Args:
        specs: Limits that it keeps.
    """
    space = Space(job, facts, {}, OBJECTIVE, specs)
    for search in _on_the_whole_cluster(space, PlacementSearch):
        search.quick()
        if search.found.plan is not None:
            return search.found.plan
    return None


def _on_the_whole_cluster(space: Space, search: type[Search]) -> Iterator[Search]:
    """Yield searches of the placement of all roles together, on all GPUs of each device."""
    together = next(all_placements(space.job))
    whole = {share.group: share for share in space.shares}  # small ones come first
    for share in whole.values():
        yield search(space, together, SYNC, ((share, space.site(share)),))
