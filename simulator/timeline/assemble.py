"""The forecast, put together from an agenda, its trace and the memory of its pools."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from rlplan.algorithms import load_algorithm
from rlplan.calibration import WORK_KINDS, Calibration, Factor
from rlplan.dataflow import expected_rounds, unused_roles
from rlplan.dispatchers import DISPATCHERS
from rlplan.estimate import Estimate, Source, interval_seconds
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup, Service
from rlplan.plan import Plan, ResourcePool
from rlplan.profiles.analytic.efficiencies import load_host_costs
from rlplan.profiles.facts import Facts
from rlplan.profiles.sheets import taken_from_sheet
from rlplan.results.forecast import Forecast, MemoryForecast, OverlapForecast, TaskForecast
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.simulator.costs.taskcost import step_spread, uncalibrated_spread
from rlplan.simulator.timeline.agenda import Entry
from rlplan.simulator.timeline.engine import Work
from rlplan.simulator.timeline.expenses import (
    PoolLoad,
    goodput_forecast,
    iteration_joules,
    iteration_usd,
    rates_of,
)
from rlplan.simulator.timeline.pool_memory import TRANSITION
from rlplan.simulator.workload import learnt_work
from rlplan.trace import IterationSpan, Span, Trace
from rlplan.units import show_bytes, show_seconds, show_usd
from rlplan.workload import Lognormal, mean_length

# Allocators lose a few per cent to fragmentation; above this share of a device's memory a plan
# that fits on paper may not fit in practice.
TIGHT_MEMORY_FRACTION = 0.95


def warnings_of(
    plan: Plan,
    agenda: Sequence[Entry],
    memory: Sequence[MemoryForecast],
    overlap: OverlapForecast | None,
) -> tuple[str, ...]:
    """Return warnings: sources, ranges, unused GPUs and models, tight memory, long sequences, old weights, drops.

    Args:
        overlap: Steady state of generation beside training, where responses are handed on one by one.
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
    longest = max(
        each.longest_sequence_tokens for each in (job.workload, learnt_work(job.workload))
    )
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
    age = f"up to {plan.staleness:g} update(s) old"
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


Interval = tuple[float, float]


def work_of(span: Span, works: Sequence[Work]) -> Work:
    """Return the work of a span."""
    return next(work for work in works if (work.name, work.pool) == (span.name, span.pool))


def critical_path(
    spans: Sequence[Span], works: Sequence[Work], begin_seconds: float = 0.0
) -> tuple[Span, ...]:
    """Return the critical path: the chain of spans that decided when the last one ended, in time order.

    The path is followed backwards from the last span. A work starts at the instant in which its last parent ended (which
    is preferred) or in which one of its resources was released.

    Args:
        spans: Of a simulated trace.
        begin_seconds: Where to stop; the first span of the path may have begun before.
    """
    path: list[Span] = []
    here = max(spans, key=lambda span: (span.end_seconds, span.seconds), default=None)
    while here is not None:
        path.append(here)
        if here.start_seconds < begin_seconds:
            break
        before = [
            span
            for span in spans
            if span.end_seconds == here.start_seconds
            and span.end_seconds >= begin_seconds
            and span not in path
        ]
        here = _cause(here, before, works)
    return tuple(reversed(path))


def _cause(here: Span, before: Sequence[Span], works: Sequence[Work]) -> Span | None:
    work = work_of(here, works)
    owners = [(span, work_of(span, works)) for span in before]
    waited_for = {(key, here.iteration) for key in work.after}
    waited_for |= {(key, here.iteration - lag) for key, lag in work.earlier}
    parents = [span for span, owner in owners if (owner.key, span.iteration) in waited_for]
    holders = [span for span, owner in owners if set(owner.holds) & set(work.holds)]
    return next(iter((*parents, *holders)), None)


def clipped(interval: Interval, window: IterationSpan) -> Interval:
    """Return the part of an interval that lies in a window, in seconds; empty if none does."""
    start = min(max(interval[0], window.start_seconds), window.end_seconds)
    return start, min(max(interval[1], start), window.end_seconds)


