"""Results of the simulator and of searches: forecasts, ranked plans, fronts, and losses by stage and cause."""

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Annotated, Any, Literal

from rlplan.estimate import Source
from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import OneOf
from rlplan.plan import Plan
from rlplan.results.progress import ProgressForecast
from rlplan.results.run import RunForecast
from rlplan.trace import Activity, IterationSpan, Span, Trace, sorted_spans

SourceName = Annotated[str, OneOf(lambda: tuple(each.label for each in Source))]
FORECAST_VERSION: Literal[1] = 1
# The part of a task before its workers begin: the call that brings them their inputs.
CALL = "call overhead"
# Work of a run outside of its iterations; logs of frameworks use the same names (`beside` of their sheets).
VALIDATION, CHECKPOINTS = "validation", "checkpoints"
_NOTEBOOK = "rlplan.reports.notebook"


class NotebookResult:
    """Show itself in a notebook, as `rlplan.reports.notebook` draws it, which is looked up only then."""

    __slots__ = ()

    def to_pandas(self) -> Any:  # noqa: ANN401 -- pandas is no part of the vocabulary
        """Return its rows, tasks or plans, as a `pandas.DataFrame`, seconds and USD as numbers."""
        return import_module(_NOTEBOOK).frame_of(self)

    def _repr_html_(self) -> str:
        """Return what stands below a notebook's cell."""
        html: str = import_module(_NOTEBOOK).html_of(self)
        return html


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """Hold the peak of one GPU of a pool (the fullest one) and what it is made of.

    Attributes:
        gpu_peak_bytes: The peak; the sum of `terms`.
        terms: Bytes by term at the moment of the peak, such as `actor weights`, `activations`.
        peak_task: The task during which the peak occurs.
        host_terms: Bytes of host memory that the pool keeps for one GPU, by term.
        host_capacity_bytes: A GPU's share of its node's host memory; 0 where it is not known.
        cache_shortage_bytes: What the generation engine's share of the GPU lacks for its weights, what it computes in
            and the cache of one longest sequence; 0 where it suffices.
    """

    pool: str
    gpu_peak_bytes: int
    capacity_bytes: int
    terms: FrozenDict[str, int]
    peak_task: str
    host_terms: FrozenDict[str, int] = FrozenDict()
    host_capacity_bytes: int = 0
    cache_shortage_bytes: int = 0

    @property
    def fits(self) -> bool:
        """Tell whether the peaks are within the capacities of device and host."""
        return self.fits_device and self.fits_host

    @property
    def fits_device(self) -> bool:
        """Tell whether the peak is within the device's capacity and the engine's share holds at least one sequence."""
        return self.gpu_peak_bytes <= self.capacity_bytes and not self.cache_shortage_bytes

    @property
    def host_peak_bytes(self) -> int:
        """Return the bytes of host memory that the pool keeps for one GPU."""
        return sum(self.host_terms.values())

    @property
    def fits_host(self) -> bool:
        """Tell whether a GPU's share of host memory is large enough, as far as it is known."""
        return not self.host_capacity_bytes or self.host_peak_bytes <= self.host_capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskForecast:
    """Hold the expected seconds of one task (or transition), by cause.

    Attributes:
        seconds: On its pool, from the arrival of its inputs to the end of its outputs.
        interval_seconds: (p10, p90).
        source: Weakest source among the parts: measured, interpolated, fitted or datasheet.
        outside_range: Whether a look-up left the measured range.
        parts: Seconds by cause, such as `forward`, `backward`, `tensor-parallel collectives`,
            `pipeline bubble`, `gradient reduction`, `optimizer`, `call overhead`; they sum to
            `seconds`.
    """

    name: str
    pool: str
    activity: Activity
    stage: str
    seconds: float
    interval_seconds: tuple[float, float]
    source: SourceName
    outside_range: bool
    parts: FrozenDict[str, float]

    @property
    def worker_seconds(self) -> float:
        """Return its seconds without the call that brings the workers their inputs."""
        return self.seconds - self.parts.get(CALL, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapForecast:
    """Hold the steady state of generation that runs beside training, in modes that stream responses.

    Attributes:
        staleness_mean: Age of the weights that began a response when it is learnt from, in updates; the mean over
            responses.
        staleness_max: The largest age.
        trainer_waits_fraction: Share of an iteration in which the training pool is idle.
        generator_waits_fraction: Share in which the generating pool has no response under way, or waits for
            weights.
        dropped_fraction: Share of the generated tokens that are not learnt from.
        recomputed_fraction: Share of all tokens that are prefilled again, after new weights or on another replica.
        lent_fraction: Share of an iteration in which the training pool's GPUs are lent to generation, switches included.
        helped_fraction: Share of an iteration that training is shorter by, thanks to GPUs of idle generators.
    """

    staleness_mean: float
    staleness_max: float
    trainer_waits_fraction: float
    generator_waits_fraction: float
    dropped_fraction: float = 0.0
    recomputed_fraction: float = 0.0
    lent_fraction: float = 0.0
    helped_fraction: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputForecast:
    """Hold the goodput of a plan whose nodes fail.

    Attributes:
        fraction: Share of the time that goes into iterations that are not lost; 0 below a thousandth.
        failure_every_seconds: Mean time between failures of any node that the plan uses.
        checkpoint_every: Iterations between two checkpoints.
        iteration_seconds: Of an iteration with its part of checkpoints, restarts and lost work; None where failures
            come so often that the run makes no progress.
    """

    fraction: float
    failure_every_seconds: float
    checkpoint_every: int
    iteration_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotForecast:
    """Hold the expected time and cost of a plan on spot nodes, which may be taken away.

    Attributes:
        pools: Pools with GPUs on spot nodes.
        loss_every_seconds: Mean time between losses of any of the plan's spot nodes.
        generating_fraction: Share of the generation without losses that is left with them.
        lost_response_seconds: Work on responses under way that the loss of a replica throws away.
        goodput: Of losses and failures of nodes that train, which stop the run; None where there are none.
        fraction: Iteration seconds without losses over those with losses; 0 where the run makes no progress.
        iteration_seconds: Expected, with all losses; None where the run makes no progress.
        cost_usd: Expected price of an iteration; absent nodes are not paid for.
        steady_usd: Price of an iteration on nodes that all stay, at the list price of their device.
        run_seconds: Expected length of the whole run; None where the job does not give its iterations.
        run_usd: Expected price of the whole run; None likewise.
    """

    pools: tuple[str, ...]
    loss_every_seconds: float
    generating_fraction: float
    lost_response_seconds: float
    goodput: GoodputForecast | None
    fraction: float
    iteration_seconds: float | None
    cost_usd: float | None
    steady_usd: float
    run_seconds: float | None = None
    run_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationForecast:
    """Hold the effect of speculative decoding on an iteration's generation.

    Attributes:
        tokens_per_step: Mean tokens of a sequence in one step of the model.
        generation_seconds: Of the task, with speculation; calls are left out.
        without_seconds: The same without speculation.
        most_running: Limit on the running sequences of a replica.
        break_even_running: Running sequences from which on a token takes longer with speculation than without, at contexts
            of mean length; None where speculation is faster up to `most_running`.
    """

    tokens_per_step: float
    generation_seconds: float
    without_seconds: float
    most_running: int
    break_even_running: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCacheForecast:
    """Hold the effect of KV-cache blocks in host memory on an iteration's generation.

    Attributes:
        replica_bytes: Host memory of the cache of each replica.
        device_bytes: GPU memory of the cache of each replica.
        generation_seconds: Of the task, with blocks in host memory; calls are left out.
        without_seconds: The same of an engine that recomputes evicted blocks.
    """

    replica_bytes: float
    device_bytes: float
    generation_seconds: float
    without_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillForecast:
    """Hold the effect of replicas that read prompts alone on an iteration's generation.

    Attributes:
        reading: Replicas that read prompts.
        writing: Replicas that write.
        handed_bytes: Cache that goes from one to the other for a sequence's first turn on average.
        handed_seconds: Of the task, in which the slowest replica that writes waits for caches.
        generation_seconds: Of the task; calls are left out.
        without_seconds: The same where all replicas do both.
    """

    reading: int
    writing: int
    handed_bytes: float
    handed_seconds: float
    generation_seconds: float
    without_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideForecast:
    """Hold validation and checkpoints, which no iteration's seconds include.

    Attributes:
        each_seconds: Seconds that training waits for one `validation`, and for one of the `checkpoints`, where known.
        every: Iterations from one to the next, by the same names; a name is absent if it comes once in a run.
        per_iteration_seconds: Mean share of an iteration, by the same names: over the run if its length is known, else
            over a long run.
        checkpoint_bytes: Size of one checkpoint; 0 without checkpoints.
        unknown: For each that is unknown and not counted, the field of the job that would give it.
        notes: Further remarks for the reader.
        iterations: Of the whole run; None where the job does not give them.
        run_seconds: Of the whole run, including what is known of both; None where the iterations are not known.
        run_usd: Price of the run's pools for that time; None likewise.
    """

    each_seconds: FrozenDict[str, float] = FrozenDict()
    every: FrozenDict[str, int] = FrozenDict()
    per_iteration_seconds: FrozenDict[str, float] = FrozenDict()
    checkpoint_bytes: int = 0
    unknown: FrozenDict[str, str] = FrozenDict()
    notes: tuple[str, ...] = ()
    iterations: int | None = None
    run_seconds: float | None = None
    run_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentForecast:
    """Hold the host cores that one environment's episodes need, and the engine's cache that they need while they wait.

    Attributes:
        episodes: Episodes that an iteration begins.
        under_way: Most of them at a time: the number of sandboxes.
        core_seconds: Core time of the steps and resets of an iteration.
        mean_cores: Cores in use, on average over generation; where generation never stops, over the iteration.
        most_cores: Most cores in use at a time, limited by workers, cores and episodes under way.
        host_cores: Cores of all nodes; None where they are not known.
        context_tokens: Mean tokens of an episode at its end, observations included.
        resident: Contexts of that size that the cache of one replica holds; 0 where episodes are played inline.
        episodes_each: Most episodes of this environment under way on one replica. If all environments together have more
            than `resident`, contexts are evicted while their tools run, and prefilled again.
    """

    name: str
    episodes: float
    under_way: int
    core_seconds: float
    mean_cores: float
    most_cores: float
    host_cores: int | None
    context_tokens: float
    resident: int
    episodes_each: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(NotebookResult):
    """Hold the forecast of one plan.

    Attributes:
        iteration_seconds: Steady-state length of one iteration.
        iteration_seconds_interval: (p10, p90), from how well costs are known and from chance in the lengths.
        stage_seconds: Generation, preparation, training and transition: the time that each
            occupies on the iteration's critical path; they sum to at most `iteration_seconds`.
        tokens_per_second: Prompt and response tokens of a global batch over the iteration.
        tasks: When every task, transition and transfer of every iteration starts and ends, on
            which pool; sorted by (start, pool, name).
        iterations: Begin and end of every iteration.
        costs: Seconds of each task and transition by cause, in the dataflow's order.
        overlap: Generation beside training; None in modes that hand on whole batches.
        goodput: Effect of node failures; None where the job gives no failure rate.
        spot: Effect of losses of spot nodes; None where the plan uses none.
        speculation: Effect of speculative decoding; None without it, or where its acceptance is not known.
        host_cache: Effect of KV-cache blocks in host memory; None without them.
        prefill: Effect of replicas that read prompts alone; None without them.
        beside: Validation and checkpoints; None where the job has neither.
        environments: Needs of each environment, in the job's order; empty without environments.
        run: Forecast of a whole run; None where it was not asked for.
        progress: Effect of the age of samples on learning; None unless the job minimises the time to a score.
        idle_seconds: Time that pools are idle in an iteration, by cause.
        warnings: Reasons for caution with the numbers.
        assumptions: Values that the job leaves open and that come from sheets.
        profile: Source of the costs: data sheets, or a profile.
        site: Name of the site whose calibration factors the costs include; None without calibration.
        loop_flops_per_second: Rate of a device in a fixed loop when the profile was measured
            (`rlplan.executor.probing`); None where that is not known.
    """

    version: Literal[1] = FORECAST_VERSION
    iteration_seconds: float
    iteration_seconds_interval: tuple[float, float]
    tokens_per_second: float
    stage_seconds: FrozenDict[str, float]
    tasks: tuple[Span, ...]
    iterations: tuple[IterationSpan, ...]
    costs: tuple[TaskForecast, ...]
    memory: tuple[MemoryForecast, ...]
    feasible: bool
    infeasible_reasons: tuple[str, ...]
    idle_seconds: FrozenDict[str, float]
    cost_usd: float
    energy_joules: float
    overlap: OverlapForecast | None = None
    goodput: GoodputForecast | None = None
    spot: SpotForecast | None = None
    speculation: SpeculationForecast | None = None
    host_cache: HostCacheForecast | None = None
    prefill: PrefillForecast | None = None
    beside: BesideForecast | None = None
    environments: tuple[EnvironmentForecast, ...] = ()
    run: RunForecast | None = None
    progress: ProgressForecast | None = None
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...] = ()
    profile: str
    site: str | None = None
    loop_flops_per_second: float | None = None

    @property
    def free_fraction(self) -> float:
        """Return the share of memory that stays free on the fullest GPU at its peak."""
        pools = (each for each in self.memory if each.capacity_bytes)
        return min((1 - each.gpu_peak_bytes / each.capacity_bytes for each in pools), default=1.0)

    @property
    def beside_seconds(self) -> float:
        """Return an iteration's mean share of validation and checkpoints, as far as they are known."""
        return sum(self.beside.per_iteration_seconds.values()) if self.beside else 0.0

    @property
    def trace(self) -> Trace:
        """Return tasks and iterations as a trace, the form that measured runs have too."""
        return Trace(origin="simulated", spans=self.tasks, iterations=self.iterations)

    @property
    def work_trace(self) -> Trace:
        """Return the trace with spans that start when workers start, after the call, as in measured runs.

        In modes that stream responses, spans exclude calls already.
        """
        if self.overlap is not None:
            return self.trace
        calls = {(each.name, each.pool): each.seconds - each.worker_seconds for each in self.costs}
        starts = [
            span.start_seconds + calls.get((span.name, span.pool), 0.0) for span in self.tasks
        ]
        spans = [
            replace(span, start_seconds=min(start, span.end_seconds))
            for span, start in zip(self.tasks, starts, strict=True)
        ]
        return replace(self.trace, spans=sorted_spans(spans))


