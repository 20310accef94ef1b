"""The best plan of a system: that of a search with some things pinned, or of what it offers.

Offers are tuned task by task, then simulated.

A task's settings (its micro-batch, say) are tuned by themselves. On one pool tasks run by turns:
their seconds add up, their transient bytes never meet, and the KV cache gets what residents leave,
which settings do not change. So the best of every task is the best of all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rlplan.dataflow import Task
from rlplan.errors import InfeasibleError
from rlplan.job import Job
from rlplan.plan import Plan, TaskPlan
from rlplan.planner.plans.assembly import assemble, with_largest_share
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.search import search
from rlplan.planner.systems.system_plans import SystemOption, job_tasks
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast, MemoryForecast
from rlplan.results.systems import SystemForecast
from rlplan.simulator.memory.task_memory import TaskMemory
from rlplan.simulator.placed.plan import PlacedPlan
from rlplan.simulator.placed.site import Site, sites_of
from rlplan.simulator.placed.task import PlacedTask
from rlplan.simulator.simulate import simulate
from rlplan.simulator.stages import task_cost, task_memory
from rlplan.simulator.timeline.pool_memory import kv_bytes_left, passing, pool_memory, staying
from rlplan.units import show_bytes

# Of the plans that a system offers, so many are simulated, in the order of their tasks' seconds.
MOST_SIMULATED = 8


@dataclass(frozen=True, slots=True)
class _Tuned:
    """Hold a plan whose tasks run as fast as they can, or what overflows whatever is chosen."""

    plan: Plan
    bound_seconds: float
    overflow: MemoryForecast | None = None


def best_searched(
    name: str,
    about: str,
    job: Job,
    facts: Facts,
    pinned: Pinned = NOTHING_PINNED,
    *,
    staleness: float | None = None,
) -> SystemForecast:
    """Return the best plan that a search finds, or why none fits.

    Args:
        staleness: The limit within which it searches; None takes the job's.
    """
    specs = job.specs if staleness is None else replace(job.specs, staleness=staleness)
    try:
        result = search(job, facts, pinned=pinned, specs=specs)
    except InfeasibleError as error:
        return SystemForecast(name=name, about=about, reason=str(error))
    best = result.plans[0]
    return SystemForecast(
        name=name,
        about=about,
        plan=best.plan,
        forecast=best.forecast,
        considered=sum(result.considered.values()),
    )


def best_of(
    name: str, about: str, job: Job, facts: Facts, offers: Iterable[SystemOption]
) -> SystemForecast:
    """Return the fastest plan of the offers that fit, or why none does.

    Args:
        name: Of the system, which the plan bears as its maker.
    """
    bench = _Bench(job, facts, name)
    fitting: list[_Tuned] = []
    overflows: list[MemoryForecast] = []
    considered = 0
    for offer in offers:
        considered += sum(len(layouts) for layouts in offer.choices.values())
        if not all(offer.choices.values()):
            continue
        tuned = bench.tuned(offer)
        if tuned.overflow is None:
            fitting.append(tuned)
        else:
            overflows.append(tuned.overflow)
    found = _fastest(fitting, facts)
    if found is None:
        reason = _overflow_words(overflows) if overflows else _INDIVISIBLE
        return SystemForecast(name=name, about=about, reason=reason, considered=considered)
    plan, forecast = found
    return SystemForecast(
        name=name, about=about, plan=plan, forecast=forecast, considered=considered
    )


_INDIVISIBLE = (
    "the GPUs cannot be divided among its pools so that every batch, head and layer divides"
)


def _fastest(fitting: list[_Tuned], facts: Facts) -> tuple[Plan, Forecast] | None:
    best: tuple[Plan, Forecast] | None = None
    ranked = sorted(fitting, key=lambda each: each.bound_seconds)
    for each in ranked[:MOST_SIMULATED]:
        forecast = simulate(each.plan, facts)
        if not forecast.feasible:
            continue
        if best is None or forecast.iteration_seconds < best[1].iteration_seconds:
            best = (each.plan, forecast)
    return best


class _Bench:
    """Tune the plans of one system for one job; what tasks cost and hold is worked out once."""

    def __init__(self, job: Job, facts: Facts, made_by: str) -> None:
        self._job, self._facts, self._made_by = job, facts, made_by
        self._tasks = {task.name: task for task in job_tasks(job)}
        self._seconds: dict[tuple[str, TaskPlan, Site, float | None], float] = {}
        self._memory: dict[tuple[str, TaskPlan, Site], TaskMemory] = {}

    def tuned(self, offer: SystemOption) -> _Tuned:
        """Return an offer's plan with the fastest setting of every task that fits its pool."""
        first = {name: layouts[0] for name, layouts in offer.choices.items()}
        plan = self._plan(offer, first)
        sites = sites_of(plan, self._facts)
        for pool in offer.pools:
            memory = pool_memory(PlacedPlan(plan, self._facts), pool)
            if not memory.fits:
                return _Tuned(plan, 0.0, memory)
        chosen: dict[str, TaskPlan] = {}
        seconds: dict[str, float] = {}
        for name, layouts in offer.choices.items():
            tried = [
                (found, layout)
                for layout in layouts
                if (found := self._tried(plan, name, layout, sites)) is not None
            ]
            seconds[name], chosen[name] = min(tried, key=lambda each: each[0])
        plan = self._plan(offer, chosen)
        return _Tuned(plan, _bound(seconds, chosen, self._tasks))

    def _plan(self, offer: SystemOption, layouts: Mapping[str, TaskPlan]) -> Plan:
        plan = assemble(
            self._job, offer.pools, layouts, made_by=self._made_by, transition=offer.transition
        )
        return with_largest_share(plan, self._facts)

    def _tried(
        self, plan: Plan, name: str, layout: TaskPlan, sites: Mapping[str, Site]
    ) -> float | None:
        """Return a task's seconds in a layout beside the plan's other tasks; None if it does not fit.

        The plan itself does.
        """
        task, site = self._tasks[name], sites[layout.pool]
        kv_bytes = None
        if task.kind == "generate":
            plan = replace(plan, tasks=plan.tasks.with_item(name, layout))
            plan = with_largest_share(plan, self._facts)
            layout = plan.tasks[name]
            whole = PlacedPlan(plan, self._facts)
            if not pool_memory(whole, plan.pool(layout.pool)).fits:
                return None
            kv_bytes = max(0.0, kv_bytes_left(whole))
        elif layout != plan.tasks[name] and not self._fits(plan, task, layout, site):
            return None
        key = (name, layout, site, kv_bytes)
        if key not in self._seconds:
            placed = PlacedTask(task, layout, site, self._job, self._facts)
            self._seconds[key] = task_cost(placed, kv_bytes).total.seconds
        return self._seconds[key]

    def _fits(self, plan: Plan, task: Task, layout: TaskPlan, site: Site) -> bool:
        """Tell whether a task's transients fit beside the residents of its pool."""
        held = [
            self._held(self._tasks[other], layout if other == task.name else own, site)
            for other, own in plan.tasks.items()
            if own.pool == layout.pool and other in self._tasks
        ]
        taken = sum((staying(held) | passing(self._held(task, layout, site))).values())
        return taken <= self._facts.device(site.device).sheet.memory_bytes

    def _held(self, task: Task, layout: TaskPlan, site: Site) -> TaskMemory:
        key = (task.name, layout, site)
        if key not in self._memory:
            self._memory[key] = task_memory(PlacedTask(task, layout, site, self._job, self._facts))
        return self._memory[key]


def _bound(
    seconds: Mapping[str, float], chosen: Mapping[str, TaskPlan], tasks: Mapping[str, Task]
) -> float:
    """Return the sum over the stages of what their busiest pool works."""
    work: dict[str, dict[str, float]] = {}
    for name, each in seconds.items():
        pools = work.setdefault(tasks[name].stage, {})
        pools[chosen[name].pool] = pools.get(chosen[name].pool, 0.0) + each
    return sum(max(pools.values()) for pools in work.values())


def _overflow_words(overflows: list[MemoryForecast]) -> str:
    """Say what the offer that comes nearest to fitting is short of."""
    nearest = min(overflows, key=lambda each: each.gpu_peak_bytes - each.capacity_bytes)
    term, size = max(nearest.terms.items(), key=lambda item: (item[1], item[0]))
    over = nearest.gpu_peak_bytes - nearest.capacity_bytes
    return (
        f"does not fit: in {nearest.peak_task} a GPU of pool {nearest.pool} needs "
        f"{show_bytes(nearest.gpu_peak_bytes)} of {show_bytes(nearest.capacity_bytes)}, "
        f"{show_bytes(over)} too many; largest term: {term}, {show_bytes(size)}"
    )
