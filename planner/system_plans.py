"""What baseline systems have in common: plans are put together, tuned task by task, and simulated.

A task's settings (its micro-batch, say) are tuned by themselves. On one pool tasks run by turns:
their seconds add up, their transient bytes never meet, and the KV cache gets what residents leave,
which settings do not change. So the best of every task is the best of all.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.mappings import RULE_TASK, has_rule, host_pool
from profiles.facts import Facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.forecast import Forecast, MemoryForecast
from rlplan.frozen import FrozenDict
from rlplan.job import Job, NodeGroup, Role
from rlplan.model import ModelArchitecture
from rlplan.plan import Plan, ResourcePool, TaskPlan, TransitionName
from rlplan.systems import SystemForecast
from rlplan.units import show_bytes
from simulator.costs import task_cost
from simulator.memory import kv_bytes_left, pool_memory
from simulator.simulate import simulate
from simulator.site import sites_of

# What scripts of the field give batches for: Llama-2-7B's parameters and hidden size.
SCRIPTED_PARAMETERS, SCRIPTED_WIDTH = 6.74e9, 4096

Choices = Mapping[str, Sequence[TaskPlan]]

# Of the plans that a system offers, so many are simulated, in the order of their tasks' seconds.
MOST_SIMULATED = 8


@dataclass(frozen=True, slots=True)
class Offer:
    """Hold one arrangement that a system can run, its tasks' settings still open.

    Attributes:
        choices: By task name, the layouts to choose from, the one that needs least memory first.
    """

    pools: tuple[ResourcePool, ...]
    choices: Choices
    transition: TransitionName


@dataclass(frozen=True, slots=True)
class _Tuned:
    """Hold a plan whose tasks run as fast as they can, or what overflows whatever is chosen."""

    plan: Plan
    bound_seconds: float
    misfit: MemoryForecast | None = None


def job_tasks(job: Job) -> tuple[Task, ...]:
    """Return the tasks of a job that need GPUs, in the dataflow's order."""
    known = tasks_of(load_algorithm(job.algorithm), job)
    return tuple(task for task in known if task.name != RULE_TASK)


def roles_of(job: Job) -> tuple[Role, ...]:
    """Return the roles that need GPUs, in the order in which the dataflow first uses them."""
    return tuple(dict.fromkeys(task.role for task in job_tasks(job)))


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
        return 0 if work.prompts % dp else work.sequences // dp
    unit = work.prompts if load_algorithm(job.algorithm).groups else work.sequences
    if unit % work.updates or unit // work.updates % dp:
        return 0
    return work.sequences // work.updates // dp


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
    return _nearest_power(of_7b * SCRIPTED_PARAMETERS / _model(job, task).num_parameters(), of_7b)


def batch_by_width(of_7b: int, job: Job, task: Task) -> int:
    """Return the sequences of a micro-batch whose activations take as much as those given for 7B.

    Activations of a token grow with the hidden size (Korthikanti et al. 2022, arXiv:2205.05198,
    table 2).
    """
    return _nearest_power(of_7b * SCRIPTED_WIDTH / _model(job, task).hidden_size, of_7b)


def _model(job: Job, task: Task) -> ModelArchitecture:
    return job.architecture(task.role)


def _nearest_power(size: float, most: int) -> int:
    return min(most, 1 << max(0, round(math.log2(size))))


def best_of(
    name: str, about: str, job: Job, facts: Facts, offers: Iterable[Offer]
) -> SystemForecast:
    """Return the fastest plan of the offers that fit, or why none does.

    Args:
        name: Of the system, which the plan bears as its maker.
    """
    fitting: list[_Tuned] = []
    misfits: list[MemoryForecast] = []
    considered = 0
    for offer in offers:
        considered += 1
        if not all(offer.choices.values()):
            continue
        tuned = _tuned(offer, job, facts, name)
        if tuned.misfit is None:
            fitting.append(tuned)
        else:
            misfits.append(tuned.misfit)
    found = _fastest(fitting, facts)
    if found is None:
        reason = _misfit_words(misfits) if misfits else _INDIVISIBLE
        return SystemForecast(name=name, about=about, reason=reason, considered=considered)
    plan, forecast = found
    return SystemForecast(
        name=name, about=about, plan=plan, forecast=forecast, considered=considered
    )


_INDIVISIBLE = "the GPUs cannot be divided so that every batch, head and layer divides"


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