def idle_seconds(
    pools: Iterable[str],
    window: IterationSpan,
    spans: Sequence[Span],
    works: Sequence[Work],
    path: Sequence[tuple[Interval, str]],
) -> dict[str, float]:
    """Return pool-seconds of a window in which pools stand idle, by cause.

    `waiting in STAGE`: the pool has work left, and the critical path is in that stage;
    `no work left in STAGE`: the pool is done while the critical path is still in that stage.

    Args:
        window: An iteration, or several that overlap.
        path: Intervals of the critical path with the stage that each belongs to.
    """
    causes: dict[str, float] = {}
    for pool in pools:
        held = busy_intervals(pool, spans, works)
        last = max((end for _, end in held), default=window.start_seconds)
        busy = [part for each in held if (part := clipped(each, window))[0] < part[1]]
        for gap in _gaps(busy, window):
            reason = "waiting" if gap[1] <= last else "no work left"
            for interval, stage in path:
                overlap = min(gap[1], interval[1]) - max(gap[0], interval[0])
                if overlap > 0:
                    cause = f"{reason} in {stage}"
                    causes[cause] = causes.get(cause, 0.0) + overlap
    return causes


def busy_intervals(pool: str, spans: Sequence[Span], works: Sequence[Work]) -> list[Interval]:
    """Return when a pool is held, by start, in seconds."""
    return sorted(
        (span.start_seconds, span.end_seconds)
        for span in spans
        if pool in work_of(span, works).holds
    )


def seconds_by_stage(
    path: Sequence[tuple[Interval, str]], stages: Sequence[str]
) -> Mapping[str, float]:
    """Return the seconds that each stage occupies on the critical path."""
    totals = dict.fromkeys(stages, 0.0)
    for (start, end), stage in path:
        totals[stage] += end - start
    return totals


def _gaps(busy: Sequence[Interval], window: IterationSpan) -> list[Interval]:
    edges = [window.start_seconds, *(edge for each in busy for edge in each)]
    edges.append(window.end_seconds)
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


@lru_cache(maxsize=32)  # plans that are compared are of few jobs
def assumptions_of(job: Job, facts: Facts) -> tuple[str, ...]:
    """Return one sentence for each group of nodes, borrowed architecture, guessed lengths or rule and site's factor."""
    found = (
        *equal_responses(job),
        *_of_nodes(job, facts),
        *_of_kernels(job, facts),
        *_of_dispatchers(job),
        *_of_lengths(job),
        *_of_rules(job, facts),
        *_of_environments(job),
        *_of_site(facts.calibration, job.framework),
        *_of_framework(job, facts),
    )
    return tuple(dict.fromkeys(found))


def _of_site(calibration: Calibration, framework: str) -> Iterator[str]:
    """Yield what the site's factors are, those of one value together."""
    factors: dict[Factor, list[str]] = {}
    for name, factor in calibration.named():
        factors.setdefault(replace(factor, tied_to=()), []).append(name)
    site = f"site {calibration.site}".strip()
    for factor, names in factors.items():
        rows = "1 measured time" if factor.rows == 1 else f"{factor.rows} measured times"
        yield f"{site}: {', '.join(names)} x {factor.value:.2f}, fitted on {rows}"
    if calibration.framework not in ("", framework):
        yield f"{site}: fitted on steps of {calibration.framework}, not of {framework}"


def _of_framework(job: Job, facts: Facts) -> Iterator[str]:
    """Yield how well a framework's stages are known that no factor of the site corrects."""
    framework = facts.framework(job.framework)
    devices = [facts.device(group.gpu).sheet for group in job.cluster]
    spreads = {
        kind: uncalibrated_spread(framework, kind, *devices)
        for kind in WORK_KINDS
        if facts.calibration.factor(kind) is None
    }
    if spreads and not framework.runs:
        known = dict.fromkeys(f"{spread:.0%}" for spread in sorted(spreads.values()))
        yield (
            f"{framework.title}: {', '.join(spreads)} not calibrated at this site, known to within "
            f"{' to '.join((*known,)[:: max(1, len(known) - 1)])} (one sigma): see rlplan calibrate"
        )


def _of_nodes(job: Job, facts: Facts) -> Iterator[str]:
    for group in job.cluster:
        found = ", ".join(_figures(job, group, facts))
        if found:
            yield f"{group.gpus_per_node} x {group.gpu} a node, from its sheet: {found}"


