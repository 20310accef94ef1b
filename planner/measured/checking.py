"""Judge measured steps by their forecast: which stage is slow or fast, why as far as log and plan show it, and what may be tried."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import nsmallest
from math import exp, hypot, log
from pathlib import Path
from statistics import median

from rlplan.calibration import STAGE_TASKS, STEP_STAGES
from rlplan.errors import FileError, UserError
from rlplan.files.decoding import load_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.job import ExpertOrder
from rlplan.plan import Plan, TaskPlan
from rlplan.planner.answers.best_plans import best_plans
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.sizes import eager_engine
from rlplan.planner.measured.calibrating import row_of_log
from rlplan.planner.measured.logs import read_log
from rlplan.planner.measured.measured_lengths import at_logged_lengths, at_run_lengths, own_steps
from rlplan.planner.measured.trackers import tracked_files
from rlplan.planner.requests.drafts import read_draft
from rlplan.profiles.analytic.efficiencies import load_spreads
from rlplan.profiles.catalog import load_engine, load_job
from rlplan.profiles.facts import Facts, load_facts
from rlplan.results.forecast import CHECKPOINTS, Forecast
from rlplan.results.measurement import LoggedSteps, MeasuredRun, StageCheck, StepCheck, Verdict
from rlplan.results.stored import PLAN_FILE, is_run, read_run
from rlplan.simulator.costs.passes import STATES_AWAY, STATES_BACK
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.pool_memory import TRANSITION
from rlplan.simulator.validation import compare
from rlplan.simulator.workload import statistics_of
from rlplan.units import show_bytes, show_seconds
from rlplan.workload import longest, mean_length

# A longest response of more times the mean leaves most of a batch's running slots empty at its end: of lengths
# with the log standard deviation of published runs (0.6 to 0.8), the longest of 256 are 4 times the mean and more.
TAIL_TIMES = 3.0
# Shares of a stage or of responses that are worth a word.
TOLD_FRACTION = 0.03
# Of a step that one side stands still beside the other.
IDLE_FRACTION = 0.1
# What a stage takes if padding, or an eager engine, is all that explains it lies as near to what it took.
NEAR_FRACTION = 0.25
# A change that gains less of a stage is not worth a try.
LEAST_GAIN = 0.02
TRIES = 2
GROWTH = (2, 4)
# Sequences of a micro-batch below which a token budget is small.
FEW_SEQUENCES = 2
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
    """

    plan: Plan
    facts: Facts
    forecast: Forecast
    log: LoggedSteps | None


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
    found = tuple(words for cause in CAUSES if (words := cause(stage, subject)))
    return found or (NOT_SHOWN["generation" if stage.name in GENERATION else "other"],)


def tail(stage: StageCheck, subject: Subject) -> str | None:
    """Name the longest responses, which run nearly alone at the end of generation."""
    log = subject.log
    if stage.name not in GENERATION or log is None or not log.response_tokens:
        return None
    most, cut = log.longest_response, log.clip_ratio or 0.0
    if not most or most < TAIL_TIMES * log.response_tokens:
        return None
    share = f", {cut:.0%} of responses are cut at the maximum" if cut >= TOLD_FRACTION else ""
    work = subject.plan.job.workload
    expected, _ = statistics_of(work).longest_of(work.sequences, "responses")
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
        "packing on (verl use_remove_padding, NeMo-RL sequence_packing, OpenRLHF packing_samples)?"
    )


def small_batch(stage: StageCheck, subject: Subject) -> str | None:
    """Name micro-batches whose number is what a forward pass mostly costs: of one sequence, or of a budget of hardly two."""
    work = subject.plan.job.workload
    own = mean_length(work.prompt_tokens) + mean_length(work.response_tokens)
    tokens = own + work.mean_observations_tokens
    for name, layout in _layouts(stage, subject).items():
        budget = layout.token_budget
        if (budget / tokens >= FEW_SEQUENCES) if budget else layout.micro_batch > 1:
            continue
        runs = f"runs one sequence of {tokens:,.0f} tokens at a time"
        if budget:
            runs = f"has {budget:,} tokens a micro-batch, of sequences of {tokens:,.0f}"
        words = "token budget" if budget else "small batch"
        return f"{words}: {name} {runs}; host time and launches are paid for each"
    return None


