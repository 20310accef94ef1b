"""Read and check what a user pinned in a partial plan: `pinned_parts` hands it to a search."""

import shlex
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of, unused_roles
from rlplan.errors import FileError, nearest_name
from rlplan.files.decoding import check_version, decode, load_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import (
    FLOWS,
    GENERATION_ROLE,
    HOST_DEVICE,
    PLAN_VERSION,
    USUAL_MODE,
    WHOLE_LAYOUT,
    PlanDraft,
    PoolDraft,
    ResourcePool,
    TaskDraft,
    TaskPlan,
)
from rlplan.planner.objectives import objective_names
from rlplan.planner.placements.partitions import (
    GENERATION,
    ColocatedSet,
    in_role_order,
    placed_roles,
)
from rlplan.planner.requests.pinned import NOTHING_PINNED, POOL_NAME, Pinned, PinnedPool
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.profiles.catalog import ENGINES, load_job, resolve_job
from rlplan.profiles.sheets import canonical_name
from rlplan.rules import check_draft

# A plan that lays this pass out has it, where the framework runs it in some steps and the job says nothing.
OLD_LOG_PROBS = "actor.compute_log_prob"


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
    if draft.lending is not None:
        problem = "is not searched for: `rlplan search --lend` tries it on the plans that it finds"
        raise FileError(str(path), problem, field="lending", allowed="no lending")
    return job, pinned_parts(draft, job, str(path))


def read_draft(data: Any, path: Path) -> tuple[PlanDraft, Job]:  # noqa: ANN401 -- as YAML has it
    """Return a plan file's draft and its job: the copy that it holds, or the file that it names.

    Raises:
        FileError: The draft or its job is wrong.
    """
    check_version(data, PLAN_VERSION, str(path), "plan")
    if "job" not in data and "workload" in data:
        allowed = f"a plan, such as `rlplan search {shlex.quote(str(path))} --out plan.yaml` writes"
        raise FileError(str(path), "is a job, not a plan", allowed=allowed)
    draft = decode(PlanDraft, data, str(path))
    passes = OLD_LOG_PROBS in draft.tasks
    if isinstance(draft.job, str):
        named_file = path.parent / draft.job
        if not named_file.is_file():
            problem = "is a folder, not a job's file" if named_file.is_dir() else "no such file"
            raise FileError(
                str(path),
                problem,
                field="job",
                value=draft.job,
                allowed="a job's file, or the job itself",
            )
        job = load_job(named_file, passes=passes)
        _check_objective(job, str(named_file), "objective")
    else:
        job = resolve_job(draft.job, path.parent, file=str(path), prefix="job.", passes=passes)
        _check_objective(job, str(path), "job.objective")
    draft = with_generation(without_unused_roles(draft, job), str(path))
    return written_out(draft, job), job


def with_generation(draft: PlanDraft, file: str) -> PlanDraft:
    """Return a draft whose pool of the role `generation`, if it has one, holds the actor that generates.

    Raises:
        FileError: There is no pool for the actor's training, or several are said to generate.
    """
    places = [place for place, pool in enumerate(draft.pools) if GENERATION_ROLE in pool.roles]
    if not places:
        return draft
    field = f"pools.{places[-1]}.roles"
    trains = any("actor" in pool.roles for pool in draft.pools)
    if len(places) > 1 or not trains:
        problem = "generates on one pool, beside another pool on which the actor is trained"
        allowed = "one pool with generation, and one with actor"
        raise FileError(file, problem, field=field, value=GENERATION_ROLE, allowed=allowed)
    place, taken = places[0], {pool.name for pool in draft.pools}
    pool = draft.pools[place]
    name = pool.name or next(
        name for number in range(len(taken) + 1) if (name := POOL_NAME.format(number)) not in taken
    )
    given = draft.tasks.get(GENERATION, TaskDraft())
    if given.pool not in {None, name}:
        allowed = f"{name}, whose roles have generation"
        where = f"tasks.{GENERATION}.pool"
        raise FileError(file, "is another pool", field=where, value=given.pool, allowed=allowed)
    pools = (
        *draft.pools[:place],
        replace(pool, name=name, roles=pool.models),
        *draft.pools[place + 1 :],
    )
    tasks = draft.tasks.with_item(GENERATION, replace(given, pool=name))
    return replace(draft, pools=pools, tasks=tasks)


def written_out(draft: PlanDraft, job: Job) -> PlanDraft:
    """Return a draft with the defaults of its layouts, if it leaves nothing of them to choose.

    It does where every model's task has all of `WHOLE_LAYOUT`; that is how plans are written.
    """
    tasks = [task for task in tasks_of(load_algorithm(job.algorithm), job) if task.has_model]
    given = [draft.tasks.get(task.name, TaskDraft()) for task in tasks]
    if any(getattr(each, name) is None for each in given for name in WHOLE_LAYOUT):
        return draft
    usual = {each.name: each.default for each in fields(TaskPlan) if each.default is not MISSING}
    whole = draft.tasks
    for task, each in zip(tasks, given, strict=True):
        left = {name: value for name, value in usual.items() if getattr(each, name) is None}
        whole = whole.with_item(task.name, replace(each, **left))
    return replace(draft, tasks=whole)


