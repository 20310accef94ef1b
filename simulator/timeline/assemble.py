"""The forecast, put together from an agenda, its trace and the memory of its pools."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiles.facts import Facts
from rlplan.estimate import Estimate, interval_seconds
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import Plan, ResourcePool
from rlplan.results.forecast import Forecast, MemoryForecast, OverlapForecast, TaskForecast
from rlplan.trace import IterationSpan, Span, Trace
from rlplan.units import show_bytes
from rlplan.workload.lengths import mean_length
from simulator.costs.calibrated import step_spread
from simulator.timeline.agenda import Entry
from simulator.timeline.assumptions import assumptions_of
from simulator.timeline.critical_path import (
    Interval,
    clipped,
    critical_path,
    idle_seconds,
    seconds_by_stage,
    work_of,
)
from simulator.timeline.expenses import PoolLoad, iteration_joules, iteration_usd, rates_of
from simulator.timeline.forecast_warnings import warnings_of
from simulator.timeline.goodput import goodput_forecast
from simulator.timeline.pool_memory import TRANSITION
from simulator.timeline.steady import window_of

STAGES = ("generation", "preparation", "training", TRANSITION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Hold what an iteration is forecast to take, and where its time goes.

    Attributes:
        tokens: Prompt and response tokens of what it learns from.
        overlap: What becomes of generation beside training, in modes that stream responses.
    """

    iteration: Estimate
    tokens: float
    stage_seconds: FrozenDict[str, float]
    idle_seconds: FrozenDict[str, float]
    loads: tuple[PoolLoad, ...]
    overlap: OverlapForecast | None = None


def assemble(
    plan: Plan,
    facts: Facts,
    agenda: Sequence[Entry],
    trace: Trace,
    memory: Sequence[MemoryForecast],
    counted: Sequence[IterationSpan] = (),
    tokens: float | None = None,
) -> Forecast:
    """Return the forecast of a trace.

    Args:
        tokens: That an iteration learns from; None is those of a batch.
        counted: The iterations whose mean the figures are; none takes the last one.
    """
    counted = counted or trace.iterations[-1:]
    window, cycle = window_of(counted), len(counted)
    works = [entry.work for entry in agenda]
    path = _path(agenda, trace.spans, window)
    iteration_seconds = window.seconds / cycle
    by_stage = dict.fromkeys(STAGES, 0.0)
    for entry, interval in path:
        by_stage[entry.stage] += _spread_seconds(entry, interval) / cycle
    framework = facts.framework(plan.job.framework)
    spread = step_spread(iteration_seconds, by_stage.values(), framework, facts)
    numbers = {each.iteration for each in counted}
    spans = [span for span in trace.spans if span.iteration in numbers]
    staged = [(interval, entry.stage) for entry, interval in path]
    idle = idle_seconds(
        [pool.name for pool in device_pools(plan)], window, trace.spans, works, staged
    )
    figures = Figures(
        iteration=Estimate(iteration_seconds, spread),
        tokens=tokens or batch_tokens(plan.job),
        stage_seconds=_per_iteration(seconds_by_stage(staged, STAGES), cycle),
        idle_seconds=_per_iteration(idle, cycle),
        loads=pool_loads(plan, facts, spans, agenda, cycle),
    )
    return forecast_of(plan, facts, agenda, trace, memory, figures)


def forecast_of(
    plan: Plan,
    facts: Facts,
    agenda: Sequence[Entry],
    trace: Trace,
    memory: Sequence[MemoryForecast],
    figures: Figures,
) -> Forecast:
    """Return the forecast of a trace whose figures are known."""
    seconds = figures.iteration.seconds
    return Forecast(
        iteration_seconds=seconds,
        iteration_seconds_interval=interval_seconds(figures.iteration),
        tokens_per_second=figures.tokens / seconds,
        stage_seconds=figures.stage_seconds,
        tasks=trace.spans,
        iterations=trace.iterations,
        costs=tuple(_task_forecast(entry) for entry in agenda),
        memory=tuple(memory),
        feasible=all(each.fits for each in memory),
        infeasible_reasons=tuple(
            memory_shortage(plan.pool(each.pool), each) for each in memory if not each.fits
        ),
        idle_seconds=figures.idle_seconds,
        cost_usd=iteration_usd((load.rates for load in figures.loads), seconds),
        energy_joules=iteration_joules(figures.loads, seconds),
        overlap=figures.overlap,
        goodput=goodput_forecast(plan, seconds),
        warnings=warnings_of(plan, agenda, memory, figures.overlap),
        assumptions=assumptions_of(plan.job, facts),
        profile=facts.label,
        site=facts.calibration.label,
        loop_flops_per_second=facts.loop_flops_per_second,
    )


