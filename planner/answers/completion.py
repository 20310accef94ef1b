"""Fill what a user's plan leaves open: the best layouts, or pools, that keep what is pinned."""

from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.errors import InfeasibleError
from rlplan.files.decoding import load_yaml
from rlplan.job import NO_SPECS, Job, Specs
from rlplan.plan import HOST_DEVICE, USUAL_MODE, Plan, PlanDraft, ResourcePool, TaskDraft, TaskPlan
from rlplan.planner.placements.partitions import GENERATION, placed_roles
from rlplan.planner.plans.assembly import HOST_ENGINE, assemble, with_largest_share
from rlplan.planner.requests.drafts import named, pinned_parts, read_draft
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.specs import roomy, usable_fraction
from rlplan.profiles.catalog import ENGINES
from rlplan.profiles.facts import Facts, load_facts
from rlplan.rules import check_plan


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
    plan, specs = _written(draft, pinned, job), job.specs
    if plan is None:
        # What is open is chosen as if all replicas read their own prompts: searches know no other ones.
        alike = replace(job, prefill=None)
        plan, specs = _chosen(draft, pinned, alike, facts, file, misfits=misfits)
        plan = replace(plan, job=replace(plan.job, prefill=job.prefill))
    names = ("staleness", "sync_every", "in_flight", "lending")
    given = {name: getattr(draft, name) for name in names if getattr(draft, name) is not None}
    plan = replace(plan, transport=draft.transport, bucket_bytes=draft.bucket_bytes, **given)
    plan = with_largest_share(plan, facts, usable_fraction(specs), draft.tasks)
    check_plan(plan, ENGINES, file)
    return plan


def _chosen(
    draft: PlanDraft, pinned: Pinned, job: Job, facts: Facts, file: str, *, misfits: bool
) -> tuple[Plan, Specs]:
    """Return the draft's plan with all open parts chosen, and the limits (`Specs`) that it was chosen under.

    The usual share of memory stays free, as in searches; where no plan with the pinned parts leaves that much, only
    the job's own limits hold.
    """
    from rlplan.planner.answers.open_parts import chosen, searched  # noqa: PLC0415 -- only where parts are open

    def choose(facts: Facts, specs: Specs = NO_SPECS) -> Plan:
        pools = _placed_pools(draft, pinned, job)
        if pools is None:
            return searched(draft, pinned, job, facts, specs, file)
        return chosen(draft, pools, pinned, job, facts, specs, file)

    room = Specs(memory_headroom_fraction=roomy(job).memory_headroom_fraction)
    with suppress(InfeasibleError):
        return choose(facts, room), room
    try:
        return choose(facts), job.specs
    except InfeasibleError as error:
        if not misfits:
            raise
        from rlplan.planner.answers.explain import least_misfit  # noqa: PLC0415 -- only where nothing fits

        return least_misfit(choose, facts, error), job.specs


def _written(draft: PlanDraft, pinned: Pinned, job: Job) -> Plan | None:
    """Return the plan if its file leaves nothing open that a search would have to choose."""
    pools = _placed_pools(draft, pinned, job)
    return None if pools is None else _as_written(draft, pools, job)


def _placed_pools(draft: PlanDraft, pinned: Pinned, job: Job) -> tuple[ResourcePool, ...] | None:
    """Return a draft's pools if they are pinned with all that is on them."""
    placed = {role for each in pinned.pools for role in each.members if role != GENERATION}
    return _whole_pools(draft) if placed == set(placed_roles(job)) else None


def _whole_pools(draft: PlanDraft) -> tuple[ResourcePool, ...] | None:
    """Return a draft's pools if their devices and sizes are all pinned."""
    found = []
    for pool in draft.pools:
        gpus = pool.gpus or (1 if pool.device == HOST_DEVICE else None)
        if pool.name is None or pool.device is None or gpus is None:
            return None
        found.append(ResourcePool(name=pool.name, device=pool.device, gpus=gpus, roles=pool.models))
    return tuple(found)


def _as_written(draft: PlanDraft, pools: tuple[ResourcePool, ...], job: Job) -> Plan | None:
    """Return the plan if its file leaves nothing open that a search would have to choose."""
    sizes = ("pool", "tp", "pp", "dp")
    layouts = {}
    for task in tasks_of(load_algorithm(job.algorithm), job):
        written = draft.tasks.get(task.name)
        if written is None and not task.has_model:
            continue
        if written is None or any(getattr(written, size) is None for size in sizes):
            return None
        layouts[task.name] = _layout(written, task, job)
    return assemble(
        job,
        pools,
        layouts,
        made_by=draft.made_by,
        mode=draft.mode or USUAL_MODE,
        transition=draft.transition,
        order=draft.order,
    )


def _layout(written: TaskDraft, task: Task, job: Job) -> TaskPlan:
    given = {item.name: getattr(written, item.name) for item in fields(written)}
    if written.engine is None:
        trained = job.engines.train if task.has_model else HOST_ENGINE
        given["engine"] = job.engines.generate if task.generates else trained
    return TaskPlan(**{key: value for key, value in given.items() if value is not None})
