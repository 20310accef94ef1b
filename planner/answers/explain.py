"""Say why something does not fit, and which change nearest to it does."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import InfeasibleError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, Specs
from rlplan.plan import Plan, TaskDraft, TaskPlan, batch_mode
from rlplan.planner.layouts.settings import RUNNING_LIMITS
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.profiles.catalog import ENGINES, load_engine
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast
from rlplan.rules import refusals
from rlplan.rules.flow import transition_for
from rlplan.rules.layouts import divisors
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.assemble import device_pools
from rlplan.simulator.timeline.pool_memory import TRANSITION, memory_moments, pool_memory
from rlplan.transfers import TRANSFERS
from rlplan.units import show_bytes

# Of each search for plans in which the pins of some tasks give way.
OPENING_SECONDS = 5.0

NEAREST = "nearest change that fits"


def nearest_fit(plan: Plan, facts: Facts) -> str | None:
    """Return the smallest change that makes a plan fit, in words; None when no single change does.

    Every single change of one task's micro-batch, recomputation, ZeRO stage, offload, running limit
    or split between tensor and data parallelism is tried; of those that fit, the fastest is named, in modes `streaming`
    and `async` by what it takes in whole batches.
    """
    best: tuple[float, str] | None = None
    for words, changed in _single_changes(plan):
        if not keeps_rules_and_fits(changed, facts):
            continue
        seconds = simulate(in_whole_batches(changed), facts).iteration_seconds
        if best is None or seconds < best[0]:
            best = (seconds, words)
    return best[1] if best else None


def keeps_rules_and_fits(plan: Plan, facts: Facts) -> bool:
    """Tell whether a plan keeps all rules of plans and fits its pools, before it is simulated."""
    if any(refusals(plan, plan.job, ENGINES)):
        return False
    placed = PlacedPlan(plan, facts)
    return all(pool_memory(placed, pool).fits for pool in plan.pools if not pool.is_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Hold a moment of an iteration at which a pool's fullest GPU is too full.

    Attributes:
        during: The task, or the sync of weights.
    """

    pool: str
    during: str
    needed_bytes: int
    capacity_bytes: int


def first_shortage(plan: Plan, facts: Facts) -> Shortage | None:
    """Return where memory runs out first in an iteration; None where it never does.

    An iteration begins with what starts its engines, goes through its tasks in the dataflow's order, and ends with
    the sync of weights.
    """
    placed = PlacedPlan(plan, facts)
    order = [task.name for task in tasks_of(load_algorithm(plan.job.algorithm), plan.job)]
    found = [
        Shortage(pool=pool.name, during=name, needed_bytes=size, capacity_bytes=capacity)
        for pool in device_pools(plan)
        for capacity in [facts.device(pool.device).sheet.memory_bytes]
        for name, terms in memory_moments(placed, pool).items()
        if (size := sum(terms.values())) > capacity
    ]

    def place(each: Shortage) -> int:
        if each.during == TRANSITION:
            return len(order)
        return order.index(each.during) if each.during in order else -1

    return min(found, key=place, default=None)


def with_fields(plan: Plan, changes: Mapping[str, Mapping[str, Any]]) -> Plan:
    """Return a plan with other fields of some tasks' layouts.

    Where the actor's change, a usual transition on one pool is the one for them.
    """
    layouts = {name: replace(plan.tasks[name], **fields) for name, fields in changes.items()}
    tasks, transition = FrozenDict({**plan.tasks, **layouts}), plan.transition
    chosen = TRANSFERS.load(transition)
    if (
        chosen.on_one_pool
        and not chosen.method
        and any(name.startswith("actor.") for name in changes)
    ):
        transition = transition_for(tasks["actor.update"], tasks["actor.generate"])
    return replace(plan, tasks=tasks, transition=transition)


