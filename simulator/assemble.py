"""The forecast, put together from an agenda, its trace and the memory of its pools."""

from collections.abc import Mapping, Sequence

from profiles.facts import Facts
from rlplan.estimate import Estimate, total
from rlplan.forecast import Forecast, MemoryForecast, TaskForecast
from rlplan.frozen import FrozenDict
from rlplan.lengths import mean_length
from rlplan.plan import Plan, ResourcePool
from rlplan.trace import Span, Trace
from rlplan.units import show_bytes
from simulator.agenda import TRANSITION, Entry
from simulator.cautions import warnings_of
from simulator.critical_path import (
    Interval,
    busy_intervals,
    critical_path,
    idle_seconds,
    seconds_by_stage,
    work_of,
)
from simulator.intervals import interval_seconds

STAGES = ("generation", "preparation", "training", TRANSITION)
SECONDS_PER_HOUR = 3600


def assemble(
    plan: Plan,
    facts: Facts,
    agenda: Sequence[Entry],
    trace: Trace,
    memory: Sequence[MemoryForecast],
) -> Forecast:
    """Return the forecast of the trace's last iteration."""
    iteration = trace.iterations[-1]
    spans = trace.of_iteration(iteration.iteration)
    works = [entry.work for entry in agenda]
    entry_of = {entry.work.key: entry for entry in agenda}
    path_spans = critical_path(spans, works)
    entries = [entry_of[work_of(span, works).key] for span in path_spans]
    path = [(_interval(span), entry.stage) for span, entry in zip(path_spans, entries, strict=True)]
    spread = total(entry.cost.total for entry in entries).spread_seconds
    busy = {
        pool.name: sum(end - start for start, end in busy_intervals(pool.name, spans, works))
        for pool in device_pools(plan)
    }
    return Forecast(
        iteration_seconds=iteration.seconds,
        iteration_seconds_interval=interval_seconds(Estimate(iteration.seconds, spread)),
        tokens_per_second=batch_tokens(plan) / iteration.seconds,
        stage_seconds=FrozenDict(seconds_by_stage(path, STAGES)),
        tasks=trace.spans,
        iterations=trace.iterations,
        costs=tuple(_task_forecast(entry) for entry in agenda),
        memory=tuple(memory),
        feasible=all(each.fits for each in memory),
        infeasible_reasons=tuple(
            memory_shortage(plan.pool(each.pool), each) for each in memory if not each.fits
        ),
        idle_seconds=FrozenDict(idle_seconds(busy, iteration, spans, works, path)),
        cost_usd=cost_usd(plan, facts, iteration.seconds),
        energy_joules=energy_joules(plan, facts, iteration.seconds, busy),
        warnings=warnings_of(plan, agenda, memory),
        profile=facts.label,
    )


def device_pools(plan: Plan) -> tuple[ResourcePool, ...]:
    """Return the pools that are made of devices, not of host processes."""
    return tuple(pool for pool in plan.pools if not pool.is_host)


def batch_tokens(plan: Plan) -> float:
    """Return the expected prompt and response tokens of a global batch."""
    workload = plan.job.workload
    each = mean_length(workload.prompt_tokens) + mean_length(workload.response_tokens)
    return workload.sequences * each


def cost_usd(plan: Plan, facts: Facts, iteration_seconds: float) -> float:
    """Return the price of an iteration: every GPU of every pool, busy or not, in USD."""
    return (
        sum(
            pool.gpus * facts.device(pool.device).sheet.usd_per_hour * iteration_seconds
            for pool in device_pools(plan)
        )
        / SECONDS_PER_HOUR
    )


def energy_joules(
    plan: Plan, facts: Facts, iteration_seconds: float, busy_seconds: Mapping[str, float]
) -> float:
    """Return the energy of an iteration: full power while a pool is busy, idle power otherwise."""
    joules = 0.0
    for pool in device_pools(plan):
        sheet = facts.device(pool.device).sheet
        busy = busy_seconds[pool.name]
        watts_seconds = sheet.power_watts * busy + sheet.idle_watts * (iteration_seconds - busy)
        joules += pool.gpus * watts_seconds
    return joules


def memory_shortage(pool: ResourcePool, memory: MemoryForecast) -> str:
    """Say which GPU of a pool is short of memory, in which task, by how much, and the largest term."""
    term, term_bytes = max(memory.terms.items(), key=lambda item: (item[1], item[0]))
    return (
        f"pool {pool.name} ({pool.gpus} x {pool.device}): its fullest GPU needs "
        f"{show_bytes(memory.gpu_peak_bytes)} of {show_bytes(memory.capacity_bytes)} in "
        f"{memory.peak_task}, {show_bytes(memory.gpu_peak_bytes - memory.capacity_bytes)} too many; "
        f"largest term: {term}, {show_bytes(term_bytes)}"
    )


def _interval(span: Span) -> Interval:
    return span.start_seconds, span.end_seconds


def _task_forecast(entry: Entry) -> TaskForecast:
    estimate = entry.cost.total
    parts: dict[str, float] = {}
    for name, part in entry.cost.parts:
        parts[name] = parts.get(name, 0.0) + part.seconds
    return TaskForecast(
        name=entry.work.name,
        pool=entry.work.pool,
        activity=entry.work.activity,
        stage=entry.stage,
        seconds=estimate.seconds,
        interval_seconds=interval_seconds(estimate),
        source=estimate.source.label,
        outside_range=estimate.outside_range,
        parts=FrozenDict(parts),
    )
