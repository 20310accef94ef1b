"""What a reader should know before trusting a forecast."""

import math
from collections.abc import Sequence

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import unused_roles
from rlplan.estimate import Source
from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.results.forecast import MemoryForecast, OverlapForecast
from simulator.timeline.agenda import Entry

# Allocators lose a few per cent to fragmentation; above this share of a device's memory a plan
# that fits on paper may not fit in practice.
TIGHT_MEMORY_FRACTION = 0.95


def warnings_of(
    plan: Plan,
    agenda: Sequence[Entry],
    memory: Sequence[MemoryForecast],
    overlap: OverlapForecast | None = None,
) -> tuple[str, ...]:
    """Return warnings: sources, ranges, unused GPUs and models, tight memory, long sequences, old weights, drops.

    Args:
        overlap: What becomes of generation beside training, where responses are handed on one by one.
    """
    return (
        *_about_sources(agenda),
        *_about_pools(plan),
        *_about_memory(memory),
        *_about_positions(plan.job),
        *_about_unused_models(plan.job),
        *_about_staleness(plan, overlap),
        *_about_drops(plan.job),
    )


def _about_sources(agenda: Sequence[Entry]) -> list[str]:
    found = []
    outside = [entry.work.name for entry in agenda if entry.cost.total.outside_range]
    if outside:
        found.append(f"outside the measured range, taken from its nearest edge: {_listed(outside)}")
    sheet = [entry for entry in agenda if entry.cost.total.source == Source.DATASHEET]
    tasks = {entry.work.key for entry in agenda if entry.work.activity == "task"}
    if tasks <= {entry.work.key for entry in sheet}:
        found.append("no task was measured as a whole: every task has parts from datasheets")
    elif sheet:
        found.append(f"not measured, from datasheets: {'; '.join(map(_unmeasured_parts, sheet))}")
    return found


def _unmeasured_parts(entry: Entry) -> str:
    parts = [name for name, part in entry.cost.parts if part.source == Source.DATASHEET]
    return f"{entry.work.name} ({_listed(parts)})"


def _about_pools(plan: Plan) -> list[str]:
    found = []
    devices = [pool for pool in plan.pools if not pool.is_host]
    unused = plan.job.gpus - sum(pool.gpus for pool in devices)
    if unused > 0:
        found.append(f"{unused} of the cluster's {plan.job.gpus} GPUs are in no pool")
    used = {layout.pool for layout in plan.tasks.values()}
    found += [
        f"pool {pool.name} has no task: its {pool.gpus} GPUs stand idle"
        for pool in plan.pools
        if pool.name not in used
    ]
    return found


def _about_memory(memory: Sequence[MemoryForecast]) -> list[str]:
    return [
        f"pool {each.pool} fills {each.gpu_peak_bytes / each.capacity_bytes:.0%} of its memory in "
        f"{each.peak_task}: fragmentation may push it over"
        for each in memory
        if each.fits and each.gpu_peak_bytes > TIGHT_MEMORY_FRACTION * each.capacity_bytes
    ]


def _about_positions(job: Job) -> list[str]:
    longest = job.workload.longest_sequence_tokens
    return [
        f"{role}: sequences of up to {longest} tokens, but {job.architecture(role).name} was made "
        f"for {job.architecture(role).max_positions}"
        for role in job.models
        if longest > job.architecture(role).max_positions
    ]


def _about_unused_models(job: Job) -> list[str]:
    algorithm = load_algorithm(job.algorithm)
    why = "the penalty for leaving it has no weight, so its pass is not planned"
    if algorithm.shares_reference(job):
        why = "the actor's frozen weights, its adapters off, are the reference"
    unused = sorted(unused_roles(algorithm, job))
    return [f"models.{role} is not used: {why}" for role in unused]


def _about_staleness(plan: Plan, overlap: OverlapForecast | None) -> list[str]:
    if plan.staleness == 0:
        return []
    age = f"up to {plan.staleness} update(s) old"
    if overlap is not None and overlap.staleness_max < math.floor(plan.staleness):
        age = f"up to {overlap.staleness_max:g} update(s) old, as generation never reaches the bound of {plan.staleness:g}"
    return [f"mode {plan.mode}: trains on samples of weights {age}, which may change convergence"]


def _about_drops(job: Job) -> list[str]:
    return [
        f"{name} {over:g}: the longest responses are dropped, so it learns from shorter ones than the job says"
        for name, over in job.workload.begun_beyond.items()
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))
