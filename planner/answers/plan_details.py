"""What a page shows of a plan beside its forecast; other jobs are played anew or searched."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from rlplan.errors import UserError
from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.planner.answers.best_plans import best_plans
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import (
    MemoryMoment,
    PlanDetails,
    ResponsesUnderWay,
    SearchResult,
    WhatIf,
)
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.agenda import response_end_seconds
from rlplan.simulator.timeline.assemble import device_pools
from rlplan.simulator.timeline.pool_memory import memory_moments
from rlplan.workload import stretched

# Of each search; one that is cut short says how far its plan may be from the best.
SEARCH_SECONDS = 60.0
MORE_NODES = 2
# Points of a curve, which a page shows in so many pixels.
MOST_POINTS = 240


# Finds the best plan of a job by its facts, keeping what is pinned, in so many seconds. Others are not asked for.
Find = Callable[[Job, Facts, Pinned, float], SearchResult]


def best_of_job(job: Job, facts: Facts, pinned: Pinned, seconds: float) -> SearchResult:
    """Return the best plan of a job, whatever its framework can run."""
    return best_plans(job, facts, pinned=pinned, seconds=seconds, placements=1)


def plan_details(
    plan: Plan, facts: Facts, *, asks: bool = True, find: Find = best_of_job
) -> PlanDetails:
    """Return what a page shows of a plan beside its forecast.

    Args:
        find: The search of other jobs.
        asks: Whether other jobs are played too, which takes up to a search or two.
    """
    placed = PlacedPlan(plan, facts)
    memory = tuple(
        MemoryMoment(
            pool=pool.name,
            during=name,
            terms=terms,
            capacity_bytes=facts.device(pool.device).sheet.memory_bytes,
        )
        for pool in device_pools(plan)
        for name, terms in memory_moments(placed, pool).items()
    )
    return PlanDetails(
        what_ifs=tuple(what_ifs(plan, facts, find)) if asks else (),
        under_way=responses_under_way(plan, facts),
        memory=memory,
    )


def what_ifs(plan: Plan, facts: Facts, find: Find = best_of_job) -> Iterator[WhatIf]:
    """Yield what a plan comes to with other jobs, each played anew.

    Layouts and pools stay as they are; where they cannot run the changed job, and where it has more nodes, a
    plan is searched for it.
    """
    job, work = plan.job, plan.job.workload
    room = work.max_total_tokens
    longer = replace(
        work,
        response_tokens=stretched(work.response_tokens, 2),
        max_total_tokens=None if room is None else 2 * room,
    )
    yield _played("responses twice as long", plan, replace(job, workload=longer), facts, find)
    if work.prompts > 1:
        half = replace(work, prompts=work.prompts // 2)
        yield _played("half the batch", plan, replace(job, workload=half), facts, find)
    largest = max(job.cluster, key=lambda group: group.nodes * group.gpus_per_node)
    more = tuple(
        replace(group, nodes=group.nodes + MORE_NODES) if group is largest else group
        for group in job.cluster
    )
    yield _searched(f"{MORE_NODES} more nodes", plan, replace(job, cluster=more), facts, find)


def _played(change: str, plan: Plan, job: Job, facts: Facts, find: Find) -> WhatIf:
    """Return the same plan of another job; one that is searched where it cannot run it."""
    changed = replace(plan, job=job)
    try:
        return WhatIf(change=change, plan=changed, forecast=simulate(changed, facts))
    except UserError:
        return _searched(change, plan, job, facts, find)


def _searched(change: str, plan: Plan, job: Job, facts: Facts, find: Find) -> WhatIf:
    """Return the best plan of another job whose iterations follow each other as the plan's do."""
    alike = Pinned(asked=AskedSchedules(modes=(plan.mode,)))
    try:
        result = find(job, facts, alike, SEARCH_SECONDS)
    except UserError as error:
        return WhatIf(change=change, is_same_plan=False, reason=str(error))
    best = result.plans[0]
    return WhatIf(
        change=change,
        plan=best.plan,
        is_same_plan=False,
        forecast=best.forecast,
        gap=result.gap,
    )


def responses_under_way(plan: Plan, facts: Facts) -> ResponsesUnderWay | None:
    """Return how many responses are under way during generation; None in modes that never stop generating."""
    if plan.flow.by_sample:
        return None
    ends = sorted(response_end_seconds(PlacedPlan(plan, facts)).tolist())
    layout, count = plan.tasks["actor.generate"], len(ends)
    # Points at even steps of what is left and of time, so that batch and tail both show.
    by_count = {round(index * (count - 1) / MOST_POINTS) for index in range(MOST_POINTS + 1)}
    kept = sorted(by_count)
    return ResponsesUnderWay(
        seconds=(0.0, *(ends[index] for index in kept)),
        responses=(count, *(count - 1 - index for index in kept)),
        most_running=min(layout.max_running * layout.dp, count),
    )
