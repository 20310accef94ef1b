"""Why a stage takes longer than its forecast, as far as log and plan show it, and what may be tried."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import nsmallest

from rlplan.calibration import STAGE_TASKS
from rlplan.errors import UserError
from rlplan.plan import Plan, TaskPlan
from rlplan.profiles.catalog import load_engine
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast
from rlplan.results.step_check import StageCheck
from rlplan.results.step_log import LoggedSteps
from rlplan.simulator.costs.passes.tasks import STATES_AWAY, STATES_BACK
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.pool_memory import TRANSITION
from rlplan.simulator.workload.sequences import statistics_of
from rlplan.units import show_seconds
from rlplan.workload.lengths import longest, mean_length

# A longest response of more times the mean leaves most of a batch's running slots empty at its end: of lengths
# with the log standard deviation of published runs (0.6 to 0.8), the longest of 256 are 4 times the mean and more.
TAIL_TIMES = 3.0
# Shares of a stage or of responses that are worth a word.
TOLD_FRACTION = 0.03
# What a stage takes if all that explains it is padding lies as near to what it took.
NEAR_FRACTION = 0.25
# A change that gains less of a stage is not worth a try.
LEAST_GAIN = 0.02
TRIES = 2
GROWTH = (2, 4)


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
    """Name micro-batches whose number is what a forward pass mostly costs."""
    for name, layout in _layouts(stage, subject).items():
        if layout.token_budget is not None or layout.micro_batch > 1:
            continue
        work = subject.plan.job.workload
        tokens = mean_length(work.prompt_tokens) + mean_length(work.response_tokens)
        return (
            f"small batch: {name} runs one sequence of {tokens:,.0f} tokens at a time; host time and "
            "launches are paid for each"
        )
    return None


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
    return (
        f"waiting: {show_seconds(left)} of the step are in no stage{f' ({told})' if told else ''}: "
        "rewards, data, logging, validation and checkpoints"
    )


GENERATION = ("generation", "actor.generate")
SYNC = ("weight_sync", TRANSITION)
CAUSES: tuple[Cause, ...] = (
    tail, held_weight_sync, padding, small_batch, offload, weight_sync, slow_stages, waiting,
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


def _variants(name: str, layout: TaskPlan) -> Iterator[tuple[str, TaskPlan]]:
    if name.endswith(".generate"):
        for times in GROWTH:
            size = layout.max_running * times
            yield f"max_running {size}", replace(layout, max_running=size)
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