def in_whole_batches(plan: Plan) -> Plan:
    """Return a plan by whose seconds changes are compared: with whole batches where it hands on responses one by one.

    Playing dozens of changes response by response would take as many seconds. What makes a task faster makes
    both faster.
    """
    if not plan.flow.by_sample:
        return plan
    bound = 1 if plan.staleness else 0
    return replace(plan, mode=batch_mode(bound), staleness=bound, sync_every=1, in_flight="drain")


def with_nearest_fit(
    forecast: Forecast, plan: Plan, facts: Facts, pinned: Pinned = NOTHING_PINNED
) -> Forecast:
    """Return a plan's forecast whose reasons, if it does not fit, end with the nearest change that does.

    Args:
        pinned: What the user pinned of it; all else was chosen.
    """
    if forecast.feasible:
        return forecast
    change = nearest_fit(plan, facts) or nearest_opening(plan.job, facts, pinned)
    last = f"{NEAREST}: {change or 'none of a single task; `rlplan search` looks at all plans'}"
    return replace(forecast, infeasible_reasons=(*forecast.infeasible_reasons, last))


def nearest_opening(job: Job, facts: Facts, pinned: Pinned) -> str | None:
    """Return what fits if the pins of one role's tasks give way, in words; None where nothing does.

    Generation gives way by itself. Of roles whose pins can give way, the fastest plan's is named.
    """
    from rlplan.planner.search import search  # noqa: PLC0415 -- only where pins fit nowhere

    best: tuple[float, str] | None = None
    for names in _layouts_alike(job):
        given = {name: pinned.tasks[name] for name in names if name in pinned.tasks}
        if not given:
            continue
        left = {name: pins for name, pins in pinned.tasks.items() if name not in given}
        with suppress(InfeasibleError):
            found = search(
                job,
                facts,
                pinned=replace(pinned, tasks=FrozenDict(left)),
                objective="throughput",
                specs=Specs(staleness=job.specs.staleness),
                seconds=OPENING_SECONDS,
                placements=1,
            ).plans[0]
            seconds = found.forecast.iteration_seconds
            if best is None or seconds < best[0]:
                changes = (_changed(name, pins, found.plan) for name, pins in given.items())
                best = seconds, "; ".join(each for each in changes if each)
    return best[1] if best else None


def _layouts_alike(job: Job) -> list[tuple[str, ...]]:
    """Return the tasks whose layouts go together: a role's, generation apart."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for task in tasks_of(load_algorithm(job.algorithm), job):
        if task.has_model:
            groups.setdefault((task.role, task.generates), []).append(task.name)
    return [tuple(names) for names in groups.values()]


def _changed(name: str, pins: TaskDraft, plan: Plan) -> str:
    """Return what of a task's pins is another value in a plan, in words."""
    layout = plan.tasks[name]
    changes = (
        f"{item.name} {str(value).lower() if isinstance(value, bool) else value}"
        for item in fields(TaskDraft)
        if item.name != "pool" and getattr(pins, item.name) is not None
        if (value := getattr(layout, item.name)) != getattr(pins, item.name)
    )
    words = ", ".join(changes)
    return f"{name}: {words}" if words else ""


