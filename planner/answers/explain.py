"""Say why something does not fit, and which change nearest to it does."""

from collections.abc import Iterator
from dataclasses import replace

from planner.layouts.settings import RUNNING_LIMITS
from profiles.catalog import ENGINES, load_engine
from profiles.facts import Facts
from rlplan.plan import Plan, TaskPlan
from rlplan.results.forecast import Forecast
from rlplan.rules import refusals
from rlplan.rules.layouts import divisors
from rlplan.rules.transition import transition_for
from simulator.placed.plan import PlacedPlan
from simulator.simulate import simulate
from simulator.timeline.pool_memory import pool_memory

NEAREST = "nearest change that fits"


def nearest_fit(plan: Plan, facts: Facts) -> str | None:
    """Return the smallest change that makes a plan fit, in words; None when no single change does.

    Every single change of one task's micro-batch, recomputation, ZeRO stage, offload, running limit
    or split between tensor and data parallelism is tried; of those that fit, the fastest is named.
    """
    best: tuple[float, str] | None = None
    for words, changed in _single_changes(plan):
        placed = PlacedPlan(changed, facts)
        if any(refusals(changed, changed.job, ENGINES)) or not all(
            pool_memory(placed, pool).fits for pool in changed.pools if not pool.is_host
        ):
            continue
        forecast = simulate(changed, facts)
        if forecast.feasible and (best is None or forecast.iteration_seconds < best[0]):
            best = (forecast.iteration_seconds, words)
    return best[1] if best else None


def with_nearest_fit(forecast: Forecast, plan: Plan, facts: Facts) -> Forecast:
    """Return a plan's forecast whose reasons, if it does not fit, end with the nearest change that does."""
    if forecast.feasible:
        return forecast
    change = nearest_fit(plan, facts)
    last = f"{NEAREST}: {change or 'none of a single task; `rlplan search` looks at all plans'}"
    return replace(forecast, infeasible_reasons=(*forecast.infeasible_reasons, last))


def _single_changes(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for name, layout in plan.tasks.items():
        if plan.pool_of(name).is_host:
            continue
        for words, changed in _setting_changes(name, layout):
            yield f"{name}: {words}", replace(plan, tasks=plan.tasks.with_item(name, changed))
    for role in dict.fromkeys(name.split(".")[0] for name in plan.tasks):
        for words, changed_plan in _size_changes(plan, role):
            yield f"{role}: {words}", changed_plan


def _setting_changes(name: str, layout: TaskPlan) -> Iterator[tuple[str, TaskPlan]]:
    engine = load_engine(layout.engine)
    if name.endswith(".generate"):
        for running in (size for size in RUNNING_LIMITS if size < layout.max_running):
            yield f"max_running {running}", replace(layout, max_running=running)
        return
    if not layout.offload:
        yield "offload true", replace(layout, offload=True)
    for size in divisors(layout.micro_batch)[:-1]:
        yield f"micro_batch {size}", replace(layout, micro_batch=size)
    if name.endswith(".update"):
        for recompute in engine.recompute_modes:
            if recompute != layout.recompute:
                yield f"recompute {recompute}", replace(layout, recompute=recompute)
        for zero in engine.zero_stages:
            if zero > layout.zero and layout.dp > 1:
                yield f"zero {zero}", replace(layout, zero=zero)


def _size_changes(plan: Plan, role: str) -> Iterator[tuple[str, Plan]]:
    """Yield plans in which all tasks of a role but generation trade data for model parallelism."""
    names = [name for name in plan.tasks if name.startswith(f"{role}.")]
    names = [name for name in names if not name.endswith(".generate")]
    if not names or plan.pool_of(names[0]).is_host:
        return
    first = plan.tasks[names[0]]
    for factor in divisors(first.dp)[1:]:
        for field in ("tp", "pp"):
            size = getattr(first, field) * factor
            tasks = plan.tasks
            for name in names:
                layout = replace(tasks[name], **{field: size, "dp": tasks[name].dp // factor})
                tasks = tasks.with_item(name, layout)
            changed = replace(plan, tasks=tasks)
            if role == "actor" and plan.transition != "two-copies":
                move = transition_for(tasks["actor.update"], tasks["actor.generate"])
                changed = replace(changed, transition=move)
            yield f"{field} {size} with dp {first.dp // factor}", changed