def _path(
    agenda: Sequence[Entry], spans: Sequence[Span], window: IterationSpan
) -> list[tuple[Entry, Interval]]:
    """Return what is on the critical path of a window, and when."""
    works = [entry.work for entry in agenda]
    until = [span for span in spans if span.end_seconds <= window.end_seconds]
    entry_of = {entry.work.key: entry for entry in agenda}
    return [
        (
            entry_of[work_of(span, works).key],
            clipped((span.start_seconds, span.end_seconds), window),
        )
        for span in critical_path(until, works, window.start_seconds)
    ]


def _spread_seconds(entry: Entry, interval: Interval) -> float:
    """Return the spread of the part of a work that lies in an interval, in seconds."""
    whole, (start_seconds, end_seconds) = entry.cost.total, interval
    if not whole.seconds:
        return whole.spread_seconds
    return whole.spread_seconds * min(1.0, (end_seconds - start_seconds) / whole.seconds)


def _per_iteration(seconds: Mapping[str, float], cycle: int) -> FrozenDict[str, float]:
    return FrozenDict({name: value / cycle for name, value in seconds.items()})


def device_pools(plan: Plan) -> tuple[ResourcePool, ...]:
    """Return the pools that are made of devices, not of host processes."""
    return tuple(pool for pool in plan.pools if not pool.is_host)


def batch_tokens(job: Job) -> float:
    """Return the expected tokens of a global batch: prompts, responses and what environments add."""
    workload = job.workload
    each = mean_length(workload.prompt_tokens) + mean_length(workload.response_tokens)
    each += workload.mean_observations_tokens
    return workload.sequences * each


def pool_loads(
    plan: Plan, facts: Facts, spans: Sequence[Span], agenda: Sequence[Entry], cycle: int = 1
) -> tuple[PoolLoad, ...]:
    """Return the seconds of one iteration in which each pool works, by what limits the work.

    Args:
        spans: Of `cycle` iterations.
    """
    rates = rates_of(plan, facts)
    works = [entry.work for entry in agenda]
    generates = {
        entry.work.key
        for entry in agenda
        if entry.stage in ("generation", TRANSITION) and entry.work.activity != "transfer"
    }
    computing, moving = dict.fromkeys(rates, 0.0), dict.fromkeys(rates, 0.0)
    for span in spans:
        work = work_of(span, works)
        seconds = moving if work.key in generates else computing
        for pool in work.holds:
            if pool in seconds:  # transfers hold links, and pools go on with their work
                seconds[pool] += span.seconds / cycle
    return tuple(PoolLoad(rates[name], computing[name], moving[name]) for name in rates)


def memory_shortage(pool: ResourcePool, memory: MemoryForecast) -> str:
    """Say which GPU, or which host, of a pool is short of memory, by how much, and the largest term."""
    if memory.gpu_peak_bytes <= memory.capacity_bytes and memory.cache_shortage_bytes:
        return (
            f"pool {pool.name} ({pool.gpus} x {pool.device}): the generation engine's share of each GPU lacks "
            f"{show_bytes(memory.cache_shortage_bytes)} for the KV cache of one longest sequence, beside its "
            "weights and what it computes in"
        )
    if memory.fits_device:
        term, term_bytes = max(memory.host_terms.items(), key=lambda item: (item[1], item[0]))
        over = memory.host_peak_bytes - memory.host_capacity_bytes
        return (
            f"pool {pool.name} ({pool.gpus} x {pool.device}): its hosts need "
            f"{show_bytes(memory.host_peak_bytes)} of the {show_bytes(memory.host_capacity_bytes)} of "
            f"host memory that a GPU's share of its node is, {show_bytes(over)} too many; largest "
            f"term: {term}, {show_bytes(term_bytes)}"
        )
    term, term_bytes = max(memory.terms.items(), key=lambda item: (item[1], item[0]))
    return (
        f"pool {pool.name} ({pool.gpus} x {pool.device}): its fullest GPU needs "
        f"{show_bytes(memory.gpu_peak_bytes)} of {show_bytes(memory.capacity_bytes)} in "
        f"{memory.peak_task}, {show_bytes(memory.gpu_peak_bytes - memory.capacity_bytes)} too many; "
        f"largest term: {term}, {show_bytes(term_bytes)}"
    )


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