def tools(stage: StageCheck, subject: Subject) -> str | None:
    """Name environments that the longest episode waits for, and one that hangs where others do not."""
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
    """Name states that move to the host and back."""
    names = _layouts(stage, subject)
    if not any(layout.offload for layout in names.values()):
        return None
    seconds = sum(
        cost.parts.get(part, 0.0)
        for cost in subject.forecast.costs
        for part in (STATES_AWAY, STATES_BACK)
        if cost.name in names
    )
    copied = f" ({show_seconds(seconds)} by forecast)" if seconds else ""
    return (
        f"offload: states move to host memory and back{copied}; on hosts whose memory or PCIe is shared "
        "or not pinned that takes several times as long"
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


def slow_stages(stage: StageCheck, subject: Subject) -> str | None:
    """Name the stage that makes most of what a step takes more."""
    if stage.name != "step" or subject.log is None:
        return None
    expected = {name: _forecast_seconds(name, subject) for name in subject.log.stage_seconds}
    more = {
        name: seconds - expected[name]
        for name, seconds in subject.log.stage_seconds.items()
        if expected[name] > 0
    }
    name = max(more, key=lambda each: more[each], default=None)
    if name is None or more[name] < TOLD_FRACTION * stage.measured_seconds:
        return None
    return f"{name}: {show_seconds(more[name])} more than forecast"


def _forecast_seconds(name: str, subject: Subject) -> float:
    names = _names(name, subject)
    return sum(cost.seconds for cost in subject.forecast.costs if cost.name in names)


def waiting(stage: StageCheck, subject: Subject) -> str | None:
    """Name what of a slow step is in none of its stages."""
    if stage.name != "step" or subject.log is None:
        return None
    left = stage.measured_seconds - sum(subject.log.stage_seconds.values())
    if left < TOLD_FRACTION * stage.measured_seconds:
        return None
    timers = sorted(subject.log.other_seconds.items(), key=lambda item: -item[1])
    told = ", ".join(
        f"{name} {show_seconds(seconds)}" for name, seconds in timers[:3] if seconds <= left
    )
    apart = "" if subject.log.sheet.beside else ", validation and checkpoints"
    return (
        f"waiting: {show_seconds(left)} of the step are in no stage{f' ({told})' if told else ''}: "
        f"rewards, data, logging{apart}"
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
    """Name an engine that launches kernel by kernel where generation takes about what it would with one."""
    plan = subject.plan
    tasks = plan.tasks
    for name, layout in tasks.items():
        if name.endswith(".generate"):
            engine = eager_engine(layout.engine, eager=True)
            tasks = tasks.with_item(name, replace(layout, engine=engine))
    if stage.name not in GENERATION or tasks == plan.tasks:
        return None
    seconds = _seconds_if(stage, subject, replace(plan, tasks=tasks))
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


def _seconds_if(stage: StageCheck, subject: Subject, plan: Plan) -> float:
    """Return what a stage would take in another plan; 0 where that cannot be forecast."""
    with suppress(UserError):
        forecast = simulate(plan, subject.facts)
        names = _names(stage.name, subject)
        return sum(cost.seconds for cost in forecast.costs if cost.name in names)
    return 0.0


def _is_nearer(stage: StageCheck, seconds: float) -> bool:
    """Tell whether a slow stage lies nearer to other seconds than to its forecast, in times."""
    return seconds > 0 and abs(log(stage.measured_seconds / seconds)) < abs(log(stage.times))


GENERATION = ("generation", "actor.generate")
SYNC = ("weight_sync", TRANSITION)
CAUSES: tuple[Cause, ...] = (
    expert_loop, tools, tail, held_weight_sync, eager, padding, small_batch, offload, weight_sync, idle_trainer, idle_engine, slow_stages, waiting,
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
    held = subject.log.sheet.holds.get(name, ()) if subject.log is not None else ()
    own = STAGE_TASKS.get(name, () if held else (name,))
    return (*own, *(task for inner in held for task in STAGE_TASKS[inner]))


def tries_of(stage: StageCheck, subject: Subject) -> tuple[str, ...]:
    """Return changes of a slow stage's layout that fit and shorten it, the best by forecast first."""
    found: list[tuple[float, str]] = []
    for name in _names(stage.name, subject):
        if name not in subject.plan.tasks:
            continue
        for words, layout in _variants(name, subject.plan.tasks[name]):
            plan = replace(subject.plan, tasks=subject.plan.tasks.with_item(name, layout))
            gained = 0.0
            with suppress(UserError):  # a batch that does not divide, an engine that refuses
                gained = _gained_seconds(name, plan, subject)
            if gained > 0:
                told = f"{name}: {words} ({show_seconds(gained)} less a step by forecast)"
                found.append((-gained, told))
    return tuple(words for _, words in nsmallest(TRIES, found))


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


def _generations(layout: TaskPlan) -> Iterator[tuple[str, TaskPlan]]:
    """Yield changes of how replicas generate: more sequences at a time, half or twice the GPUs of a replica."""
    for times in GROWTH:
        size = layout.max_running * times
        yield f"max_running {size}", replace(layout, max_running=size)
    if layout.tp % 2 == 0:
        yield f"tp {layout.tp // 2}", replace(layout, tp=layout.tp // 2, dp=2 * layout.dp)
    if layout.dp % 2 == 0:
        yield f"tp {2 * layout.tp}", replace(layout, tp=2 * layout.tp, dp=layout.dp // 2)


def _variants(name: str, layout: TaskPlan) -> Iterator[tuple[str, TaskPlan]]:
    if name.endswith(".generate"):
        yield from _generations(layout)
        return
    if layout.token_budget is not None:
        for times in GROWTH:
            budget = layout.token_budget * times
            yield f"token_budget {budget}", replace(layout, token_budget=budget)
    else:
        for times in GROWTH:
            size = layout.micro_batch * times
            yield f"micro_batch {size}", replace(layout, micro_batch=size)
    if layout.offload:
        yield "offload false", replace(layout, offload=False)
    if layout.recompute != "none" and name.endswith(".update"):
        for mode in load_engine(layout.engine).recompute_modes:
            if mode != layout.recompute:
                yield f"recompute {mode}", replace(layout, recompute=mode)


# Standard deviations within which 19 of 20 lie, and from the middle to the 90th percentile.
NORMAL_STDS = 1.96
STDS_TO_P90 = 1.2816
# A job whose mean lengths differ by more from the log's is told so.
OTHER_LENGTH_FRACTION = 0.1
# Timers below this share of a step are left out.
LEAST_SHARE = 0.02
# Medians of thirds of one run differ by less from batch to batch (`within_site`, two sigma).
GROWN_TIMES = 1.25
# Repeats of the fixed loop on a machine at rest differ by less.
LEAST_DRIFT = 0.02
NO_TIMER = "no timer"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Hold what ran: its plan with the job, whether that was given, and facts of its devices."""

    plan: Plan
    facts: Facts
    is_given: bool = True


def what_ran(
    source: Path,
    job: Path | None,
    plan: Path | None,
    *,
    profile: Path | None = None,
    site: Path | None = None,
) -> RunContext:
    """Return what ran: the plan that is given, else that of a run's folder, else the job's best one.

    Args:
        job: The job that ran, in place of the plan's own.

    Raises:
        UserError: A file is wrong, or none says what ran.
    """
    own = source / PLAN_FILE
    plan = plan or (own if is_run(source) else None)
    if plan is not None:
        data = load_yaml(plan)
        if job is not None and isinstance(data, dict):
            data = data | {"job": str(job.resolve())}
        draft, resolved = read_draft(data, plan)
        facts = load_facts(resolved, profile, site)
        return RunContext(
            plan=complete(draft, resolved, facts, str(plan), misfits=True), facts=facts
        )
    if job is None:
        raise FileError(str(source), "does not say what ran", allowed="with --job, and --plan")
    resolved = load_job(job)
    facts = load_facts(resolved, profile, site)
    return RunContext(plan=best_plans(resolved, facts).plans[0].plan, facts=facts, is_given=False)


def check_steps(source: Path, ran: RunContext, *, warmup: int = 1) -> StepCheck:
    """Return the steps of a log, or of a run's folder, beside the forecast at the lengths that they had.

    Raises:
        FileError: The source holds no steps.
    """
    if is_run(source) or (source.is_dir() and not tracked_files(source)):
        return _check_run(read_run(source), ran)
    work = ran.plan.job.workload
    return check_log(read_log(source, warmup=warmup, updates=work.updates * work.epochs), ran)


def check_log(steps: LoggedSteps, ran: RunContext) -> StepCheck:
    """Return the medians of a log's steps beside their forecast."""
    steps, observed = own_steps(steps, ran.plan.job.workload.mean_observations_tokens)
    plan = at_logged_lengths(ran.plan, steps)
    forecast = simulate(plan, ran.facts)
    row = row_of_log("", steps, plan, forecast)
    seconds = {
        name: (stage.measured_seconds, stage.forecast_seconds)
        for name, stage in row.stages.items()
        if stage.measured_seconds and stage.forecast_seconds > 0
    }
    within = {inner: name for name, stage in row.stages.items() for inner in stage.inner_seconds}
    tasks = {
        name: (
            *STAGE_TASKS.get(name, ()),
            *(
                task
                for inner, outer in within.items()
                if outer == name
                for task in STAGE_TASKS[inner]
            ),
        )
        for name in seconds
    }
    step = (steps.step_seconds, forecast.iteration_seconds) if steps.step_seconds else None
    judged = _judged(seconds, tasks, step, Subject(plan, ran.facts, forecast, steps))
    return StepCheck(
        source=steps.sheet.name,
        steps=steps.steps,
        prompt_tokens=steps.prompt_tokens,
        response_tokens=steps.response_tokens,
        step=judged[-1] if step else None,
        stages=judged[:-1] if step else judged,
        others=_others(steps),
        beside=steps.beside_seconds,
        beside_forecast=_beside_forecast(steps, forecast),
        notes=(
            *observed,
            *_notes(ran, steps.response_tokens, forecast),
            *_apart(steps),
            *_beside_notes(steps, plan, forecast),
            *_idle_notes(judged[-1] if step else None, Subject(plan, ran.facts, forecast, steps)),
            *_trends(steps),
        ),
    )


def _check_run(run: MeasuredRun, ran: RunContext) -> StepCheck:
    """Return the tasks of a run of our own beside their forecast at the lengths that the run had."""
    plan = at_run_lengths(ran.plan, run)
    forecast = simulate(plan, ran.facts)
    found = compare(forecast, run)
    seconds = {
        row.name: (row.measured_median_seconds, row.forecast_seconds)
        for row in found.rows
        if row.forecast_seconds > 0 and row.measured_median_seconds > 0
    }
    whole = found.iteration
    step = (whole.measured_median_seconds, whole.forecast_seconds)
    subject = Subject(plan, ran.facts, forecast, None)
    tasks = {name: (name,) for name in seconds}
    judged = _judged(seconds, tasks, step, subject, found.machine_slowdown or 1.0)
    return StepCheck(
        source="rlplan",
        steps=found.compared_iterations,
        prompt_tokens=None,
        response_tokens=run.response_tokens,
        step=judged[-1],
        stages=judged[:-1],
        notes=(
            *_notes(ran, run.response_tokens, forecast),
            *([note] if (note := slowdown_note(found.machine_slowdown)) else []),
        ),
    )


def _judged(
    seconds: Mapping[str, tuple[float, float]],
    tasks: Mapping[str, Sequence[str]],
    step: tuple[float, float] | None,
    subject: Subject,
    slowdown: float = 1.0,
) -> tuple[StageCheck, ...]:
    """Return the verdicts of all stages, and of the step last if it was measured.

    A site as a whole is faster or slower than its sheets; what its other stages show of that is taken off
    before a stage is judged, as far as so many stages can show it.

    Args:
        seconds: Measured and forecast, by stage.
        tasks: Of the forecast, by stage.
        slowdown: Of the machine since it was profiled. Two short loops on a machine that others share show it
            roughly, so that it widens what is normal, and moves nothing.
    """
    spreads = {name: _spread(name, tasks[name], subject) for name in seconds}
    ranges = normal_ranges(seconds, spreads)
    found = [
        _check(name, *pair, with_drift(ranges[name], slowdown), subject)
        for name, pair in seconds.items()
    ]
    if step is not None:
        whole = _around(step[1], _step_spread(subject))
        found.append(_check("step", *step, with_drift(whole, slowdown), subject))
    return tuple(found)


def normal_ranges(
    seconds: Mapping[str, tuple[float, float]], spreads: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return between which seconds each stage is normal, given what the others show of the site.

    Args:
        seconds: Measured and forecast, by stage.
        spreads: One sigma of the logarithm, by stage.
    """
    ratios = {name: log(measured / forecast) for name, (measured, forecast) in seconds.items()}
    found = {}
    for name, (_, forecast) in seconds.items():
        others = {other: ratio for other, ratio in ratios.items() if other != name}
        found[name] = _around(forecast * exp(_common(others, spreads)), spreads[name])
    return found


def _around(usual_seconds: float, spread: float) -> tuple[float, float]:
    width = exp(NORMAL_STDS * spread)
    return usual_seconds / width, usual_seconds * width


def with_drift(normal: tuple[float, float], slowdown: float) -> tuple[float, float]:
    """Return a range that is also normal on a machine that is slower by a factor."""
    low, high = normal
    return min(low, low * slowdown), max(high, high * slowdown)


def site_spread(stage: str) -> float:
    """Return how far a stage of a site that was not calibrated is from its forecast: one sigma of the logarithm."""
    spreads = load_spreads()
    return hypot(spreads.between_sites[STEP_STAGES[stage]].value, spreads.within_site.value)


def _common(ratios: Mapping[str, float], spreads: Mapping[str, float]) -> float:
    """Return by how much a site is slower than its sheets, as a logarithm, drawn to 0 as few stages tell it.

    The median of its stages, weighted against the spread of sites that were not calibrated.
    """
    if not ratios:
        return 0.0
    of_sites = load_spreads().uncalibrated_step.value ** 2
    of_stages = sum(spreads[name] ** 2 for name in ratios) / len(ratios) ** 2
    return median(ratios.values()) * of_sites / (of_sites + of_stages)


def _spread(name: str, tasks: Sequence[str], subject: Subject) -> float:
    """Return the spread of a stage around its forecast, one sigma of the logarithm.

    Stages of sites that nothing was fitted on differ as sites do; with a site's factors, and for this
    project's own executor, as well as their parts are known.
    """
    spreads = load_spreads()
    job, facts = subject.plan.job, subject.facts
    kind = STEP_STAGES.get(name)
    is_known = facts.framework(job.framework).runs
    is_fitted = kind is not None and facts.calibration.factor(kind) is not None
    if kind is not None and not is_known and not is_fitted:
        return site_spread(name)
    costs = [cost for cost in subject.forecast.costs if cost.name in tasks and cost.seconds > 0]
    whole = sum(cost.seconds for cost in costs)
    sigma = sum(cost.interval_seconds[1] - cost.seconds for cost in costs) / STDS_TO_P90
    return hypot(sigma / whole if whole else 0.0, spreads.within_site.value)


def _step_spread(subject: Subject) -> float:
    forecast = subject.forecast
    high, whole = forecast.iteration_seconds_interval[1], forecast.iteration_seconds
    spreads = load_spreads()
    least = spreads.within_site.value
    if not subject.facts.framework(subject.plan.job.framework).runs:
        least = (
            spreads.uncalibrated_step.value if subject.facts.calibration.label is None else least
        )
    return max(least, (high - whole) / STDS_TO_P90 / whole)


def _check(
    name: str, measured: float, forecast: float, normal: tuple[float, float], subject: Subject
) -> StageCheck:
    low, high = normal
    verdict: Verdict = "slow" if measured > high else "fast" if measured < low else "normal"
    found = StageCheck(
        name=name,
        measured_seconds=measured,
        forecast_seconds=forecast,
        normal_seconds=normal,
        verdict=verdict,
    )
    if verdict != "slow":
        return found
    return replace(found, causes=causes_of(found, subject), tries=tries_of(found, subject))


def _others(steps: LoggedSteps) -> FrozenDict[str, float]:
    """Return what of a step is in no stage: timers that fit into what stages leave, and what is in none."""
    if not steps.step_seconds:
        return FrozenDict()
    left = steps.step_seconds - sum(steps.stage_seconds.values())
    found = {}
    for name, seconds in sorted(steps.other_seconds.items(), key=lambda item: -item[1]):
        if LEAST_SHARE * steps.step_seconds <= seconds <= left:
            found[name] = seconds
            left -= seconds
    if left >= LEAST_SHARE * steps.step_seconds:
        found[NO_TIMER] = left
    return FrozenDict(found)


def slowdown_note(slowdown: float | None) -> str | None:
    """Say that a machine was faster or slower than when it was profiled; None where it was as fast."""
    if slowdown is None or abs(slowdown - 1) < LEAST_DRIFT:
        return None
    return (
        f"the machine took {slowdown:.2f} times as long for a fixed loop as when it was profiled; "
        "a stage that takes so many times its forecast is still normal"
    )


def _apart(steps: LoggedSteps) -> tuple[str, ...]:
    """Say what was taken off the steps before they are judged, since it is no part of every one."""
    if not steps.beside_seconds:
        return ()
    told = " and ".join(
        f"{name} {show_seconds(each)}" for name, each in steps.beside_seconds.items()
    )
    return (f"steps are judged without {told} (a step on average over the log)",)


def _idle_notes(step: StageCheck | None, subject: Subject) -> Iterator[str]:
    """Yield which side stands still beside the other where the step is not slow, so that no cause says it."""
    if step is not None and step.verdict != "slow":
        yield from (
            words for cause in (idle_trainer, idle_engine) if (words := cause(step, subject))
        )


def _beside_forecast(steps: LoggedSteps, forecast: Forecast) -> FrozenDict[str, float]:
    """Return what validation and checkpoints are forecast to take, a step on average: as far as their log and job say it.

    A short log has them as often as it happened to; each is forecast that often.
    """
    beside, each = forecast.beside, steps.beside_each_seconds
    if beside is None:
        return FrozenDict()
    return FrozenDict(
        {
            name: beside.each_seconds[name] * seconds / each[name]
            for name, seconds in steps.beside_seconds.items()
            if name in beside.each_seconds and name in each
        }
    )


def _beside_notes(steps: LoggedSteps, plan: Plan, forecast: Forecast) -> Iterator[str]:
    """Yield what lacks for a forecast of validation and checkpoints, and the rate at which a log's checkpoints were written."""
    beside = forecast.beside
    for name in steps.beside_each_seconds:
        if beside is not None and name in beside.unknown:
            yield f"{name}: no forecast, since it is not known {beside.unknown[name]}"
        elif beside is None or name not in beside.each_seconds:
            says = "checkpoints" if name == CHECKPOINTS else "evaluation"
            yield f"{name}: no forecast, since the job does not speak of it ({says})"
    seconds = steps.beside_each_seconds.get(CHECKPOINTS)
    if seconds and beside is not None and beside.checkpoint_bytes:
        rate, asked = beside.checkpoint_bytes / seconds, plan.job.checkpoints
        alone = (
            ""
            if asked is None or asked.node_bytes_per_second
            else f" (checkpoints.total_bytes_per_second: {rate:.3g})"
        )
        yield f"checkpoints of {show_bytes(beside.checkpoint_bytes)} were written at {show_bytes(rate)} a second{alone}"


def _trends(steps: LoggedSteps) -> tuple[str, ...]:
    """Name stages that took longer at the end of the log than at its beginning, for as many tokens."""
    grown = {name: times for name, times in steps.growth.items() if times > GROWN_TIMES}
    if not grown:
        return ()
    told = ", ".join(f"{name} {times:.2f} times" for name, times in grown.items())
    note = (
        "over the log, for as many response tokens, the last third of the steps took longer than the "
        f"first: {told}; look at what changed (clocks, memory, other jobs, growing files)"
    )
    return (note,)


def _notes(ran: RunContext, response_tokens: float | None, forecast: Forecast) -> tuple[str, ...]:
    notes = []
    if not ran.is_given:
        notes.append(
            "no --plan was given: stages are compared with those of the best plan of the job"
        )
    expected = mean_length(ran.plan.job.workload.response_tokens)
    if response_tokens and abs(response_tokens - expected) > OTHER_LENGTH_FRACTION * expected:
        job_seconds = simulate(ran.plan, ran.facts).iteration_seconds
        notes.append(
            f"lengths: the job has responses of {expected:,.0f} tokens on average, the log of "
            f"{response_tokens:,.0f}; at the job's a step is forecast to take "
            f"{show_seconds(job_seconds)}, at the log's {show_seconds(forecast.iteration_seconds)}"
        )
    return tuple(notes)
