"""Name why a measured stage is slow, as far as log and plan show it, and what may be tried."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import nsmallest
from math import log

from rlplan.calibration import STAGE_TASKS
from rlplan.errors import UserError
from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan, TaskPlan
from rlplan.planner.configs.frameworks import framework_of_steps, has
from rlplan.planner.configs.importing import Imported, run_of
from rlplan.planner.configs.proposing.changes import argument, assignments, by_words_of_files
from rlplan.planner.configs.reading.laid_over import laid_over
from rlplan.planner.configs.reading.sheet import ROLE, load_config_sheet
from rlplan.planner.configs.run import draft_of
from rlplan.planner.configs.sizes import eager_engine
from rlplan.planner.measured.slow_network import STAGES as NETWORK_STAGES
from rlplan.planner.measured.slow_network import slow_network_gbps
from rlplan.profiles.catalog import load_engine
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import LoggedSteps, StageCheck
from rlplan.simulator.costs.taskcost import STATES_AWAY, STATES_BACK, WEIGHTS_BACK
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.pool_memory import TRANSITION
from rlplan.simulator.workload import statistics_of
from rlplan.trainers import ExpertOrder
from rlplan.units import show_seconds
from rlplan.workload import longest, mean_length

# From here on rates are said in whole Gbit/s.
WHOLE_GBPS = 10
# Of slime and miles, whose trainers pack unless it says otherwise.
ROWS_FORMAT = "qkv-format"
# A longest response of more times the mean leaves most of a batch's running slots empty at its end: of lengths
# with the log standard deviation of published runs (0.6 to 0.8), the longest of 256 are 4 times the mean and more.
TAIL_TIMES = 3.0
# Shares of a stage or of responses that are worth a word.
TOLD_FRACTION = 0.03
# Of a step that one side stands still beside the other.
IDLE_FRACTION = 0.1
# What a stage takes if padding, or an eager engine, is all that explains it lies as near to what it took; a longest response
# as near to the forecast's is no cause.
NEAR_FRACTION = 0.25
# A change that gains less of a stage is not worth a try.
LEAST_GAIN = 0.02
TRIES = 2
GROWTH = (2, 4)
# Sequences of a micro-batch below which a token budget is small.
FEW_SEQUENCES = 2
# Where larger micro-batches, or smaller replicas of an engine, take a share less of a stage, they are why it is slow.
WORTH_FRACTION = 0.25
# So many times a forecast is no matter of kernels, graphs or long responses: the engine is hardly asked.
IDLE_TIMES = 8.0
# An update whose times of its forecast are so many times those of the same model's forward passes is not slow for what both do:
# far outside of what stages of one site differ by (`within_site` of profiles/fits/calibration.yaml; an engineering assumption).
ALONE_TIMES = 3.0
# Copies from memory that is not pinned, and of all GPUs of a node through shared PCIe, may take so many times as long as
# the pinned ones of one GPU that are forecast (an engineering assumption: 2 to 5 GB/s where 25 are usual).
MOST_COPY_TIMES = 10.0
# A change of a normal stage that gains less of a step is not told.
LEAST_STEP_GAIN = 0.1
# Of the longest episode that it waits for its environment, and times the mean at which that is one that hangs: of 4 steps of
# verl whose slowest episode waited 900 to 1,000 s, the others waited 43 to 87 s.
TOOL_FRACTION = 0.25
STUCK_TIMES = 5.0


@dataclass(frozen=True, slots=True)
class Subject:
    """Hold what causes are looked for in.

    Attributes:
        plan: What ran, at the lengths that were measured.
        log: None for a run of our own.
        imported: The framework's configuration that ran, in whose keys changes are told; None where a plan says what ran.
    """

    plan: Plan
    facts: Facts
    forecast: Forecast
    log: LoggedSteps | None
    imported: Imported | None = None


NOT_SHOWN = {
    "generation": (
        "the log does not show why: look at the engine's running and preempted sequences, at CUDA graphs "
        "(enforce_eager), and at what else runs on the node"
    ),
    "other": (
        "the log does not show why: look at clocks and other work on the GPUs, at the network, and at one "
        "slow rank"
    ),
}

Cause = Callable[[StageCheck, Subject], str | None]


def causes_of(stage: StageCheck, subject: Subject) -> tuple[str, ...]:
    """Return why a slow stage may be slow, in sentences; where log and plan do not show it, where to look."""
    found = [words for cause in CAUSES if (words := cause(stage, subject))]
    found += [words for _, words in sorted(_where_a_step_goes(stage, subject), reverse=True)]
    return tuple(found) or (NOT_SHOWN["generation" if stage.name in GENERATION else "other"],)


def tail(stage: StageCheck, subject: Subject) -> str | None:
    """Name the longest responses, which run nearly alone at the end of generation."""
    log = subject.log
    if stage.name not in GENERATION or log is None or not log.response_tokens:
        return None
    most, cut = log.longest_response, log.clip_ratio or 0.0
    if not most or most < TAIL_TIMES * log.response_tokens:
        return None
    work = subject.plan.job.workload
    expected, _ = statistics_of(work).longest_of(work.sequences, "responses")
    if most <= (1 + NEAR_FRACTION) * expected and cut < TOLD_FRACTION:
        return None  # the forecast waits for about as long a response, and is exceeded all the same
    share = f", {cut:.0%} of responses are cut at the maximum" if cut >= TOLD_FRACTION else ""
    return (
        f"tail: the longest response has {most:,.0f} tokens, {most / log.response_tokens:.1f} times the "
        f"mean (the forecast has {expected:,.0f}){share}; at the end few sequences run. More GPUs do not "
        "help: cut overlong responses, or generate ahead (one-step-off, partial rollouts)"
    )


def held_weight_sync(stage: StageCheck, subject: Subject) -> str | None:
    """Name the weight sync where the timer of generation holds it."""
    if stage.name not in GENERATION or subject.log is None:
        return None
    if "weight_sync" not in subject.log.sheet.holds.get(stage.name, ()):
        return None
    if "weight_sync" in subject.log.stage_seconds:
        return None
    seconds = sum(each.seconds for each in subject.forecast.costs if each.name == TRANSITION)
    if seconds < TOLD_FRACTION * stage.measured_seconds:
        return None
    if stage.measured_seconds - stage.forecast_seconds > MOST_COPY_TIMES * seconds:
        return None  # however slow its copies are, it is something else
    return f"weight sync: this timer holds it, {show_seconds(seconds)} by forecast"


def padding(stage: StageCheck, subject: Subject) -> str | None:
    """Name padding where a stage takes what it would if every sequence were as long as the longest."""
    if stage.name in (*GENERATION, *SYNC, "step") or not _layouts(stage, subject):
        return None
    work = subject.plan.job.workload
    mean = mean_length(work.prompt_tokens) + mean_length(work.response_tokens)
    most = longest(work.prompt_tokens) + longest(work.response_tokens)
    times = most / mean
    if times < 1 + NEAR_FRACTION or abs(stage.times / times - 1) > NEAR_FRACTION:
        return None
    return (
        f"padding: it takes as long as if all sequences had {most:,} tokens in place of {mean:,.0f}: is "
        f"packing on{_packing_key(subject)}?"
    )


def _packing_key(subject: Subject) -> str:
    """Return the key by which a plan's framework packs sequences, in brackets; nothing where it has none."""
    name = framework_of_steps(subject.plan.job.framework)
    if not has(name, "keys"):
        return ""
    own = subject.imported
    sheet = load_config_sheet(name) if own is None else own.settings.sheet
    sizes = (each.sizes for each in sheet.trainers.values())
    known = next((each["packs"] for each in (sheet.settings, *sizes) if "packs" in each), None)
    keys = () if known is None else known.keys
    key = next(iter(keys), ROWS_FORMAT if ROWS_FORMAT in sheet.usual else None)
    return "" if key is None else f" ({key.replace(ROLE, sheet.roles.get('actor', ''))})"


