"""Why steps of two plans differ: what is otherwise in the plans, stage by stage, beside the seconds of their forecasts."""

from collections.abc import Iterable, Iterator

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.errors import CapabilityError
from rlplan.plan import FLOWS, Plan, TaskPlan
from rlplan.planner.answers.plan_details import responses_under_way
from rlplan.profiles.facts import Facts
from rlplan.profiles.sheets import load_framework
from rlplan.results.differences import (
    GENERATION,
    HOST,
    OVERLAP,
    PASSES,
    REWARDS,
    SYNC,
    TAIL,
    UPDATE,
    WAITING,
    StepDifference,
    step_difference,
)
from rlplan.results.forecast import Forecast

# Of generation, its tail is the time in which at most so many of its responses are under way.
TAIL_SHARE = 0.1
SIZES = {"tp": "TP", "pp": "PP", "dp": "DP", "cp": "CP", "ep": "EP"}
# Of the tasks of a stage, the one that is said for all.
FIRST_IN_STAGE = {"generate": GENERATION, "infer": PASSES, "train": UPDATE, "reward": REWARDS}


def plan_difference(
    own: tuple[Plan, Forecast, Facts], base: tuple[Plan, Forecast, Facts], against: str
) -> StepDifference:
    """Return what the step of a plan differs by from another's, with what is otherwise in it.

    Args:
        own, base: The plans, their forecasts, and the facts that these rest on.
        against: What the other one is, in words.
    """
    return step_difference(
        own[1],
        base[1],
        against,
        causes_of(own[0], base[0]),
        (tail_seconds(own[0], own[2]), tail_seconds(base[0], base[2])),
    )


def tail_seconds(plan: Plan, facts: Facts) -> float:
    """Return the seconds at the end of generation in which at most a tenth of the responses are under way.

    0 in modes that never stop generating, and where responses are not played one by one.
    """
    try:
        found = responses_under_way(plan, facts)
    except CapabilityError:
        return 0.0
    if found is None or not found.seconds:
        return 0.0
    few = TAIL_SHARE * found.responses[0]
    pairs = zip(found.seconds, found.responses, strict=True)
    begins = next((seconds for seconds, responses in pairs if responses <= few), None)
    return 0.0 if begins is None else max(0.0, found.seconds[-1] - begins)


def causes_of(own: Plan, base: Plan) -> dict[str, tuple[str, ...]]:
    """Return what is otherwise in a plan than in another, in words, by stage of a step."""
    found: dict[str, list[str]] = {}
    mine, others = _tasks(own), _tasks(base)
    for name, task in mine.items():
        stage = FIRST_IN_STAGE.get(task.kind, REWARDS)
        if name not in others:
            found.setdefault(stage, []).append(f"{name}, which the other step does not have")
            continue
        whose = "" if task.role == "actor" else f"{task.role}: "
        changes = layout_changes(own.tasks[name], base.tasks[name], own, base)
        found.setdefault(stage, []).extend(f"{whose}{words}" for words in changes)
    for name, task in others.items():
        if name not in mine:
            stage = FIRST_IN_STAGE.get(task.kind, REWARDS)
            found.setdefault(stage, []).append(_left_out(name, own))
    found[TAIL] = list(found.get(GENERATION, ()))
    found[SYNC] = [*_of_sync(own, base)]
    found[HOST] = [*_of_framework(own, base)]
    found[WAITING] = found[OVERLAP] = [*_of_flow(own, base)]
    return {stage: tuple(dict.fromkeys(words)) for stage, words in found.items() if words}