# Seconds of a stage that no task of its busiest pool accounts for: transfers, and waiting for other pools.
WAITING = "transfers and waiting"
# A cause below this share of the stage's loss is not reported.
LEAST_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoss:
    """Hold the seconds by which a stage is longer (below zero: shorter) than the winner's.

    Attributes:
        causes: Pairs of cause and seconds, such as (`pipeline bubble`, 4.0), the largest first; they
            sum to `seconds`.
    """

    stage: str
    seconds: float
    causes: tuple[tuple[str, float], ...]

    @property
    def main_causes(self) -> tuple[tuple[str, float], ...]:
        """Return the causes of the same sign as the stage's difference, without the smallest."""
        least = LEAST_SHARE * abs(self.seconds)
        same_way = [(name, seconds) for name, seconds in self.causes if seconds * self.seconds > 0]
        return tuple(each for each in same_way if abs(each[1]) >= least)


def losses(slower: Forecast, faster: Forecast) -> tuple[StageLoss, ...]:
    """Return the loss of every stage of an iteration against another plan's, the largest loss first.

    A stage lasts as long as its busiest pool works. The parts of that pool's tasks are summed up by cause and compared.
    """
    found = []
    for stage in dict.fromkeys((*slower.stage_seconds, *faster.stage_seconds)):
        seconds = slower.stage_seconds.get(stage, 0.0) - faster.stage_seconds.get(stage, 0.0)
        own, others = _parts(slower, stage), _parts(faster, stage)
        causes = {
            name: own.get(name, 0.0) - others.get(name, 0.0)
            for name in dict.fromkeys((*own, *others))
        }
        ordered = sorted(causes.items(), key=lambda item: (-abs(item[1]), item[0]))
        found.append(
            StageLoss(
                stage=stage,
                seconds=seconds,
                causes=tuple((name, each) for name, each in ordered if each),
            )
        )
    return tuple(sorted(found, key=lambda loss: (-loss.seconds, loss.stage)))