def small_batch(stage: StageCheck, subject: Subject) -> str | None:
    """Name micro-batches whose number is what a pass mostly costs: of one sequence, of a budget of hardly two, or of few."""
    work = subject.plan.job.workload
    own = mean_length(work.prompt_tokens) + mean_length(work.response_tokens)
    tokens = own + work.mean_observations_tokens
    for name, layout in _layouts(stage, subject).items():
        budget = layout.token_budget
        few = budget / tokens < FEW_SEQUENCES if budget else layout.micro_batch <= 1
        larger = None if few or budget else _of_larger_batches(stage, name, layout, subject)
        if not few and larger is None:
            continue
        sequences = "one sequence" if layout.micro_batch == 1 else f"{layout.micro_batch} sequences"
        runs = f"runs {sequences} of {tokens:,.0f} tokens at a time"
        if budget:
            runs = f"has {budget:,} tokens a micro-batch, of sequences of {tokens:,.0f}"
        words = "token budget" if budget else "small batch"
        more = "" if larger is None else f"; {larger}; a token budget packs them"
        return f"{words}: {name} {runs}; host time and launches are paid for each{more}"
    return None


def _of_larger_batches(
    stage: StageCheck, name: str, layout: TaskPlan, subject: Subject
) -> str | None:
    """Return how many sequences at a time would take much less of a stage by forecast, and what; None where none do."""
    for times in reversed(GROWTH):
        size = layout.micro_batch * times
        plan = subject.plan.with_layout(name, replace(layout, micro_batch=size))
        seconds = _seconds_if(stage, subject, plan)
        if 0 < seconds <= (1 - WORTH_FRACTION) * stage.forecast_seconds:
            return f"{size} at a time are forecast to take {show_seconds(seconds)} in place of {show_seconds(stage.forecast_seconds)}"
    return None


