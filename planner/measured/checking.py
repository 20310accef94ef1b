"""Judge measured steps by their forecast: which stage is slow or fast, why as far as log and plan show it, and what may be tried."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log
from pathlib import Path
from statistics import median

from rlplan.calibration import STAGE_TASKS, STEP_STAGES
from rlplan.errors import FileError
from rlplan.files.decoding import load_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.planner.answers.best_plans import best_plans
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.frameworks import framework_of_steps, has
from rlplan.planner.configs.importing import Imported
from rlplan.planner.measured.calibrating import row_of_log
from rlplan.planner.measured.causes import (
    Subject,
    causes_of,
    idle_engine,
    idle_trainer,
    tries_of,
    tries_of_normal,
)
from rlplan.planner.measured.logs import other_framework, read_log
from rlplan.planner.measured.measured_lengths import (
    at_logged_lengths,
    at_run_lengths,
    counts_batches,
    in_iterations,
    own_steps,
    planned_tokens,
)
from rlplan.planner.measured.trackers import tracked_files
from rlplan.planner.requests.drafts import read_draft
from rlplan.profiles.analytic.efficiencies import load_spreads
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import Facts, load_facts
from rlplan.results.forecast import CHECKPOINTS, Forecast
from rlplan.results.measurement import LoggedSteps, MeasuredRun, StageCheck, StepCheck, Verdict
from rlplan.results.stored import PLAN_FILE, is_run, read_run
from rlplan.simulator.simulate import simulate
from rlplan.simulator.validation import compare
from rlplan.units import show_bytes, show_seconds
from rlplan.workload import mean_length

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
# Steps whose tokens are further from the plan's hold other sequences: beside logged mean lengths, and beside the job's own.
OTHER_TOKENS_TIMES = (1.25, 2.0)
NO_TIMER = "no timer"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Hold what ran: its plan with the job, whether that was given, and facts of its devices.

    Attributes:
        imported: The framework's configuration of which the plan is; None where a plan or a job says what ran.
    """

    plan: Plan
    facts: Facts
    is_given: bool = True
    imported: Imported | None = None


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
    found = best_plans(resolved, facts, placements=1)
    return RunContext(plan=found.plans[0].plan, facts=facts, is_given=False)


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
    steps, counted = in_iterations(steps, ran.plan)
    sequences = tuple(_other_sequences(steps, ran.plan))
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
    subject = Subject(plan, ran.facts, forecast, steps, ran.imported)
    judged = _judged(seconds, tasks, step, subject)
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
            *counted,
            *sequences,
            *observed,
            *_batches_notes(steps, plan),
            *_notes(ran, steps.response_tokens, forecast),
            *_of_another(ran, steps),
            *_apart(steps),
            *_beside_notes(steps, plan, forecast),
            *_idle_notes(judged[-1] if step else None, subject),
            *_trends(steps),
        ),
    )


def _batches_notes(steps: LoggedSteps, plan: Plan) -> Iterator[str]:
    """Yield with how many batches of generation a step is forecast, where the log says how many it took."""
    batches = steps.generated_batches
    if batches is None:
        return
    if counts_batches(plan):
        yield f"groups: forecast with {batches:.3g} batches of generation a step, as the log has them"
    elif batches > 1:
        yield (
            f"groups: the log has {batches:.3g} batches of generation a step, and what ran samples no group again: one is forecast"
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

    A whole site may be faster or slower than its sheets. Before a stage is judged, that factor is estimated from the
    other stages and taken out, weighted by how well that number of stages can show it.

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

    The median of its stages, weighted against the spread of sites that were not calibrated, and within what sites
    differ by: where the others take many times their forecast they are slow, and no site makes the rest fast.
    """
    if not ratios:
        return 0.0
    spread = load_spreads().uncalibrated_step.value
    of_sites = spread**2
    of_stages = sum(spreads[name] ** 2 for name in ratios) / len(ratios) ** 2
    common = median(ratios.values()) * of_sites / (of_sites + of_stages)
    return max(-NORMAL_STDS * spread, min(NORMAL_STDS * spread, common))


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
    if verdict == "normal":
        return replace(found, tries=tries_of_normal(found, subject))
    if verdict == "fast":
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


def _other_sequences(steps: LoggedSteps, plan: Plan) -> Iterator[str]:
    """Yield that a log's steps hold more or fewer tokens than the plan's sequences have, at the log's mean lengths where it has them."""
    is_logged = steps.prompt_tokens is not None and steps.response_tokens is not None
    planned, tokens = planned_tokens(steps, plan), steps.step_tokens
    most = OTHER_TOKENS_TIMES[not is_logged]
    if tokens and not planned / most <= tokens <= planned * most:
        yield (
            f"tokens: a step of the log holds {tokens:,.0f}, the plan's {plan.job.workload.sequences:,} sequences {planned:,.0f} at "
            f"{'these' if is_logged else 'its'} lengths: is it what ran? Where each turn of an episode is a sequence of its own, or "
            "groups are dropped or added, steps hold others than the configuration says"
        )


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


def _of_another(ran: RunContext, steps: LoggedSteps) -> Iterator[str]:
    """Yield that a plan's steps are forecast as another framework runs them than the one whose log it is."""
    planned_for = ran.plan.job.framework
    framework = framework_of_steps(planned_for)
    if not has(framework, "log") or other_framework(steps.sheet, framework):
        yield (
            f"framework: the log is {steps.sheet.name}'s, and the plan's step is forecast as {planned_for} runs it: the script that ran, "
            "as --plan, says what was run"
        )


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