def _figures(job: Job, group: NodeGroup, facts: Facts) -> Iterator[str]:
    """Yield the figures of a group that its device's sheet gives and that matter to it."""
    sheet, framework = facts.device(group.gpu).sheet, facts.framework(job.framework)
    kept = framework.keeps_domains
    taken = taken_from_sheet(group, sheet, keeps_domains=kept)
    domain = sheet.nvlink_domain_gpus if "nvlink_domain_gpus" in taken else None
    if domain and group.linked_gpus > group.gpus_per_node:
        yield f"NVLink over {group.linked_gpus} GPUs"
    elif domain and group.nodes > 1:
        yield (
            f"NVLink within nodes ({framework.title} places ranks without regard to domains of "
            f"{domain} GPUs; nvlink_domain_gpus says otherwise)"
        )
    if "inter_node_gbps" in taken and group.nodes > 1:
        yield f"{group.inter_node_gbps:,g} Gbit/s a node"
    if "cpu_cores" in taken and (job.rewards is not None or job.environments):
        yield f"{group.cpu_cores} CPU cores a node"
    if group.usd_per_gpu_hour is None:
        yield f"{sheet.usd_per_hour:g} USD per GPU and hour"


def _of_dispatchers(job: Job) -> Iterator[str]:
    """Yield which dispatcher takes the place of one that a job names, over a network on which that does not run."""
    for role, options in (job.trainers or {}).items():
        if (named := options.dispatcher) is None:
            continue
        for group in job.cluster:
            other = DISPATCHERS.load(named).instead.get(group.network or "")
            if other is not None and group.nodes > 1:
                yield f"the {role}'s tokens go to experts by {other}: {named} does not run over {group.network}"


def _of_usual_dispatchers(plan: Plan, facts: Facts) -> Iterator[str]:
    """Yield which dispatcher takes the place of one that an engine uses where its job names none, over such a network."""
    for name, layout in plan.tasks.items():
        role = name.partition(".")[0]
        if not layout.engine or layout.ep == 1 or plan.job.trainer(role).dispatcher is not None:
            continue
        usual = facts.engine(layout.engine).dispatcher
        for group in plan.job.cluster:
            other = DISPATCHERS.load(usual).instead.get(group.network or "")
            if other is not None and group.nodes > 1:
                yield (
                    f"the {role}'s tokens go to experts by {other}: {usual}, which {layout.engine} takes, does not run "
                    f"over {group.network}"
                )


def _of_shards_over_nodes(plan: Plan, facts: Facts) -> Iterator[str]:
    """Yield what a network that nobody has named may cost where ranks of several nodes spread weights among them."""
    framework = facts.framework(plan.job.framework)
    linked = {
        group.gpu: group.linked_gpus
        for group in plan.job.cluster
        if group.nodes > 1
        and "inter_node_gbps"
        in taken_from_sheet(
            group, facts.device(group.gpu).sheet, keeps_domains=framework.keeps_domains
        )
    }
    over = [
        name
        for name, layout in plan.tasks.items()
        if name.endswith(".update")
        and layout.zero == FULLY_SHARDED
        and layout.tp * (layout.shard_ranks or layout.dp * layout.cp)
        > linked.get(plan.pool_of(name).device, plan.job.gpus)
    ]
    if over:
        yield (
            f"{', '.join(over)}: every micro-batch gathers weights over nodes by RDMA. Two users' updates of 32B took "
            "32 and 8 times as long, as 27 and 43 Gbit/s a node would explain: inter_node_gbps of the node group says what there is"
        )


def _of_kernels(job: Job, facts: Facts) -> Iterator[str]:
    for group in job.cluster:
        device = facts.device(group.gpu)
        if device.borrowed_kernels is not None:
            yield (
                f"no operator of {device.sheet.architecture} ({group.gpu}) was measured: the efficiencies "
                f"of {device.borrowed_kernels} stand in"
            )


def equal_responses(job: Job) -> Iterator[str]:
    """Yield that all responses are equally long, where that may be meant as their limit: a forecast then takes them all for cut."""
    work = job.workload
    if isinstance(work.response_tokens, int) and not work.ignore_eos and not job.environments:
        yield (
            f"every response has {work.response_tokens:,} tokens; where that is only the longest, give the mean (--mean-response; in a job "
            f"workload.response_tokens: {{distribution: logged, mean: ..., max: {work.response_tokens}}})"
        )