def without_unused_roles(draft: PlanDraft, job: Job) -> PlanDraft:
    """Return a draft without the models that no task of its job reads, and without their tasks."""
    algorithm = load_algorithm(job.algorithm)
    unused, known = unused_roles(algorithm, job), {task.name for task in tasks_of(algorithm, job)}
    if not unused:
        return draft

    def is_kept(task: str) -> bool:
        return task in known or task.split(".", maxsplit=1)[0] not in unused

    pools = tuple(
        replace(pool, roles=tuple(role for role in pool.roles if role not in unused))
        for pool in draft.pools
        if not pool.roles or not unused.issuperset(pool.roles)
    )
    order = {name: tuple(filter(is_kept, tasks)) for name, tasks in draft.order.items()}
    return replace(
        draft,
        pools=pools,
        tasks=FrozenDict({name: task for name, task in draft.tasks.items() if is_kept(name)}),
        order=FrozenDict({name: tasks for name, tasks in order.items() if tasks}),
    )


def _check_objective(job: Job, file: str, field: str) -> None:
    names = objective_names()
    if job.objective not in names:
        nearest, allowed = nearest_name(job.objective, names), ", ".join(names)
        raise FileError(
            file,
            "is no objective",
            field=field,
            value=job.objective,
            allowed=allowed,
            nearest=nearest,
        )


def named(draft: PlanDraft, job: Job) -> PlanDraft:
    """Return a draft whose pools all have names, the device where there is only one, by its full name."""
    devices = {group.gpu for group in job.cluster}
    only = next(iter(devices)) if len(devices) == 1 else None
    taken = {pool.name for pool in draft.pools}
    numbers = (POOL_NAME.format(number) for number in range(2 * len(draft.pools)))
    free = (name for name in numbers if name not in taken)
    pools = tuple(
        replace(pool, name=pool.name or next(free), device=_device(pool.device, devices) or only)
        for pool in draft.pools
    )
    return replace(draft, pools=pools)


def _device(name: str | None, devices: set[str]) -> str | None:
    """Return the cluster's name of a device that a user may name in short."""
    if name is None or name in devices:
        return name
    known = canonical_name("devices", name)
    return known if known in devices else name


def pinned_parts(draft: PlanDraft, job: Job, file: str = "plan") -> Pinned:
    """Return what a draft pins, for a search of the rest.

    Raises:
        FileError: The pinned parts contradict each other or the job.
    """
    draft = named(draft, job)
    check_draft(draft, job, ENGINES, file)
    gpu_pools = [pool for pool in draft.pools if pool.device != HOST_DEVICE]
    sets = members_of(draft, job)
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
    if draft.mode is not None and FLOWS[draft.mode].usual_staleness > 0 == job.specs.staleness:
        problem = "breaks specs.staleness of the job, which is 0"
        raise FileError(file, problem, field="mode", value=draft.mode, allowed=USUAL_MODE)
    host = next((pool for pool in draft.pools if pool.device == HOST_DEVICE), None)
    return Pinned(
        tasks=draft.tasks,
        pools=pools,
        host=_host(host) if host else None,
        asked=AskedSchedules(
            modes=() if draft.mode is None else (draft.mode,),
            staleness=draft.staleness,
            sync_every=draft.sync_every,
            in_flight=draft.in_flight,
        ),
        transition=draft.transition,
        bucket_bytes=draft.bucket_bytes,
    )


def _host(pool: PoolDraft) -> ResourcePool:
    assert pool.name is not None, "a named draft's pools have names"
    return ResourcePool(name=pool.name, device=HOST_DEVICE, gpus=pool.gpus or 1, roles=pool.models)


def members_of(draft: PlanDraft, job: Job) -> tuple[ColocatedSet, ...]:
    """Return the models of a named draft's GPU pools; the actor is on two where it generates apart."""
    roles = placed_roles(job)
    gpu_pools = [pool for pool in draft.pools if pool.device != HOST_DEVICE]
    held = [pool.name for pool in gpu_pools if "actor" in pool.roles]
    pinned = draft.tasks.get(GENERATION)
    apart = pinned.pool if pinned is not None and len(held) == 2 else None  # noqa: PLR2004
    placement: list[ColocatedSet] = []
    for pool in gpu_pools:
        members: ColocatedSet = in_role_order(pool.models, roles)
        if pool.name == apart:
            members = (GENERATION, *(role for role in members if role != "actor"))
        placement.append(members)
    return tuple(placement)


def _check_room(pools: tuple[PinnedPool, ...], job: Job, file: str) -> None:
    """Refuse pools that leave no GPU to the models of no pool."""
    taken = {model for pool in pools for model in pool.members}
    left = [role for role in placed_roles(job) if role not in taken]
    gpus = sum(pool.gpus or 1 for pool in pools)
    if left and gpus >= job.gpus:
        problem = f"leave no GPU of the cluster's {job.gpus} to {', '.join(left)}"
        allowed = f"at most {job.gpus - 1} GPUs, or pools that hold {', '.join(left)} too"
        raise FileError(file, problem, field="pools", value=f"{gpus} GPUs", allowed=allowed)
