"""What systems of the field offer: pools, the layouts that their tasks may choose from, batch sizes."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.errors import InfeasibleError
from rlplan.job import Job, NodeGroup
from rlplan.models import ModelArchitecture
from rlplan.parts import num_parameters
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.planner.placements.partitions import placed_roles
from rlplan.planner.plans.assembly import assemble, with_largest_share
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.search import search
from rlplan.profiles.facts import Facts
from rlplan.results.accuracy import SystemForecast
from rlplan.results.forecast import Forecast, MemoryForecast
from rlplan.rules.batches import divides_prompts, divides_update
from rlplan.rules.layouts import fits_model
from rlplan.simulator.memory.terms import TaskMemory
from rlplan.simulator.placed import PlacedPlan, PlacedTask, Site, sites_of
from rlplan.simulator.simulate import simulate
from rlplan.simulator.stages import task_cost, task_memory
from rlplan.simulator.timeline.pool_memory import kv_bytes_left, passing, pool_memory, staying
from rlplan.transfers import TransitionName
from rlplan.units import show_bytes

# What scripts of the field give batches for: Llama-2-7B's parameters and hidden size.
SCRIPTED_PARAMETERS, SCRIPTED_WIDTH = 6.74e9, 4096

Choices = Mapping[str, Sequence[TaskPlan]]


@dataclass(frozen=True, slots=True)
class SystemOption:
    """Hold one arrangement that a system can run, its tasks' settings still open.

    Attributes:
        choices: By task name, the layouts to choose from, the one that needs least memory first.
    """

    pools: tuple[ResourcePool, ...]
    choices: Choices
    transition: TransitionName


def job_tasks(job: Job) -> tuple[Task, ...]:
    """Return the tasks of a job that need GPUs, in the dataflow's order."""
    known = tasks_of(load_algorithm(job.algorithm), job)
    return tuple(task for task in known if task.has_model)


def largest_group(job: Job) -> NodeGroup:
    """Return the equal nodes with the most GPUs: systems of the field run on one kind."""
    return max(job.cluster, key=lambda group: group.gpus)


def powers_up_to(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to `most`."""
    return tuple(1 << power for power in range(max(1, most).bit_length()) if 1 << power <= most)


def local_batch(job: Job, task: Task, dp: int) -> int:
    """Return the sequences of one data-parallel rank in one pass; 0 if they do not divide."""
    work = job.workload
    if task.kind != "train":
        return work.sequences // dp if divides_prompts(dp, work) else 0
    divides = divides_update(dp, load_algorithm(job.algorithm), work)
    return work.sequences // work.updates // dp if divides else 0


def micro_batches(job: Job, task: Task, layout: TaskPlan, most: int) -> tuple[TaskPlan, ...]:
    """Return a layout with each micro-batch of a power of two that divides a rank's batch."""
    local = local_batch(job, task, layout.dp)
    sizes = [size for size in powers_up_to(min(most, local)) if local % size == 0] if local else []
    return tuple(replace(layout, micro_batch=size) for size in sizes)


def batch_by_weights(of_7b: int, job: Job, task: Task) -> int:
    """Return the sequences of a batch whose room shrinks as weights grow, given those for 7B.

    Twice the parameters, half the sequences, as in benchmark/deepspeed-chat of OpenRLHF's repository:
    generation batches of 8 for 7B and 2 for 13B.
    """
    return _nearest_power(of_7b * SCRIPTED_PARAMETERS / num_parameters(_model(job, task)), of_7b)


def batch_by_width(of_7b: int, job: Job, task: Task) -> int:
    """Return the sequences of a micro-batch whose activations take as much memory as the given ones of a 7B model.

    Activations of a token grow with the hidden size (Korthikanti et al. 2022, arXiv:2205.05198,
    table 2).
    """
    return _nearest_power(of_7b * SCRIPTED_WIDTH / _model(job, task).hidden_size, of_7b)


def _model(job: Job, task: Task) -> ModelArchitecture:
    return job.architecture(task.role)


def _nearest_power(size: float, most: int) -> int:
    return min(most, 1 << max(0, round(math.log2(size))))


def transition_on_one_pool(train: TaskPlan, generate: TaskPlan) -> TransitionName:
    """Return how verl brings weights to generation: inside micro-data-parallel groups, if at all."""
    same = (train.tp, train.pp) == (generate.tp, generate.pp)
    return "none" if same else "hybridflow"


def one_pool(job: Job) -> tuple[ResourcePool, ...]:
    """Return a pool of all GPUs of the largest group, shared by all roles."""
    group = largest_group(job)
    return (ResourcePool(name="all", device=group.gpu, gpus=group.gpus, roles=placed_roles(job)),)


def choices_of(
    job: Job, layouts_of: Callable[[Task], Iterable[TaskPlan]]
) -> dict[str, tuple[TaskPlan, ...]]:
    """Return the layouts of every task by its name."""
    return {task.name: tuple(layouts_of(task)) for task in job_tasks(job)}


def splits(job: Job, task: Task, gpus: int, *, most_pp: int) -> Iterator[tuple[int, int, int]]:
    """Yield (TP, PP, DP) that divide a model's heads and layers, TP inside a node."""
    model = job.architecture(task.role)
    for tp in powers_up_to(min(gpus, largest_group(job).gpus_per_node)):
        for pp in powers_up_to(min(most_pp, gpus // tp)):
            if gpus % (tp * pp) == 0 and fits_model(tp, pp, model):
                yield tp, pp, gpus // (tp * pp)


# The best plan of a system: that of a search with some things pinned, or of what it offers.
#
# Offers are tuned task by task, then simulated.
#
# A task's settings (its micro-batch, say) are tuned by themselves. On one pool tasks run by turns:
# their seconds add up, their transient bytes never meet, and the KV cache gets what residents leave,
# which settings do not change. So the best of every task is the best of all.

# Of the plans that a system offers, so many are simulated, in the order of their tasks' seconds.
MOST_SIMULATED = 8


@dataclass(frozen=True, slots=True)
class _Tuned:
    """Hold a plan with the fastest settings of each task that fit; or what overflows memory with any settings."""

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
        result = search(job, facts, pinned=pinned, specs=specs, placements=1)
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
            plan = with_largest_share(plan.with_layout(name, layout), self._facts)
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