def cut_sequences(stage: StageCheck, subject: Subject) -> str | None:
    """Name context parallelism that sequences are too short for."""
    work = subject.plan.job.workload
    tokens = mean_length(work.prompt_tokens) + mean_length(work.response_tokens)
    for name, layout in _layouts(stage, subject).items():
        if layout.cp == 1:
            continue
        plan = subject.plan
        for other, each in plan.tasks.items():
            if other.partition(".")[0] == name.partition(".")[0] and each.cp == layout.cp:
                plan = plan.with_layout(other, replace(each, cp=1, dp=each.dp * each.cp))
        seconds = _seconds_if(stage, subject, plan, fits=True)
        if 0 < seconds <= (1 - WORTH_FRACTION) * stage.forecast_seconds:
            return (
                f"context parallelism: {name} cuts sequences of {tokens:,.0f} tokens over {layout.cp} ranks; with CP 1 it is "
                f"forecast to take {show_seconds(seconds)} in place of {show_seconds(stage.forecast_seconds)}"
            )
    return None


def wide_replica(stage: StageCheck, subject: Subject) -> str | None:
    """Name replicas of an engine on more GPUs than pays: their batches are small, and all-reduces are paid for."""
    return _replica(stage, subject, wide=True)


def narrow_replica(stage: StageCheck, subject: Subject) -> str | None:
    """Name replicas of an engine on fewer GPUs than pays: few sequences wait for all weights to be read."""
    return _replica(stage, subject, wide=False)


def _replica(stage: StageCheck, subject: Subject, *, wide: bool) -> str | None:
    if stage.name not in GENERATION:
        return None
    found: list[tuple[float, int, TaskPlan]] = []
    for name, layout in subject.plan.tasks.items():
        if not name.endswith(".generate"):
            continue
        for other in _replicas(layout):
            if (other.tp < layout.tp) != wide:
                continue
            plan = subject.plan.with_layout(name, other)
            seconds = _seconds_if(stage, subject, plan, fits=True)
            if 0 < seconds <= (1 - WORTH_FRACTION) * stage.forecast_seconds:
                found.append((seconds, other.tp, layout))
    if not found:
        return None
    seconds, tp, layout = min(found, key=lambda each: each[:2])
    return (
        f"engine size: a replica has {layout.tp} GPU{'s' if layout.tp > 1 else ''} (TP); with {tp} generation is forecast to take "
        f"{show_seconds(seconds)} in place of {show_seconds(stage.forecast_seconds)}"
    )


