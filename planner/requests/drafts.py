"""Read and check what a user pinned in a partial plan: `pinned_parts` hands it to a search."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.objectives import objective_names
from planner.placements.orders import tasks_of_set
from planner.placements.partitions import GENERATION, ColocatedSet, in_role_order, placed_roles
from planner.requests.checks import check_pools
from planner.requests.draft_checks import check_draft
from planner.requests.pinned import NOTHING_PINNED, POOL_NAME, Pinned, PinnedPool
from planner.requests.task_checks import refuse
from profiles.catalog import load_job, resolve_job
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import nearest_name
from rlplan.files.decoding import check_version, decode, load_yaml
from rlplan.job import Job
from rlplan.plan import (
    HOST_DEVICE,
    PLAN_VERSION,
    Mode,
    PlanDraft,
    PoolDraft,
    ResourcePool,
    TransitionName,
)


def load_request(path: Path) -> tuple[Job, Pinned]:
    """Return the resolved job of a file to search, a job's or a partial plan's, and what it pins.

    Raises:
        FileError: The file is wrong; the message names file and field.
    """
    data = load_yaml(path)
    if not isinstance(data, dict) or "job" not in data:
        job = load_job(path)
        _check_objective(job, str(path), "objective")
        return job, NOTHING_PINNED
    draft, job = read_draft(data, path)
    return job, pinned_parts(draft, job, str(path))


def read_draft(data: Any, path: Path) -> tuple[PlanDraft, Job]:  # noqa: ANN401 -- as YAML has it
    """Return a plan file's draft and its job: the copy that it holds, or the file that it names.

    Raises:
        FileError: The draft or its job is wrong.
    """
    check_version(data, PLAN_VERSION, str(path), "plan")
    draft = decode(PlanDraft, data, str(path))
    if isinstance(draft.job, str):
        named_file = path.parent / draft.job
        if not named_file.is_file():
            problem = "is a folder, not a job's file" if named_file.is_dir() else "no such file"
            refuse(str(path), "job", problem, draft.job, "a job's file, or the job itself")
        job = load_job(named_file)
        _check_objective(job, str(named_file), "objective")
    else:
        job = resolve_job(draft.job, path.parent, file=str(path), prefix="job.")
        _check_objective(job, str(path), "job.objective")
    return draft, job


def _check_objective(job: Job, file: str, field: str) -> None:
    names = objective_names()
    if job.objective not in names:
        nearest, allowed = nearest_name(job.objective, names), ", ".join(names)
        refuse(file, field, "is no objective", job.objective, allowed, nearest)


def named(draft: PlanDraft, job: Job) -> PlanDraft:
    """Return a draft whose pools all have names, and the device where there is only one."""
    devices = {group.gpu for group in job.cluster}
    only = next(iter(devices)) if len(devices) == 1 else None
    taken = {pool.name for pool in draft.pools}
    numbers = (POOL_NAME.format(number) for number in range(2 * len(draft.pools)))
    free = (name for name in numbers if name not in taken)
    pools = tuple(
        replace(pool, name=pool.name or next(free), device=pool.device or only)
        for pool in draft.pools
    )
    return replace(draft, pools=pools)


def pinned_parts(draft: PlanDraft, job: Job, file: str = "plan") -> Pinned:
    """Return what a draft pins, for a search of the rest.

    Raises:
        FileError: The pinned parts contradict each other or the job.
    """
    draft = named(draft, job)
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    check_pools(draft.pools, job, file)
    check_draft(draft, job, tasks, file)
    gpu_pools = [pool for pool in draft.pools if pool.device != HOST_DEVICE]
    sets = members_of(draft, job, file)
    pools = tuple(
        PinnedPool(
            members=members,
            name=pool.name,
            device=pool.device,
            gpus=pool.gpus,
            order=draft.order.get(pool.name or ""),
        )
        for pool, members in zip(gpu_pools, sets, strict=True)
    )
    _check_room(pools, job, file)
    _check_order(draft, pools, job, file)
    host = next((pool for pool in draft.pools if pool.device == HOST_DEVICE), None)
    _check_modes(draft.mode, draft.transition, sets, job, file)
    return Pinned(
        tasks=draft.tasks,
        pools=pools,
        host=_host(host) if host else None,
        mode=draft.mode,
        transition=draft.transition,
    )


def _host(pool: PoolDraft) -> ResourcePool:
    assert pool.name is not None, "a named draft's pools have names"
    return ResourcePool(name=pool.name, device=HOST_DEVICE, gpus=pool.gpus or 1, roles=pool.roles)


def members_of(draft: PlanDraft, job: Job, file: str) -> tuple[ColocatedSet, ...]:
    """Return the units of a named draft's GPU pools; the actor is on two where it generates apart.

    Raises:
        FileError: A role is no model of the job, or on several pools without a reason.
    """
    roles = placed_roles(job)
    gpu_pools = [pool for pool in draft.pools if pool.device != HOST_DEVICE]
    for pool in gpu_pools:
        for role in pool.roles:
            if role not in roles:
                nearest, allowed = nearest_name(role, roles), ", ".join(roles)
                refuse(file, f"pools.{pool.name}.roles", "no such model", role, allowed, nearest)
    homes = [pool.name for pool in gpu_pools if "actor" in pool.roles]
    pinned = draft.tasks.get(GENERATION)
    apart = pinned.pool if pinned is not None and len(homes) == 2 else None  # noqa: PLR2004
    placement: list[ColocatedSet] = []
    for pool in gpu_pools:
        members: ColocatedSet = in_role_order(pool.roles, roles)
        if pool.name == apart:
            members = (GENERATION, *(role for role in members if role != "actor"))
        placement.append(members)
    counts = Counter(unit for members in placement for unit in members)
    for unit, count in counts.items():
        if count > 1:
            hint = "one pool" if unit != "actor" else "one; on two, tasks.actor.generate.pool says"
            refuse(file, "pools", f"the role {unit} is on {count} pools", None, hint)
    return tuple(placement)


def _check_room(pools: tuple[PinnedPool, ...], job: Job, file: str) -> None:
    """Refuse pools that leave no GPU to the models of no pool."""
    taken = {unit for pool in pools for unit in pool.members}
    left = [role for role in placed_roles(job) if role not in taken]
    gpus = sum(pool.gpus or 1 for pool in pools)
    if left and gpus >= job.gpus:
        problem = f"leave no GPU of the cluster's {job.gpus} to {', '.join(left)}"
        allowed = f"at most {job.gpus - 1} GPUs, or pools that hold {', '.join(left)} too"
        refuse(file, "pools", problem, f"{gpus} GPUs", allowed)


def _check_order(draft: PlanDraft, pools: tuple[PinnedPool, ...], job: Job, file: str) -> None:
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    apart = any(GENERATION in pool.members for pool in pools)
    known = {pool.name: tasks_of_set(pool.members, tasks, apart=apart) for pool in pools}
    for name, order in draft.order.items():
        if name not in {pool.name for pool in draft.pools}:
            names = [pool.name or "" for pool in draft.pools]
            refuse(file, f"order.{name}", "no such pool", None, ", ".join(names) or "none")
        there = sorted(task.name for task in known.get(name, []))
        if name in known and sorted(order) != there:
            problem = "must name each task of the pool once"
            refuse(file, f"order.{name}", problem, ", ".join(order), ", ".join(there))


def _check_modes(
    mode: Mode | None,
    transition: TransitionName | None,
    sets: tuple[ColocatedSet, ...],
    job: Job,
    file: str,
) -> None:
    """Refuse a mode or transition that no placement with the pinned sets has."""
    apart = any(GENERATION in members for members in sets)
    at_home = not apart and any("actor" in members for members in sets)
    if mode == "streaming":
        problem = "is not simulated or executed yet"
        refuse(file, "mode", problem, mode, "sync, one-step-off")
    if mode == "one-step-off" and job.specs.staleness == 0:
        refuse(file, "mode", "breaks specs.staleness of the job, which is 0", mode, "sync")
    if mode == "one-step-off" and at_home:
        problem = (
            "generates ahead on a pool of its own, but actor.generate is where actor.update is"
        )
        refuse(file, "mode", problem, mode, "sync")
    copies = transition == "two-copies"
    if transition is not None and ((copies and at_home) or (not copies and apart)):
        problem = "two copies are for an actor that generates on another pool than it trains on"
        allowed = "hybridflow, hybridflow-v, all-gather, none" if at_home else "two-copies"
        refuse(file, "transition", problem, transition, allowed)
