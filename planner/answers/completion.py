"""Fill what a user's plan leaves open: the best layouts, or pools, that keep what is pinned."""

from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from planner.answers.misfits import least_misfit
from planner.exact.best_first import SearchBudget
from planner.exact.infeasibility import pool_infeasibility_reason
from planner.exact.placement_search import PlacementSearch
from planner.exact.space import Space
from planner.placements.allocations import Share
from planner.placements.partitions import GENERATION, placed_roles
from planner.plans.assembly import assemble, plan_of
from planner.requests.drafts import named, pinned_parts, read_draft
from planner.requests.pinned import Pinned
from planner.requests.schedules import AskedSchedules, ScheduleSpace
from planner.search import search
from profiles.catalog import ENGINES
from profiles.facts import Facts, load_facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.errors import InfeasibleError
from rlplan.files.decoding import load_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE, Plan, PlanDraft, ResourcePool, TaskDraft, TaskPlan
from rlplan.rules import check_plan
from rlplan.specs import NO_SPECS
from simulator.placed.site import sites_of


def load_plan(
    path: Path,
    profile: Path | None = None,
    *,
    site: Path | None = None,
    misfits: bool = False,
) -> tuple[Plan, Facts]:
    """Return a plan file's plan, completed and checked, with the facts for its devices.

    Args:
        site: Factors of `rlplan calibrate`, for the facts.
        misfits: As `complete` has it.

    Raises:
        FileError: The plan or its job is wrong; the message names file and field.
        InfeasibleError: Nothing that keeps what is pinned fits.
    """
    draft, job = read_draft(load_yaml(path), path)
    facts = load_facts(job, profile, site)
    return complete(draft, job, facts, str(path), misfits=misfits), facts


def complete(
    draft: PlanDraft, job: Job, facts: Facts, file: str = "plan", *, misfits: bool = False
) -> Plan:
    """Return a plan in which everything is chosen; what the user pinned stays as it is.

    Args:
        misfits: Whether a plan that needs little more memory than there is will do where none fits.

    Raises:
        FileError: The pinned parts contradict each other.
        InfeasibleError: Nothing that keeps them fits.
    """
    draft = named(draft, job)
    pinned = pinned_parts(draft, job, file)
    choose = partial(_filled, draft, pinned, job, file=file)
    try:
        plan = choose(facts)
    except InfeasibleError as error:
        if not misfits:
            raise
        plan = least_misfit(choose, facts, error)
    names = ("staleness", "sync_every", "in_flight")
    given = {name: getattr(draft, name) for name in names if getattr(draft, name) is not None}
    plan = replace(plan, bucket_bytes=draft.bucket_bytes, **given)
    check_plan(plan, ENGINES, file)
    return plan


def _filled(draft: PlanDraft, pinned: Pinned, job: Job, facts: Facts, *, file: str) -> Plan:
    """Return a draft with what it leaves open chosen."""
    pools = _whole_pools(draft)
    placed = {role for each in pinned.pools for role in each.members if role != GENERATION}
    if pools is None or placed != set(placed_roles(job)):
        return _searched(draft, pinned, job, facts)
    return _as_written(draft, pools, job) or _chosen(draft, pools, pinned, job, facts, file)


def _whole_pools(draft: PlanDraft) -> tuple[ResourcePool, ...] | None:
    """Return a draft's pools if their devices and sizes are all pinned."""
    found = []
    for pool in draft.pools:
        gpus = pool.gpus or (1 if pool.device == HOST_DEVICE else None)
        if pool.name is None or pool.device is None or gpus is None:
            return None
        found.append(ResourcePool(name=pool.name, device=pool.device, gpus=gpus, roles=pool.models))
    return tuple(found)


def _searched(draft: PlanDraft, pinned: Pinned, job: Job, facts: Facts) -> Plan:
    """Choose what is open, pools included, for the fewest seconds."""
    pinned = replace(pinned, asked=_asked(draft, pinned))
    return search(job, facts, pinned=pinned, objective="throughput", specs=NO_SPECS).plans[0].plan


def _as_written(draft: PlanDraft, pools: tuple[ResourcePool, ...], job: Job) -> Plan | None:
    """Return the plan if its file leaves nothing open that a search would have to choose."""
    sizes = ("pool", "tp", "pp", "dp")
    layouts = {}
    for task in tasks_of(load_algorithm(job.algorithm), job):
        written = draft.tasks.get(task.name)
        if written is None and task.kind == "rule":
            continue
        if written is None or any(getattr(written, size) is None for size in sizes):
            return None
        layouts[task.name] = _layout(written, task, job)
    return assemble(
        job,
        pools,
        layouts,
        made_by=draft.made_by,
        mode=draft.mode or "sync",
        transition=draft.transition,
        order=draft.order,
    )


def _layout(written: TaskDraft, task: Task, job: Job) -> TaskPlan:
    given = {item.name: getattr(written, item.name) for item in fields(written)}
    if written.engine is None:
        generates = task.kind == "generate"
        given["engine"] = job.engines.generate if generates else job.engines.train
    return TaskPlan(**{key: value for key, value in given.items() if value is not None})


def _chosen(
    draft: PlanDraft,
    pools: tuple[ResourcePool, ...],
    pinned: Pinned,
    job: Job,
    facts: Facts,
    file: str,
) -> Plan:
    """Choose the layouts of the fewest seconds for the draft's own pools, where they stand."""
    gpu_pools = [pool for pool in pools if not pool.is_host]
    placement = tuple(pool.members for pool in pinned.pools)
    space = Space(job, facts, draft.tasks, "throughput", NO_SPECS, draft.transition, pinned)
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
    schedule = next(iter(ScheduleSpace(job, NO_SPECS, _asked(draft, pinned))))
    search = PlacementSearch(space, placement, schedule, tuple(places))
    search.quick()
    search.exact(search.found.value, SearchBudget())
    chosen = search.found.choice
    if chosen is None:
        generating = search.bounds.generating
        pool, site = gpu_pools[generating], places[generating][1]
        reason = pool_infeasibility_reason(placement[generating], site, space)
        raise _nothing_fits(file, pool, reason)
    chosen = replace(chosen, transition=draft.transition or chosen.transition)
    return _in_place(plan_of(chosen, job, draft.made_by, pinned), pools)


def _asked(draft: PlanDraft, pinned: Pinned) -> AskedSchedules:
    """Return what a draft says of its schedule, synchronous where it says nothing."""
    return replace(
        pinned.asked, modes=(draft.mode or "sync",), in_flight=draft.in_flight or "drain"
    )


def _nothing_fits(file: str, pool: ResourcePool, reason: str) -> InfeasibleError:
    return InfeasibleError(
        f"{file}: pools.{pool.name}: no layout that keeps what is pinned fits: {reason}"
    )


def _in_place(plan: Plan, pools: tuple[ResourcePool, ...]) -> Plan:
    """Return a plan whose pools are the draft's, in its order; one of its own comes last."""
    names = {pool.name for pool in pools}
    return replace(plan, pools=(*pools, *(pool for pool in plan.pools if pool.name not in names)))