def _parts(forecast: Forecast, stage: str) -> dict[str, float]:
    """Return a stage's seconds by cause on its busiest pool; they sum to what it occupies."""
    pools: dict[str, list[TaskForecast]] = {}
    for task in forecast.costs:
        if task.stage == stage and task.activity != "transfer":
            pools.setdefault(task.pool, []).append(task)
    parts: dict[str, float] = {}
    busiest = max(pools.values(), key=lambda tasks: sum(each.seconds for each in tasks), default=[])
    for task in busiest:
        for name, seconds in task.parts.items():
            parts[name] = parts.get(name, 0.0) + seconds
    rest = forecast.stage_seconds.get(stage, 0.0) - sum(parts.values())
    if rest:
        parts[WAITING] = rest
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Hold one change of a job, simulated.

    Attributes:
        change: In words, such as `responses twice as long`.
        plan: Of the changed job; None where there is none.
        is_same_plan: Whether pools and layouts are those of the plan that was asked about; else they were
            searched anew.
        forecast: Of the plan.
        reason: Why there is no plan; empty where there is one.
        gap: How far a plan that was searched may be from the best; 0 is proven.
    """

    change: str
    plan: Plan | None = None
    is_same_plan: bool = True
    forecast: Forecast | None = None
    reason: str = ""
    gap: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesUnderWay:
    """Hold the number of an iteration's responses that have not ended, as a step function of time.

    Attributes:
        seconds: From the start of generation, ascending, the first one 0.
        responses: That have not ended from then on, running or waiting; the last one 0.
        most_running: The plan's limit on the responses that run at a time.
    """

    seconds: tuple[float, ...]
    responses: tuple[int, ...]
    most_running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMoment:
    """Hold the memory of a pool's fullest GPU, by term, during one task or the transition.

    Attributes:
        terms: Bytes by term.
    """

    pool: str
    during: str
    terms: FrozenDict[str, int]
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDetails:
    """Hold details of a plan that are computed for its page only.

    Attributes:
        what_ifs: The plan's job with one change each.
        under_way: Responses during generation; None in modes that never stop generating.
        memory: By pool, in the order of the dataflow.
    """

    what_ifs: tuple[WhatIf, ...] = ()
    under_way: ResponsesUnderWay | None = None
    memory: tuple[MemoryMoment, ...] = ()


SEARCH_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Hold a plan with its forecast, and what it loses to the winner.

    Attributes:
        loses_seconds: Iteration seconds above the winner's.
        loses_to: Where the loss comes from: by stage, seconds above (or below) the winner's.
        gap: How far the best plan of its placement may be below it; 0 means proven optimal.
    """

    plan: Plan
    forecast: Forecast
    loses_seconds: float
    loses_to: FrozenDict[str, float]
    gap: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InfeasiblePlacement:
    """Say why a placement has no feasible plan, by the candidate that came nearest."""

    placement: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePrice:
    """Hold what the deadline of a whole run costs: the cheapest run that ends in time, and the cheapest one without.

    Attributes:
        run_seconds: Of the cheapest run that ends in time.
        run_usd: Its price.
        free_run_seconds: Of the cheapest run without the deadline.
        free_run_usd: Its price, no more than the other's.
    """

    deadline_seconds: float
    run_seconds: float
    run_usd: float
    free_run_seconds: float
    free_run_usd: float

    @property
    def extra_usd(self) -> float:
        """Return what the deadline costs."""
        return self.run_usd - self.free_run_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult(NotebookResult):
    """Hold the plans found, best first, with the certificate.

    Attributes:
        plans: At least the best plan of every placement that has a feasible one.
        considered: Candidates that were looked at, by level.
        pruned: Candidates dropped, by rule.
        bound_seconds: No plan in the space is faster than this.
        gap: (best - bound) / best; 0 means proven optimal under the cost model.
        space: The space of plans that was searched, in words.
        unseen: Placements that the search had no time for; whether a plan of theirs fits is not known.
        left_out: Placements that were not looked at, since no plan of theirs is among as many of the best as were asked
            for; whether one fits is not known.
        deadline: What the deadline of the whole run costs; None where there is none.
    """

    version: int = SEARCH_VERSION
    plans: tuple[Candidate, ...]
    infeasible: tuple[InfeasiblePlacement, ...]
    considered: FrozenDict[str, int]
    pruned: FrozenDict[str, int]
    bound_seconds: float
    gap: float
    search_seconds: float
    profile: str
    space: str = ""
    unseen: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    deadline: DeadlinePrice | None = None


FRONTIER_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """Hold one plan of a front, simulated.

    Attributes:
        values: By objective, what the plan is worth in the objective's unit; less is better.
        best_in: Objectives of which no plan has a better value: the front's ends.
        gap: Bound on how much better a plan could be in the searched objective, with the others no worse; 0 is proven
            optimal under the cost model.
    """

    candidate: Candidate
    values: FrozenDict[str, float]
    best_in: tuple[str, ...]
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Hold the points of a front, the best in the first objective first.

    Attributes:
        units: By objective, the unit of its values.
        searches: Number of searches.
        unfinished: Searches that found no plan in their time; the front may lack a point for each.
    """

    version: int = FRONTIER_VERSION
    objectives: tuple[str, ...]
    units: FrozenDict[str, str]
    points: tuple[FrontierPoint, ...]
    searches: int
    search_seconds: float
    unfinished: int = 0