def _single_changes(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for name, layout in plan.tasks.items():
        if plan.pool_of(name).is_host:
            continue
        for words, changed in _setting_changes(name, layout):
            yield f"{name}: {words}", plan.with_layout(name, changed)
    tasks = tasks_of(load_algorithm(plan.job.algorithm), plan.job)
    for role in dict.fromkeys(task.role for task in tasks):
        names = [task.name for task in tasks if task.role == role and not task.generates]
        for words, changed_plan in _size_changes(plan, names):
            yield f"{role}: {words}", changed_plan


def _setting_changes(name: str, layout: TaskPlan) -> Iterator[tuple[str, TaskPlan]]:
    engine = load_engine(layout.engine)
    if name.endswith(".generate"):
        for running in (size for size in RUNNING_LIMITS if size < layout.max_running):
            yield f"max_running {running}", replace(layout, max_running=running)
        return
    if not layout.offload:
        yield "offload true", replace(layout, offload=True)
    yield from _smaller_micro_batches(layout)
    if name.endswith(".update"):
        for recompute in engine.recompute_modes:
            if recompute != layout.recompute:
                yield f"recompute {recompute}", replace(layout, recompute=recompute)
        for zero in engine.zero_stages:
            if zero > layout.zero and layout.dp > 1:
                yield f"zero {zero}", replace(layout, zero=zero)


def _smaller_micro_batches(layout: TaskPlan) -> Iterator[tuple[str, TaskPlan]]:
    if layout.token_budget is not None:
        half = -(-layout.token_budget // 2)
        yield f"token_budget {half}", replace(layout, token_budget=half)
        return
    for size in divisors(layout.micro_batch)[:-1]:
        yield f"micro_batch {size}", replace(layout, micro_batch=size)


def _size_changes(plan: Plan, names: Sequence[str]) -> Iterator[tuple[str, Plan]]:
    """Yield plans in which these tasks of a role trade data for model parallelism."""
    if not names or plan.pool_of(names[0]).is_host:
        return
    first = plan.tasks[names[0]]
    for factor in divisors(first.dp)[1:]:
        for field in ("tp", "pp"):
            size = getattr(first, field) * factor
            changes = {name: {field: size, "dp": plan.tasks[name].dp // factor} for name in names}
            yield f"{field} {size} with dp {first.dp // factor}", with_fields(plan, changes)


# Memories in which a plan is looked for, as multiples of what the devices have. The first in which there is
# one decides how much too large the plan may be: at most by the step from the one before, which is half as much again.
# As many as four searches tell apart.
MEMORY_STEPS = (
    1.1, 1.25, 1.5, 2.0, 2.8, 4.0, 5.6, 8.0, 11.5, 16.5, 24.0, 34.0, 49.0, 70.0, 100.0,
)  # fmt: skip

SHOWN_TERMS = 4


def least_misfit(
    choose: Callable[[Facts], Plan],
    facts: Facts,
    none_fits: InfeasibleError,
    fits: Callable[[Facts], bool] | None = None,
) -> Plan:
    """Return the plan that would be chosen on devices of little more memory than there is.

    Args:
        choose: Returns a plan by facts, or raises `InfeasibleError`.
        none_fits: What it raised by these facts.
        fits: Tells by facts whether there is a plan to choose, sooner than that is chosen; None asks `choose`.

    Raises:
        InfeasibleError: Memory is not what is short.
    """
    found: dict[int, Plan] = {}

    def chosen(at: int) -> bool:
        with suppress(InfeasibleError):
            found[at] = choose(facts.with_memory(MEMORY_STEPS[at]))
        return at in found

    def is_enough(at: int) -> bool:
        return chosen(at) if fits is None else fits(facts.with_memory(MEMORY_STEPS[at]))

    # What fits some memory fits a larger one.
    first = bisect_left(range(len(MEMORY_STEPS)), True, key=is_enough)
    if first not in found and (first == len(MEMORY_STEPS) or not chosen(first)):
        raise none_fits
    return found[first]


def misfit_error(plan: Plan, facts: Facts, pinned: Pinned) -> InfeasibleError:
    """Return an error that says why a plan does not fit: where, by how much, of what, what would."""
    forecast = with_nearest_fit(simulate(plan, facts), plan, facts, pinned)
    fullest = max(forecast.memory, key=lambda each: each.gpu_peak_bytes - each.capacity_bytes)
    largest = sorted(fullest.terms.items(), key=lambda item: -item[1])[:SHOWN_TERMS]
    terms = ", ".join(f"{term} {show_bytes(size)}" for term, size in largest)
    shortage, *others = forecast.infeasible_reasons
    reasons = "; ".join((shortage, f"it holds {terms}", *others))
    return InfeasibleError(
        f"no plan of job {plan.job.name!r} that keeps what is pinned fits its cluster; the nearest: {reasons}"
    )
