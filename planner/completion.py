"""Fill what a user's plan leaves open: the best layouts that keep what is fixed."""

from dataclasses import fields, replace
from pathlib import Path

from planner.allocations import Share
from planner.checks import STALENESS, check_plan, check_pools
from planner.draft_checks import check_draft
from planner.effort import Effort
from planner.generations import transition_for
from planner.host import RULE_TASK, host_pool
from planner.misfits import pool_misfit_reason
from planner.placement_search import PlacementSearch
from planner.placements import GENERATION, UnitSet, in_role_order, placed_roles
from planner.space import Space
from profiles.catalog import load_job, resolve_job
from profiles.facts import Facts, load_facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.decoding import check_version, decode, load_yaml
from rlplan.errors import FileError
from rlplan.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import PLAN_VERSION, Plan, PlanDraft, TaskDraft, TaskPlan
from rlplan.specs import NO_SPECS
from simulator.site import sites_of


def load_plan(path: Path, profile: Path | None = None) -> tuple[Plan, Facts]:
    """Return a plan file's plan, completed and checked, with the facts for its devices.

    Raises:
        FileError: The plan or its job is wrong; the message names file and field.
    """
    data = load_yaml(path)
    check_version(data, PLAN_VERSION, str(path), "plan")
    draft = decode(PlanDraft, data, str(path))
    job = draft_job(draft, path)
    facts = load_facts(job, profile)
    return complete(draft, job, facts, str(path)), facts


def draft_job(draft: PlanDraft, path: Path) -> Job:
    """Return the resolved job of a plan file: the copy that it holds, or the file that it names."""
    if isinstance(draft.job, str):
        return load_job(path.parent / draft.job)
    return resolve_job(draft.job, path.parent, file=str(path), prefix="job.")


def complete(draft: PlanDraft, job: Job, facts: Facts, file: str = "plan") -> Plan:
    """Return a plan in which everything is chosen; what the user fixed stays as it is.

    Raises:
        FileError: The fixed parts contradict each other, or no layout keeps them.
    """
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    names = tuple(task.name for task in tasks)
    check_pools(draft.pools, job, file)
    if RULE_TASK in names and not any(pool.is_host for pool in draft.pools):
        draft = replace(draft, pools=(*draft.pools, host_pool(job)))
    check_draft(draft, job, tasks, file)
    plan = _as_written(draft, job, names)
    if plan is None:
        plan = _chosen(draft, job, facts, names, file)
    check_plan(plan, file)
    return plan


def _as_written(draft: PlanDraft, job: Job, names: tuple[str, ...]) -> Plan | None:
    """Return the plan if its file leaves nothing open that a search would have to choose."""
    sizes = ("pool", "tp", "pp", "dp")
    layouts = {}
    for name in names:
        task = draft.tasks.get(name)
        if task is None and name == RULE_TASK:
            task = _rule_draft(draft)
        if task is None or any(getattr(task, size) is None for size in sizes):
            return None
        layouts[name] = _layout(task, name, job)
    return _plan(draft, job, FrozenDict(layouts), names)


def _layout(task: TaskDraft, name: str, job: Job) -> TaskPlan:
    given = {item.name: getattr(task, item.name) for item in fields(task)}
    if task.engine is None:
        generates = name.endswith(".generate")
        given["engine"] = job.engines.generate if generates else job.engines.train
    return TaskPlan(**{key: value for key, value in given.items() if value is not None})


def _rule_draft(draft: PlanDraft) -> TaskDraft | None:
    host = next((pool for pool in draft.pools if pool.is_host), None)
    return TaskDraft(pool=host.name, tp=1, pp=1, dp=host.gpus, engine="python") if host else None