def _replicas(layout: TaskPlan) -> Iterator[TaskPlan]:
    """Yield an engine's layouts with other numbers of GPUs a replica, on as many GPUs: all smaller ones, and twice as many."""
    tp, dp = layout.tp, layout.dp
    while tp % 2 == 0:
        tp, dp = tp // 2, 2 * dp
        yield replace(layout, tp=tp, dp=dp)
    if layout.dp % 2 == 0:
        yield replace(layout, tp=2 * layout.tp, dp=layout.dp // 2)


def few_running(stage: StageCheck, subject: Subject) -> str | None:
    """Name engines that are hardly asked, where generation takes as long as if few sequences ran at a time.

    Where training waits for samples of generation beside it, whose own seconds are in no log, generation takes as long as the step.
    """
    idle = None if subject.log is None else subject.log.trainer_idle_fraction
    if idle is not None and _stands_still(idle, stage, subject):
        expected = _seconds_of("generation", subject.forecast, subject)
        stage = replace(stage, name="generation", forecast_seconds=expected)
    if stage.name not in GENERATION or stage.times < IDLE_TIMES:
        return None
    engines = [each for each in subject.plan.tasks.items() if each[0].endswith(".generate")]
    if not engines:
        return None
    name, layout = engines[0]
    alone = _seconds_if(stage, subject, _running(subject.plan, name, layout, 1))
    if alone <= 0:
        return None
    apart = subject.plan.job.prefill  # those that read prompts alone write nothing
    replicas, size = layout.dp - (apart.replicas if apart is not None else 0), 1
    look = (
        "look at the engine's running requests, and at what sends them: a client that waits for each answer, a limit on "
        "requests or connections, an environment or judge between calls"
    )
    if stage.measured_seconds > (1 + NEAR_FRACTION) * replicas * alone:
        return f"few running: it takes longer than if one sequence ran at a time in all: {look}"
    if stage.measured_seconds > (1 + NEAR_FRACTION) * alone:
        total = max(1, round(replicas * alone / stage.measured_seconds))
        return f"few running: it takes as long as if {total} of {replicas} replicas ran one sequence at a time: {look}"
    while size < layout.max_running:
        seconds = _seconds_if(stage, subject, _running(subject.plan, name, layout, 2 * size))
        if seconds < stage.measured_seconds:
            break
        size *= 2
    each = "the engine" if replicas == 1 else f"each of {replicas} replicas"
    return f"few running: it takes as long as if {each} ran {size} to {2 * size} sequences at a time: {look}"


def _running(plan: Plan, name: str, layout: TaskPlan, size: int) -> Plan:
    return plan.with_layout(name, replace(layout, max_running=size))


def tools(stage: StageCheck, subject: Subject) -> str | None:
    """Name slow environments that the longest episode waits for, or one that hangs."""
    found = None if subject.log is None else subject.log.slowest_episode
    if stage.name not in GENERATION or found is None or subject.log is None:
        return None
    waited, engine = found
    if not waited or waited < TOOL_FRACTION * (waited + engine):
        return None
    mean = subject.log.tool_seconds or waited
    told = f"the longest episode waits {show_seconds(waited)} for its environment, {show_seconds(engine)} for the engine"
    if waited >= STUCK_TIMES * mean:
        return (
            f"stuck environment: {told}, where an episode waits {show_seconds(mean)} on average: limit what a call and an "
            "episode may take (episode_limit_seconds of the job's environments says what that gains)"
        )
    return f"tool time: {told}: more environments at a time, or generation ahead, hide it; a faster engine does not"


def offload(stage: StageCheck, subject: Subject) -> str | None:
    """Name states that move to the host and back, where that may be what a stage takes more."""
    names = _layouts(stage, subject)
    seconds = sum(
        cost.parts.get(part, 0.0)
        for cost in subject.forecast.costs
        for part in (STATES_AWAY, STATES_BACK, WEIGHTS_BACK)
        if cost.name in names
    )
    more = stage.measured_seconds - stage.forecast_seconds
    if not seconds or (MOST_COPY_TIMES - 1) * seconds < WORTH_FRACTION * more:
        return None
    return (
        f"offload: states move to host memory and back ({show_seconds(seconds)} by forecast); on hosts whose memory or PCIe "
        "is shared or not pinned that takes several times as long"
    )


def update_alone(stage: StageCheck, subject: Subject) -> str | None:
    """Name the optimizer's step and states, where an update takes many times what the same model's forward passes take of theirs."""
    log, forward = subject.log, FORWARD.get(stage.name)
    if log is None or forward is None or forward not in log.stage_seconds:
        return None
    (task,), (passes,) = STAGE_TASKS[stage.name], STAGE_TASKS[forward]
    layouts = subject.plan.tasks
    if task not in layouts or passes not in layouts:
        return None
    own, other = layouts[task], layouts[passes]
    smaller = (own.token_budget or own.micro_batch, other.token_budget or other.micro_batch)
    expected = _seconds_of(forward, subject.forecast, subject)
    if expected <= 0 or (own.token_budget is None) != (other.token_budget is None):
        return None
    times = log.stage_seconds[forward] / expected
    if smaller[0] < smaller[1] or stage.times < ALONE_TIMES * max(times, 1.0):
        return None
    told = (
        f"it takes {stage.times:.1f} times its forecast, forward passes in as large micro-batches {times:.1f} times theirs: it is "
        "what only an update has"
    )
    options = subject.plan.job.trainer(task.partition(".")[0])
    if not (own.offload or options.host_states or options.host_optimizer):
        return f"update alone: {told}, the backward pass, the sums of gradients or the optimizer's step"
    return (
        f"offload: {told}, and its optimizer's states are on the host: a step there that goes parameter by parameter, or copies "
        "that wait for each other, take many times as long as on the GPU"
    )


def states_in_sync(stage: StageCheck, subject: Subject) -> str | None:
    """Name trainers' states on their way to the host, where the timer of a weight sync holds them and they take most of it."""
    log = subject.log
    if stage.name not in SYNC or log is None or log.sheet.states_in != stage.name:
        return None
    return _states_words("this timer holds", stage.measured_seconds, subject, log)


def _states_words(
    holds: str, measured_seconds: float, subject: Subject, log: LoggedSteps
) -> str | None:
    costs, found = subject.forecast.costs, log.states_seconds
    synced = sum(cost.seconds for cost in costs if cost.name == TRANSITION)
    copied = sum(cost.parts.get(STATES_AWAY, 0.0) for cost in costs)
    if found is None:
        most, told = copied > synced, f"{show_seconds(copied)} of it by forecast"
    else:
        most = found > measured_seconds / 2
        told = f"{show_seconds(found)} of it ({show_seconds(copied)} by forecast)"
    if not most:
        return None
    return (
        f"offload: {holds} the trainer's states on their way to the host, {told}; they come back besides. States that "
        "stay on the GPUs (slime: --no-offload-train) spare both where they fit beside the engine"
    )


def weight_sync(stage: StageCheck, subject: Subject) -> str | None:
    """Name the transition's method and what its time hangs on."""
    if stage.name not in SYNC:
        return None
    return (
        f"weight sync: method {subject.plan.transition}, in buckets; small buckets, a network without "
        "RDMA, or waking the engine make it longer. Try larger buckets and another method "
        "(docs/weight-sync.md)"
    )


def network(stage: StageCheck, subject: Subject) -> str | None:
    """Name a network between nodes with which all stages of training take what they took, beside the longest of them."""
    log = subject.log
    if log is None or stage.name not in NETWORK_STAGES:
        return None
    timed = {name: log.stage_seconds[name] for name in NETWORK_STAGES if name in log.stage_seconds}
    if stage.name != max(timed, key=lambda each: timed[each], default=None):
        return None

    def seconds_of(name: str, forecast: Forecast) -> float:
        return _seconds_of(name, forecast, subject)

    gbps = slow_network_gbps(subject.plan, subject.facts, subject.forecast, timed, seconds_of)
    if gbps is None:
        return None
    taken = subject.plan.job.cluster[0].inter_node_gbps
    return (
        f"network: with {gbps:{',.0f' if gbps >= WHOLE_GBPS else '.2g'}} Gbit/s a node between nodes, where {taken:,g} are taken, all stages of training that use it take "
        "about what they took: look whether NCCL goes over sockets, or over one card of several (NCCL_DEBUG=INFO prints NET/Socket or NET/IB and "
        "the cards); inter_node_gbps of the node group forecasts with what there is"
    )


def idle_trainer(stage: StageCheck, subject: Subject) -> str | None:
    """Name a trainer that waits for samples beside generation that never catches up."""
    log, overlap = subject.log, subject.forecast.overlap
    idle = None if log is None else log.trainer_idle_fraction
    if idle is None or not _stands_still(idle, stage, subject):
        return None
    expected = f" ({overlap.trainer_waits_fraction:.0%} by forecast)" if overlap else ""
    return (
        f"idle trainer: {idle:.0%} of a step training waits for samples{expected}: generation is the slower side. More GPUs or "
        "running sequences for it, samples of older weights (staleness), or parts of responses kept over syncs (in_flight) "
        "shorten that; so does fewer GPUs' training at the same cost"
    )


def idle_engine(stage: StageCheck, subject: Subject) -> str | None:
    """Name generation that stands still beside training, or under its bound of old weights."""
    log, overlap = subject.log, subject.forecast.overlap
    idle = None if log is None else log.generator_idle_fraction
    if idle is None or not _stands_still(idle, stage, subject):
        return None
    expected = f" ({overlap.generator_waits_fraction:.0%} by forecast)" if overlap else ""
    return (
        f"idle engine: {idle:.0%} of a step generation stands still{expected}: training is the slower side, or samples may be no "
        f"older than {subject.plan.staleness:g} updates. More GPUs for training, fewer for generation, or a larger staleness"
    )


def _stands_still(idle_fraction: float, stage: StageCheck, subject: Subject) -> bool:
    """Tell whether one side of a step whose stages overlap stands still for a share that is worth a word."""
    return stage.name == "step" and subject.plan.flow.overlaps and idle_fraction >= IDLE_FRACTION


def _where_a_step_goes(stage: StageCheck, subject: Subject) -> Iterator[tuple[float, str]]:
    """Yield what a slow step takes more in the stage that makes most of it, and outside of stages, each in seconds and in words."""
    log = subject.log
    if stage.name != "step" or log is None:
        return
    if not log.stage_seconds:
        yield (
            0.0,
            "the log has the step alone: with the seconds of its stages (verl: timing_s/*, slime: perf/*_time) it is seen which is slow",
        )
        return
    more = {
        name: seconds - expected
        for name, seconds in log.stage_seconds.items()
        if (expected := _seconds_of(name, subject.forecast, subject)) > 0
    }
    name = max(more, key=lambda each: more[each], default=None)
    if name is not None and more[name] >= TOLD_FRACTION * stage.measured_seconds:
        words = None
        if name == log.sheet.states_in and log.states_seconds is not None:
            words = _states_words(f"{name} has", log.stage_seconds[name], subject, log)
        yield more[name], words or f"{name}: {show_seconds(more[name])} more than forecast"
    yield from _waiting(stage, subject, log)


def _seconds_of(name: str, forecast: Forecast, subject: Subject) -> float:
    """Return what a forecast has of a stage's tasks."""
    names = _names(name, subject)
    return sum(cost.seconds for cost in forecast.costs if cost.name in names)


def _waiting(stage: StageCheck, subject: Subject, log: LoggedSteps) -> Iterator[tuple[float, str]]:
    """Yield what of a slow step is in none of its stages, without what training waits for samples beside generation."""
    left = stage.measured_seconds - sum(log.stage_seconds.values())
    if subject.plan.flow.overlaps:
        left -= (log.trainer_idle_fraction or 0.0) * stage.measured_seconds
    if left < TOLD_FRACTION * stage.measured_seconds:
        return
    timers = sorted(log.other_seconds.items(), key=lambda item: -item[1])
    told = ", ".join(
        f"{name} {show_seconds(seconds)}" for name, seconds in timers[:3] if seconds <= left
    )
    apart = "" if log.sheet.beside else ", validation and checkpoints"
    yield (
        left,
        f"waiting: {show_seconds(left)} of the step are in no stage{f' ({told})' if told else ''}: rewards, data, logging{apart}",
    )


def expert_loop(stage: StageCheck, subject: Subject) -> str | None:
    """Name a loop over experts where a stage takes rather what it would with one."""
    job = subject.plan.job
    layouts = {
        name: layout
        for name, layout in _layouts(stage, subject).items()
        if load_engine(layout.engine).expert_loop is not None
        and job.architecture(name.partition(".")[0]).num_experts
    }
    if not layouts:
        return None
    seconds = _seconds_if(stage, subject, _with_experts(subject.plan, "one by one"))
    if not _is_nearer(stage, seconds):
        return None
    return (
        f"expert loop: with experts one by one, as layers of transformers before 5.0 compute them, it is forecast to take "
        f"{show_seconds(seconds)}; transformers 5.0, or a trainer that groups them (Megatron, VeOmni), does not loop"
    )


def eager(stage: StageCheck, subject: Subject) -> str | None:
    """Name eager execution (no CUDA graphs) where generation takes about as long as forecast for it."""
    plan = subject.plan
    for name, layout in plan.tasks.items():
        if name.endswith(".generate"):
            engine = eager_engine(layout.engine, eager=True)
            plan = plan.with_layout(name, replace(layout, engine=engine))
    if stage.name not in GENERATION or plan == subject.plan:
        return None
    seconds = _seconds_if(stage, subject, plan)
    near = seconds > 0 and abs(stage.measured_seconds / seconds - 1) <= NEAR_FRACTION
    if not near or not _is_nearer(stage, seconds):
        return None
    return (
        f"eager engine: without CUDA graphs it is forecast to take {show_seconds(seconds)}: is enforce_eager on, or did the "
        "engine say that it captures none?"
    )


def _with_experts(plan: Plan, order: ExpertOrder) -> Plan:
    """Return a plan whose trainers compute experts in an order."""
    job = plan.job
    trainers = {role: replace(job.trainer(role), experts=order) for role in job.models}
    return replace(plan, job=replace(job, trainers=FrozenDict(trainers)))


def _seconds_if(stage: StageCheck, subject: Subject, plan: Plan, *, fits: bool = False) -> float:
    """Return what a stage would take in another plan; 0 where that cannot be forecast.

    Args:
        fits: Whether it is to be 0 where the plan does not fit, too.
    """
    with suppress(UserError):
        forecast = simulate(plan, subject.facts)
        if fits and not forecast.feasible:
            return 0.0
        return _seconds_of(stage.name, forecast, subject)
    return 0.0


def _is_nearer(stage: StageCheck, seconds: float) -> bool:
    """Tell whether a slow stage lies nearer to other seconds than to its forecast, in times."""
    return seconds > 0 and abs(log(stage.measured_seconds / seconds)) < abs(log(stage.times))


GENERATION = ("generation", "actor.generate")
# The forward passes over the same sequences as an update's.
FORWARD = {"update_actor": "old_log_prob", "update_critic": "values"}
SYNC = ("weight_sync", TRANSITION)
CAUSES: tuple[Cause, ...] = (
    expert_loop, tools, few_running, wide_replica, tail, held_weight_sync, eager, narrow_replica, update_alone, padding, small_batch,
    cut_sequences, offload, network, states_in_sync, weight_sync, idle_trainer, idle_engine,
)  # fmt: skip


def _layouts(stage: StageCheck, subject: Subject) -> dict[str, TaskPlan]:
    """Return the layouts of a stage's tasks that train or infer, by task."""
    names = _names(stage.name, subject)
    every = subject.plan.tasks
    return {
        name: every[name]
        for name in names
        if name in every and not name.endswith(".generate") and not name.startswith("rule.")
    }


def _names(name: str, subject: Subject) -> tuple[str, ...]:
    log = subject.log
    held = log.sheet.holds.get(name, ()) if log is not None else ()
    own = STAGE_TASKS.get(name, () if held else (name,))
    # What a timer holds and the log times apart is taken off what the stage took.
    apart = () if log is None else log.stage_seconds
    return (*own, *(task for inner in held if inner not in apart for task in STAGE_TASKS[inner]))


def tries_of(stage: StageCheck, subject: Subject, least_seconds: float = 0.0) -> tuple[str, ...]:
    """Return changes of a stage's layout that fit and shorten it, the best by forecast first.

    Args:
        least_seconds: What a change takes off a step that is told.
    """
    found: list[tuple[float, str]] = []
    for name in _names(stage.name, subject):
        if name not in subject.plan.tasks:
            continue
        for field, layout in _variants(name, subject.plan.tasks[name]):
            plan = subject.plan.with_layout(name, layout)
            gained = 0.0
            with suppress(UserError):  # a batch that does not divide, an engine that refuses
                gained = _gained_seconds(name, plan, subject)
            if gained > least_seconds:
                words = _changed(name, field, getattr(layout, field), subject)
                told = f"{name}: {words} ({show_seconds(gained)} less a step by forecast)"
                found.append((-gained, told))
    return tuple(words for _, words in nsmallest(TRIES, found))


def _changed(name: str, field: str, value: object, subject: Subject) -> str:
    """Return a change of one field of a task: in the keys of the configuration that ran, if it has any for it, else in the plan's words."""
    imported = subject.imported
    words = () if imported is None else _words_of(name, field, value, subject.plan, imported)
    if words:
        return " ".join(words)
    return f"{field} {str(value).lower() if isinstance(value, bool) else value}"


def _words_of(
    name: str, field: str, value: object, plan: Plan, imported: Imported
) -> tuple[str, ...]:
    """Return the words of a command line that change a field of a task; none where there are none, or they have another effect.

    Some keys have none in the version that ran, as `rollout.max_num_seqs` of verl up to 0.5.
    """
    settings = imported.settings
    said = by_words_of_files(assignments({name: {field: value}}, plan, imported) or (), settings)
    typed = [argument(settings, key, each) for key, each in said or ()]
    words = tuple(word for each in typed for word in each or ())
    if None in typed or not words:
        return ()
    with suppress(UserError):
        draft = draft_of(run_of(laid_over(settings, words)), imported.resolved, settings.file)
        if name in draft.tasks and getattr(draft.tasks[name], field) == value:
            return words
    return ()


def _gained_seconds(name: str, plan: Plan, subject: Subject) -> float:
    """Return by how much a plan's step is shorter; 0 where it does not fit, or the task gains nothing."""
    forecast, before = simulate(plan, subject.facts), subject.forecast
    task, task_before = (
        next((cost.seconds for cost in each.costs if cost.name == name), 0.0)
        for each in (forecast, before)
    )
    if not forecast.feasible or task_before - task <= LEAST_GAIN * task_before:
        return 0.0
    return before.iteration_seconds - forecast.iteration_seconds


def tries_of_normal(stage: StageCheck, subject: Subject) -> tuple[str, ...]:
    """Return changes of a stage that takes what its layout takes, where they are forecast to shorten a step by a tenth."""
    whole = subject.forecast.iteration_seconds
    if (
        subject.log is None
        or stage.name == "step"
        or stage.forecast_seconds < LEAST_STEP_GAIN * whole
    ):
        return ()
    return tries_of(stage, subject, LEAST_STEP_GAIN * whole)


def _generations(layout: TaskPlan) -> Iterator[tuple[str, TaskPlan]]:
    """Yield changes of how replicas generate: more sequences at a time, fewer GPUs a replica or twice as many."""
    for times in GROWTH:
        yield "max_running", replace(layout, max_running=layout.max_running * times)
    for other in _replicas(layout):
        yield "tp", other


def _variants(name: str, layout: TaskPlan) -> Iterator[tuple[str, TaskPlan]]:
    """Yield the layouts that are tried in place of one, each with the field that a user changes for it."""
    if name.endswith(".generate"):
        yield from _generations(layout)
        return
    if layout.token_budget is not None:
        for times in GROWTH:
            yield "token_budget", replace(layout, token_budget=layout.token_budget * times)
    else:
        for times in GROWTH:
            yield "micro_batch", replace(layout, micro_batch=layout.micro_batch * times)
    if layout.offload:
        yield "offload", replace(layout, offload=False)
    if layout.recompute != "none" and name.endswith(".update"):
        for mode in load_engine(layout.engine).recompute_modes:
            if mode != layout.recompute:
                yield "recompute", replace(layout, recompute=mode)