def _of_lengths(job: Job) -> Iterator[str]:
    work = job.workload
    texts = [] if work.texts is None else [("text", work.texts.response_tokens)]
    responses = ("response", work.response_tokens)
    for what, lengths in (("prompt", work.prompt_tokens), responses, *texts):
        if isinstance(lengths, Lognormal) and lengths.assumed is not None:
            yield f"{what} lengths: {lengths.assumed}"


def _of_rules(job: Job, facts: Facts) -> Iterator[str]:
    rewards, device = job.rewards, facts.device(job.cluster[0].gpu)
    names = (rewards.function, rewards.cost_function) if rewards is not None else ()
    seconds = load_host_costs().rule_call_seconds.value
    for name in names:
        if name is not None and device.guesses_rule(name):
            yield (
                f"rule {name} takes {show_seconds(seconds)} a sample: give "
                f"rewards.function_seconds_per_sample, or run `rlplan profile` for this job"
            )
    if rewards is not None and rewards.service is not None:
        yield _of_service(job, rewards.service)


def _of_service(job: Job, service: Service) -> str:
    """Return what is said of the calls of a service in a step: their price is beside that of GPUs, or not known."""
    rounds = expected_rounds(load_algorithm(job.algorithm), job)
    calls = round(job.workload.sequences * rounds)
    what = f"{calls:,} calls of the reward service a step, {service.concurrency:,} at a time"
    if service.usd_per_call is None:
        return f"{what}: their price is not known (rewards.service.usd_per_call)"
    return f"{what}: {show_usd(calls * service.usd_per_call)} beside the cost of GPUs"


def _of_environments(job: Job) -> Iterator[str]:
    """Yield how many steps of environments run at a time that the job does not say it of."""
    cores = job.host_cores or 0
    for each in job.environments:
        if each.workers is None and each.cpu_cores and each.inference == "remote":
            steps = int(cores / each.cpu_cores)
            yield (
                f"environment {each.name}: up to {steps:,} steps at a time, {each.cpu_cores:g} of all nodes' "
                f"{cores:,} cores each"
            )


STAGES = ("generation", "preparation", "training", TRANSITION)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationFigures:
    """Hold the forecast seconds of an iteration, by stage and by idle cause.

    Attributes:
        tokens: Prompt and response tokens that it learns from.
        overlap: Steady state of generation beside training, where samples are handed on one by one.
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
    figures = IterationFigures(
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
    figures: IterationFigures,
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
        assumptions=tuple(
            dict.fromkeys(
                (
                    *assumptions_of(plan.job, facts),
                    *_of_usual_dispatchers(plan, facts),
                    *_of_shards_over_nodes(plan, facts),
                )
            )
        ),
        profile=facts.label,
        site=facts.calibration.label,
        loop_flops_per_second=facts.loop_flops_per_second,
    )


def window_of(iterations: Sequence[IterationSpan]) -> IterationSpan:
    """Return consecutive iterations as one span, with the number of the last one."""
    return replace(iterations[-1], start_seconds=iterations[0].start_seconds)


def _path(
    agenda: Sequence[Entry], spans: Sequence[Span], window: IterationSpan
) -> list[tuple[Entry, Interval]]:
    """Return the works on the critical path of a window, with their intervals."""
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
    """Return the pools of devices, without those of host processes."""
    return tuple(pool for pool in plan.pools if not pool.is_host)


def batch_tokens(job: Job) -> float:
    """Return the expected tokens of a global batch: prompts, responses and what environments add."""
    workload = learnt_work(job.workload)
    each = mean_length(workload.prompt_tokens) + mean_length(workload.response_tokens)
    each += workload.mean_observations_tokens
    return workload.sequences * each


def pool_loads(
    plan: Plan, facts: Facts, spans: Sequence[Span], agenda: Sequence[Entry], cycle: int
) -> tuple[PoolLoad, ...]:
    """Return the busy seconds of each pool in one iteration, split into compute-bound and memory-bound work.

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
            f"{show_bytes(memory.cache_shortage_bytes)} for its weights, what it computes in and the KV cache of one "
            "longest sequence"
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