def layout_changes(
    own: TaskPlan, base: TaskPlan, own_plan: Plan, base_plan: Plan, *, engines: bool = True
) -> Iterator[str]:
    """Yield what is otherwise in a task's layout than in another, in words.

    Args:
        engines: Whether the engine is one of them.
    """
    if engines and own.engine != base.engine:
        yield f"engine {own.engine} in place of {base.engine}"
    if own_plan.pool(own.pool).gpus != base_plan.pool(base.pool).gpus:
        gpus, others = own_plan.pool(own.pool).gpus, base_plan.pool(base.pool).gpus
        yield f"{gpus} GPUs in place of {others}"
    changed = [name for name in SIZES if getattr(own, name) != getattr(base, name)]
    if changed:
        yield f"{_sizes(own, changed)} in place of {_sizes(base, changed)}"
    if _batch(own) != _batch(base):
        yield f"micro-batches of {_batch(own)} in place of {_batch(base)}"
    if own.recompute != base.recompute:
        yield f"recomputation {own.recompute} in place of {base.recompute}"
    if own.zero != base.zero:
        yield f"ZeRO stage {own.zero} in place of {base.zero}"
    if own.offload != base.offload:
        yield "states off-loaded" if own.offload else "states stay on the GPUs"
    if own.max_running != base.max_running:
        yield f"{own.max_running:,} running sequences in place of {base.max_running:,}"
    if own.memory_fraction != base.memory_fraction:
        share, other = own.memory_fraction, base.memory_fraction
        yield f"{share:.2f} of a GPU for the engine in place of {other:.2f}"


def _sizes(layout: TaskPlan, names: Iterable[str]) -> str:
    return " ".join(f"{SIZES[name]} {getattr(layout, name)}" for name in names)


def _batch(layout: TaskPlan) -> str:
    if layout.token_budget is not None:
        return f"{layout.token_budget:,} tokens"
    return f"{layout.micro_batch:,} sequences"


def _tasks(plan: Plan) -> dict[str, Task]:
    """Return the tasks of a plan that have a model, in the dataflow's order."""
    known = tasks_of(load_algorithm(plan.job.algorithm), plan.job)
    return {task.name: task for task in known if task.has_model and task.name in plan.tasks}


def _left_out(name: str, own: Plan) -> str:
    """Say why a task of another plan is not there."""
    if name == "actor.compute_log_prob":
        reuses = own.job.algorithm in load_framework(own.job.framework).reuses_log_probs
        taken = "the update's own" if reuses else "the engine's"
        return f"no pass for old log-probabilities: {taken} are taken"
    return f"without {name}"


def _of_sync(own: Plan, base: Plan) -> Iterator[str]:
    if own.transition != base.transition:
        yield f"{own.transition} in place of {base.transition}"
    shared, other = (generates_apart(plan) for plan in (own, base))
    if shared != other:
        yield "between pools" if shared else "on shared GPUs"
    trains = (plan.tasks["actor.update"] for plan in (own, base))
    generates = (plan.tasks["actor.generate"] for plan in (own, base))
    for what, (mine, its) in (("training", trains), ("generation", generates)):
        changed = [name for name in SIZES if getattr(mine, name) != getattr(its, name)]
        if changed:
            yield f"{what} in {_sizes(mine, changed)} in place of {_sizes(its, changed)}"


def _sets(plan: Plan) -> set[tuple[str, ...]]:
    """Return the roles that share each pool of GPUs, in whatever order the pools are."""
    return {plan.shown_roles(pool) for pool in plan.pools if not pool.is_host}


def generates_apart(plan: Plan) -> bool:
    """Tell whether a plan generates on GPUs of their own."""
    return plan.tasks["actor.generate"].pool != plan.tasks["actor.update"].pool


def _of_framework(own: Plan, base: Plan) -> Iterator[str]:
    """Yield that another framework hands on batches, and that another trainer launches its kernels."""
    mine, other = (load_framework(plan.job.framework).title for plan in (own, base))
    if mine != other:
        yield f"batches are handed on by {mine} in place of {other}"
    engines = [plan.tasks["actor.update"].engine for plan in (own, base)]
    if engines[0] != engines[1]:
        yield f"kernels are launched by {engines[0]} in place of {engines[1]}"


def _of_flow(own: Plan, base: Plan) -> Iterator[str]:
    if own.mode != base.mode:
        overlaps = "generation runs beside training" if FLOWS[own.mode].overlaps else "in turns"
        yield f"mode {own.mode} ({overlaps}) in place of {base.mode}"
    elif _sets(own) != _sets(base):
        yield f"placement {own.placement} in place of {base.placement}"
