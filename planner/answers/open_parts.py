"""What a user's plan leaves open, chosen by the search: its pools, or the layouts on pools that stand.

A plan that is whole needs none of it, and answers before the search is loaded.
"""

from dataclasses import replace

from rlplan.errors import InfeasibleError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, Specs
from rlplan.plan import USUAL_MODE, Plan, PlanDraft, ResourcePool
from rlplan.planner.exact.best_first import PlacementSearch, SearchBudget
from rlplan.planner.exact.infeasibility import pool_infeasibility_reason
from rlplan.planner.exact.space import Space
from rlplan.planner.placements.allocations import Share
from rlplan.planner.plans.assembly import plan_of
from rlplan.planner.requests.drafts import pinned_parts
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.schedules import AskedSchedules, ScheduleSpace
from rlplan.planner.requests.specs import roomy
from rlplan.planner.search import check_searched, search
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import SearchResult
from rlplan.simulator.placed import sites_of


def searched(
    draft: PlanDraft, pinned: Pinned, job: Job, facts: Facts, specs: Specs, file: str
) -> Plan:
    """Return the plan of the fewest seconds that keeps what is pinned, its pools included.

    Args:
        specs: What it has to keep besides.
        file: What to call the plan in messages.

    Raises:
        FileError: A search does not know what the job asks for.
        InfeasibleError: Nothing fits.
    """
    return _found(draft, pinned, job, facts, specs, file).plans[0].plan


def first_found(
    draft: PlanDraft, job: Job, facts: Facts, file: str = "plan", *, seconds: float
) -> SearchResult:
    """Return what a search finds of a draft whose pools are open, if it ends after so many seconds, or once it has a plan.

    Its best plan leaves free what searches do; `gap` is by how much another one may be better.

    Raises:
        FileError: The pinned parts contradict each other, or a search does not know what the job asks for.
        InfeasibleError: Nothing fits.
    """
    room = Specs(memory_headroom_fraction=roomy(job).memory_headroom_fraction)
    return _found(draft, pinned_parts(draft, job, file), job, facts, room, file, seconds)


def _found(
    draft: PlanDraft,
    pinned: Pinned,
    job: Job,
    facts: Facts,
    specs: Specs,
    file: str,
    seconds: float | None = None,
) -> SearchResult:
    pinned = replace(pinned, asked=_asked(draft, pinned))
    check_searched(job, file, pinned.asked.modes)
    return search(
        job,
        facts,
        pinned=pinned,
        objective="throughput",
        specs=specs,
        placements=1,
        seconds=seconds,
    )


def chosen(
    draft: PlanDraft,
    pools: tuple[ResourcePool, ...],
    pinned: Pinned,
    job: Job,
    facts: Facts,
    specs: Specs,
    file: str,
) -> Plan:
    """Return the plan with the layouts of the fewest seconds on the draft's own pools, where they stand.

    Raises:
        InfeasibleError: Nothing that keeps what is pinned fits.
    """
    gpu_pools = [pool for pool in pools if not pool.is_host]
    placement = tuple(pool.members for pool in pinned.pools)
    space = Space(job, facts, draft.tasks, "throughput", specs, draft.transition, pinned)
    skeleton = Plan(job=job, pools=pools, tasks=FrozenDict(), order=FrozenDict())
    sites = sites_of(skeleton, facts)
    places = []
    for pool, members in zip(gpu_pools, placement, strict=True):
        site = sites[pool.name]
        if not len(space.pools.quick(members, site)):
            reason = pool_infeasibility_reason(members, site, space)
            raise _nothing_fits(file, pool, reason)
        group = next(place for place, each in enumerate(job.cluster) if each.gpu == pool.device)
        places.append((Share(group, pool.gpus), site))
    schedule = next(iter(ScheduleSpace(job, specs, _asked(draft, pinned))))
    arranging = PlacementSearch(space, placement, schedule, tuple(places))
    arranging.quick()
    arranging.exact(arranging.found.value, SearchBudget())
    found = arranging.found.choice
    if found is None:
        generating = arranging.bounds.generating
        pool, site = gpu_pools[generating], places[generating][1]
        reason = pool_infeasibility_reason(placement[generating], site, space)
        raise _nothing_fits(file, pool, reason)
    found = replace(found, transition=draft.transition or found.transition)
    return _in_place(plan_of(found, job, draft.made_by, pinned), pools)


def _asked(draft: PlanDraft, pinned: Pinned) -> AskedSchedules:
    """Return what a draft says of its schedule, synchronous where it says nothing."""
    return replace(
        pinned.asked, modes=(draft.mode or USUAL_MODE,), in_flight=draft.in_flight or "drain"
    )


def _nothing_fits(file: str, pool: ResourcePool, reason: str) -> InfeasibleError:
    return InfeasibleError(
        f"{file}: pools.{pool.name}: no layout that keeps what is pinned fits: {reason}"
    )


def _in_place(plan: Plan, pools: tuple[ResourcePool, ...]) -> Plan:
    """Return a plan whose pools are the draft's, in its order; one of its own comes last."""
    names = {pool.name for pool in pools}
    return replace(plan, pools=(*pools, *(pool for pool in plan.pools if pool.name not in names)))
