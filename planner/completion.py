"""Fill what a user's plan leaves open: the best layouts that keep what is fixed."""

import math
from dataclasses import fields, replace
from pathlib import Path

from planner.checks import STALENESS, check_plan, check_pools
from planner.draft_checks import check_draft
from planner.explain import pool_misfit_reason
from planner.generations import transition_for
from planner.mappings import RULE_TASK, Division, Ranking, host_pool, layouts_on
from planner.options import OptionTable
from planner.placements import in_role_order, placed_roles
from planner.pools import PoolTable
from profiles.catalog import load_job, resolve_job
from profiles.facts import Facts, load_facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.decoding import check_version, decode, load_yaml
from rlplan.errors import FileError
from rlplan.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import PLAN_VERSION, Plan, PlanDraft, TaskDraft, TaskPlan
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
    roles = placed_roles(job)
    gpu_pools = [pool for pool in draft.pools if not pool.is_host]
    placement = tuple(in_role_order(pool.roles, roles) for pool in gpu_pools)
    if sorted(role for members in placement for role in members) != sorted(roles):
        problem = "with open layouts, every role must be in just one pool"
        raise FileError(file, problem, field="pools", allowed=", ".join(roles))
    algorithm = load_algorithm(job.algorithm)
    tasks = tasks_of(algorithm, job)
    table = PoolTable(OptionTable(job, algorithm, tasks, facts, dict(draft.tasks)))
    skeleton = Plan(job=job, pools=draft.pools, tasks=FrozenDict(), order=FrozenDict())
    sites = sites_of(skeleton, facts)
    fronts = []
    for pool, members in zip(gpu_pools, placement, strict=True):
        options = table.pool_options(members, sites[pool.name])
        if not options:
            reason = pool_misfit_reason(members, sites[pool.name], table)
            problem = f"no layout that keeps what is fixed fits: {reason}"
            raise FileError(file, problem, field=f"pools.{pool.name}")
        fronts.append(options)
    own_sites = tuple(sites[pool.name] for pool in gpu_pools)
    division = Division(placement, own_sites, tuple(range(len(gpu_pools))), tuple(fronts))
    chosen = Ranking([division], table).next(math.inf)
    assert chosen is not None, "every pool has options"
    layouts: dict[str, TaskPlan] = {}
    for pool, option in zip(gpu_pools, chosen.options, strict=True):
        layouts |= layouts_on(pool.name, option)
    if RULE_TASK in names:
        host = next(pool for pool in draft.pools if pool.is_host)
        layouts[RULE_TASK] = TaskPlan(pool=host.name, dp=host.gpus, engine="python")
    ordered = FrozenDict({name: layouts[name] for name in names})
    return _plan(draft, job, ordered, names)