def _plan(
    draft: PlanDraft, job: Job, layouts: FrozenDict[str, TaskPlan], names: tuple[str, ...]
) -> Plan:
    pools = draft.pools
    order = dict(draft.order)
    for pool in pools:
        there = tuple(name for name in names if name in layouts and layouts[name].pool == pool.name)
        order.setdefault(pool.name, there)
    train, generate = layouts.get("actor.update"), layouts.get("actor.generate")
    transition = draft.transition
    if transition is None and train is not None and generate is not None:
        same = train.pool == generate.pool
        transition = transition_for(train, generate) if same else "two-copies"
    return Plan(
        job=job,
        pools=pools,
        tasks=layouts,
        order=FrozenDict(order),
        mode=draft.mode,
        transition=transition or "none",
        staleness=STALENESS.get(draft.mode, 0) if draft.staleness is None else draft.staleness,
        made_by=draft.made_by,
    )


def _chosen(draft: PlanDraft, job: Job, facts: Facts, names: tuple[str, ...], file: str) -> Plan:
    """Choose the layouts of the fewest seconds for the draft's own pools."""
    gpu_pools = [pool for pool in draft.pools if not pool.is_host]
    placement = _placement(draft, job, file)
    own = draft.transition if draft.transition != "two-copies" else None
    space = Space(job, facts, draft.tasks, "throughput", NO_SPECS, own)
    skeleton = Plan(job=job, pools=draft.pools, tasks=FrozenDict(), order=FrozenDict())
    sites = sites_of(skeleton, facts)
    places = []
    for pool, members in zip(gpu_pools, placement, strict=True):
        site = sites[pool.name]
        if not len(space.pools.quick(members, site)):
            reason = pool_misfit_reason(members, site, space)
            problem = f"no layout that keeps what is fixed fits: {reason}"
            raise FileError(file, problem, field=f"pools.{pool.name}")
        group = next(place for place, each in enumerate(job.cluster) if each.gpu == pool.device)
        places.append((Share(group, pool.gpus), site))
    search = PlacementSearch(space, placement, draft.mode, tuple(places))
    search.quick()
    search.exact(search.found.value, Effort())
    chosen = search.found.mapping
    if chosen is None:
        generating = search.bounds.generating
        pool, site = gpu_pools[generating], places[generating][1]
        reason = pool_misfit_reason(placement[generating], site, space)
        problem = f"no layout that keeps what is fixed fits: {reason}"
        raise FileError(file, problem, field=f"pools.{pool.name}")
    layouts: dict[str, TaskPlan] = {}
    for pool, own_layouts in zip(gpu_pools, chosen.layouts, strict=True):
        layouts |= {name: replace(each, pool=pool.name) for name, each in own_layouts.items()}
    if RULE_TASK in names:
        host = next(pool for pool in draft.pools if pool.is_host)
        layouts[RULE_TASK] = TaskPlan(pool=host.name, dp=host.gpus, engine="python")
    ordered = FrozenDict({name: layouts[name] for name in names})
    return _plan(replace(draft, transition=chosen.transition), job, ordered, names)


def _placement(draft: PlanDraft, job: Job, file: str) -> tuple[UnitSet, ...]:
    """Return the units of the draft's pools: the actor is on two where it generates apart.

    Raises:
        FileError: A role is on no pool, or on several without a reason.
    """
    roles = placed_roles(job)
    gpu_pools = [pool for pool in draft.pools if not pool.is_host]
    homes = [pool.name for pool in gpu_pools if "actor" in pool.roles]
    fixed = draft.tasks.get(GENERATION)
    apart = fixed.pool if fixed is not None and len(homes) == 2 else None  # noqa: PLR2004
    placement: list[UnitSet] = []
    for pool in gpu_pools:
        members: UnitSet = in_role_order(pool.roles, roles)
        if pool.name == apart:
            members = (GENERATION, *(role for role in members if role != "actor"))
        placement.append(members)
    placed = sorted(role for members in placement for role in members if role != GENERATION)
    if placed != sorted(roles):
        problem = "with open layouts, every role must be in just one pool"
        hint = "; an actor on two pools says tasks.actor.generate.pool"
        raise FileError(file, problem, field="pools", allowed=", ".join(roles) + hint)
    return tuple(placement)