def _tuned(offer: Offer, job: Job, facts: Facts, made_by: str) -> _Tuned:
    """Return an offer's plan with the fastest setting of every task that fits its pool."""
    plan = _plan(offer, {name: layouts[0] for name, layouts in offer.choices.items()}, job, made_by)
    sites = sites_of(plan, facts)
    tasks = {task.name: task for task in job_tasks(job)}
    chosen: dict[str, TaskPlan] = {}
    seconds: dict[str, float] = {}
    for name, layouts in offer.choices.items():
        best: tuple[float, TaskPlan] | None = None
        for layout in layouts:
            trial = replace(plan, tasks=plan.tasks.with_item(name, layout))
            memory = pool_memory(trial, trial.pool(layout.pool), facts)
            if not memory.fits:
                if best is None and layout is layouts[0]:
                    return _Tuned(plan, 0.0, memory)
                continue
            generates = tasks[name].kind == "generate"
            kv_bytes = max(0.0, kv_bytes_left(trial, facts)) if generates else None
            site = sites[layout.pool]
            cost = task_cost(tasks[name], layout, site, job, facts, kv_bytes=kv_bytes)
            if best is None or cost.total.seconds < best[0]:
                best = (cost.total.seconds, layout)
        assert best is not None, "the first layout fits"
        seconds[name], chosen[name] = best
    return _Tuned(_plan(offer, chosen, job, made_by), _bound(seconds, chosen, tasks))


def _bound(
    seconds: Mapping[str, float], chosen: Mapping[str, TaskPlan], tasks: Mapping[str, Task]
) -> float:
    """Return the sum over the stages of what their busiest pool works."""
    work: dict[str, dict[str, float]] = {}
    for name, each in seconds.items():
        pools = work.setdefault(tasks[name].stage, {})
        pools[chosen[name].pool] = pools.get(chosen[name].pool, 0.0) + each
    return sum(max(pools.values()) for pools in work.values())


def _plan(offer: Offer, layouts: Mapping[str, TaskPlan], job: Job, made_by: str) -> Plan:
    pools, known = offer.pools, dict(layouts)
    names = tuple(task.name for task in tasks_of(load_algorithm(job.algorithm), job))
    if has_rule(names):
        host = host_pool(job)
        pools = (*pools, host)
        known[RULE_TASK] = TaskPlan(pool=host.name, dp=host.gpus, engine="python")
    return Plan(
        job=job,
        pools=pools,
        tasks=FrozenDict({name: known[name] for name in names}),
        order=FrozenDict(
            {
                pool.name: tuple(name for name in names if known[name].pool == pool.name)
                for pool in pools
            }
        ),
        transition=offer.transition,
        made_by=made_by,
    )


def _misfit_words(misfits: list[MemoryForecast]) -> str:
    """Say what the offer that comes nearest to fitting is short of."""
    nearest = min(misfits, key=lambda each: each.gpu_peak_bytes - each.capacity_bytes)
    term, size = max(nearest.terms.items(), key=lambda item: (item[1], item[0]))
    over = nearest.gpu_peak_bytes - nearest.capacity_bytes
    return (
        f"does not fit: in {nearest.peak_task} a GPU of pool {nearest.pool} needs "
        f"{show_bytes(nearest.gpu_peak_bytes)} of {show_bytes(nearest.capacity_bytes)}, "
        f"{show_bytes(over)} too many; largest term: {term}, {show_bytes(size)}"
    )


def transition_on_one_pool(train: TaskPlan, generate: TaskPlan) -> TransitionName:
    """Return how verl brings weights to generation: inside micro-data-parallel groups, if at all."""
    same = (train.tp, train.pp) == (generate.tp, generate.pp)
    return "none" if same else "hybridflow"


def one_pool(job: Job) -> tuple[ResourcePool, ...]:
    """Return a pool of all GPUs of the largest group, shared by all roles."""
    group = largest_group(job)
    return (ResourcePool(name="all", device=group.gpu, gpus=group.gpus, roles=roles_of(job)),)


def choices_of(
    job: Job, layouts_of: Callable[[Task], Iterable[TaskPlan]]
) -> dict[str, tuple[TaskPlan, ...]]:
    """Return the layouts of every task by its name."""
    return {task.name: tuple(layouts_of(task)) for task in job_tasks(job)}


def splits(job: Job, task: Task, gpus: int, *, most_pp: int) -> Iterator[tuple[int, int, int]]:
    """Yield (TP, PP, DP) that divide a model's heads and layers, TP inside a node."""
    model = job.architecture(task.role)
    for tp in powers_up_to(min(gpus, largest_group(job).gpus_per_node)):
        if model.num_heads % tp or model.num_kv_heads % tp:
            continue
        for pp in powers_up_to(min(most_pp, gpus // tp)):
            if gpus % (tp * pp) == 0 and model.num_layers % pp == 0:
                yield tp, pp, gpus // (tp * pp)
