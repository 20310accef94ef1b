"""Plans at the lengths that a log or a run of our own shows: a forecast of what was run, not of what was planned."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import ceil, sqrt

from rlplan.algorithms import load_algorithm
from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.job import DynamicSampling
from rlplan.plan import Plan
from rlplan.planner.configs.environments import environments_of
from rlplan.planner.configs.importing import ImportOptions
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import Run
from rlplan.profiles.facts import Facts
from rlplan.profiles.jobs.checks import JobPlace
from rlplan.profiles.jobs.logged_lengths import with_logged_lengths
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import LoggedSteps, MeasuredRun
from rlplan.simulator.simulate import simulate
from rlplan.workload import Logged, Lognormal, mean_length, observations_tokens, with_mean

# The longest response is longer than the mean by more where lengths are uneven at all.
UNEVEN_TIMES = 1.1
WEIGHT_SYNC = "weight_sync"
# Mean lengths that differ by less are of one workload: batches differ as much from iteration to iteration.
SAME_LENGTH_FRACTION = 0.02


def at_lengths(plan: Plan, prompt_tokens: float | None, response_tokens: float | None) -> Plan:
    """Return a plan whose prompts and responses have these mean lengths; None leaves its own."""
    workload = plan.job.workload
    if prompt_tokens is not None:
        workload = replace(workload, prompt_tokens=with_mean(workload.prompt_tokens, prompt_tokens))
    if response_tokens is not None:
        lengths = with_mean(workload.response_tokens, response_tokens)
        workload = replace(workload, response_tokens=lengths)
    return replace(plan, job=replace(plan.job, workload=workload))


def at_logged_lengths(plan: Plan, steps: LoggedSteps) -> Plan:
    """Return a plan at a log's mean lengths and batches of generation.

    Where the job has one length for all, or an assumed spread, lengths are spread as the log shows.
    """
    plan = at_generated_batches(plan, steps.generated_batches)
    mean, most = steps.response_tokens, steps.longest_response
    lengths = plan.job.workload.response_tokens
    assumed = isinstance(lengths, Lognormal) and lengths.assumed is not None
    if (assumed or isinstance(lengths, int)) and mean and most and most > UNEVEN_TIMES * mean:
        # A share of cut responses that no lengths of this mean have tells nothing.
        for ratio in (steps.clip_ratio, None):
            logged = Logged(mean=mean, max=round(most), clip_ratio=ratio)
            if (spread := _spread(plan, logged)) is not None:
                plan = spread
                break
    return at_lengths(plan, steps.prompt_tokens, mean)


def at_generated_batches(plan: Plan, batches: float | None) -> Plan:
    """Return a plan that samples its groups in so many batches of generation; its own where a log tells none.

    Frameworks that begin others as soon as a group is left out have no batches.
    """
    job = plan.job
    sampling = job.dynamic_sampling or DynamicSampling()
    if batches is None or not counts_batches(plan):
        return plan
    rounds = max(1.0, batches * sampling.batches_at_once)
    most = max(sampling.max_rounds, ceil(rounds))
    sampling = replace(sampling, expected_rounds=rounds, max_rounds=most)
    return replace(plan, job=replace(job, dynamic_sampling=sampling))


def counts_batches(plan: Plan) -> bool:
    """Tell whether a plan samples groups of equal rewards again, in batches one after another."""
    sampling = plan.job.dynamic_sampling
    if sampling is None:
        return load_algorithm(plan.job.algorithm).resamples
    return not sampling.together and sampling.max_rounds > 1


def in_iterations(steps: LoggedSteps, plan: Plan) -> tuple[LoggedSteps, tuple[str, ...]]:
    """Return a log's steps as a plan's iterations, and a note where a step of the log is several of them.

    Which it is, its tokens tell: some publish steps of one update. A sync of weights is once a step, and takes what it takes.
    """
    count, tokens = plan.sync_every, steps.step_tokens
    if count == 1 or not steps.sheet.of_syncs:
        return steps, ()
    if tokens is None:
        note = (
            f"steps: taken for one update each; where the log adds up the {count} between two syncs of weights, as {steps.sheet.name} "
            f"does, all takes {count} times as long in it ({steps.sheet.step_tokens} would tell)"
        )
        return steps, (note,)
    if tokens < planned_tokens(steps, plan) * sqrt(count):
        return steps, ()
    share = 1 / count
    stages = {
        name: seconds * (1.0 if name == WEIGHT_SYNC else share)
        for name, seconds in steps.stage_seconds.items()
    }
    note = f"steps: one of the log is {count} updates, those between two syncs of weights; what one takes of it on average is judged"
    return replace(
        steps,
        step_seconds=steps.step_seconds and steps.step_seconds * share,
        stage_seconds=FrozenDict(stages),
        step_tokens=tokens * share,
        other_seconds=_times(steps.other_seconds, share),
        beside_seconds=_times(steps.beside_seconds, share),
    ), (note,)


def planned_tokens(steps: LoggedSteps, plan: Plan) -> float:
    """Return the tokens of a plan's sequences in an iteration, at a log's mean lengths where it has them."""
    work, prompt, response = plan.job.workload, steps.prompt_tokens, steps.response_tokens
    mean = mean_length(work.prompt_tokens) if prompt is None else prompt
    mean += mean_length(work.response_tokens) if response is None else response
    if response is None or not steps.sheet.with_observations:
        mean += work.mean_observations_tokens
    return work.sequences * mean


def _times(seconds: Mapping[str, float], share: float) -> FrozenDict[str, float]:
    return FrozenDict({name: each * share for name, each in seconds.items()})


def own_steps(steps: LoggedSteps, added: float) -> tuple[LoggedSteps, tuple[str, ...]]:
    """Return a log's steps with the lengths of what the model wrote, and a note where they are others than logged.

    Where a log's responses hold what environments add, the job says how much of them that is. Where that is more than the
    log has, the job's environments are not those of the log: its lengths stay as they are, and a note says so.

    Args:
        added: Tokens that the job's environments add to a sequence, the mean.
    """
    mean = steps.response_tokens
    if not steps.sheet.with_observations or not added or mean is None:
        return steps, ()
    if mean <= added:
        note = (
            f"lengths: the log's responses of {mean:,.0f} tokens hold what environments add, {added:,.0f} by the job, which is "
            "more: they are forecast as they are"
        )
        return steps, (note,)
    most = None if steps.longest_response is None else max(1.0, steps.longest_response - added)
    note = (
        f"lengths: the log's responses of {mean:,.0f} tokens hold what environments add, {added:,.0f} by the job: the model's "
        f"own {mean - added:,.0f} are forecast"
    )
    return replace(steps, response_tokens=mean - added, longest_response=most), (note,)


def options_at(
    options: ImportOptions, settings: Settings, run: Run, steps: LoggedSteps
) -> ImportOptions:
    """Return options of an import with the mean lengths of a log's steps, as far as it tells them.

    Raises:
        FileError: The environments that are given contradict themselves or the configuration, or the log has longer prompts or
            responses in the mean than the configuration allows: it is of another run.
    """
    environments, _ = environments_of(options.environments, settings, run.work)
    own, _ = own_steps(steps, observations_tokens(environments))
    limits = (
        ("responses", own.response_tokens, run.work.max_response or run.work.max_total),
        ("prompts", own.prompt_tokens, run.work.max_prompt),
    )
    for what, mean, most in limits:
        if mean is not None and most is not None and 0 < most < mean:
            problem = f"has longer {what} in the mean than the configuration allows: is it the log of this configuration?"
            allowed = f"at most {most:,} tokens"
            raise FileError("the log", problem, value=f"{mean:,.0f}", allowed=allowed)
    return replace(
        options,
        mean_response=own.response_tokens or options.mean_response,
        mean_prompt=own.prompt_tokens or options.mean_prompt,
    )


def at_run_lengths(plan: Plan, run: MeasuredRun) -> Plan:
    """Return a plan at the lengths of a run's responses, spread as they were; its own where they are the same."""
    if same_lengths(run):
        return plan
    lengths = run.response_lengths
    if lengths is not None and lengths.std > 0 and lengths.longest > UNEVEN_TIMES * lengths.mean:
        logged = Logged(mean=lengths.mean, max=round(lengths.longest), std=lengths.std)
        for known in (logged, replace(logged, std=None)):
            if (spread := _spread(plan, known)) is not None:
                return spread
    return at_lengths(plan, None, run.mean_response_tokens)


def same_lengths(run: MeasuredRun) -> bool:
    """Tell whether a run's responses were as long as its plan has them, or it does not say.

    Where the longest are dropped, those that are learnt from do not say how long all of them are.
    """
    if run.plan.job.workload.drops_responses:
        return True
    expected = mean_length(run.plan.job.workload.response_tokens)
    measured = run.mean_response_tokens
    return measured is None or abs(measured - expected) <= SAME_LENGTH_FRACTION * expected


def forecast_as_run(plan: Plan, facts: Facts, run: MeasuredRun) -> Forecast:
    """Return the forecast of a run's plan at the lengths that the run had."""
    return simulate(at_run_lengths(plan, run), facts)


def _spread(plan: Plan, logged: Logged) -> Plan | None:
    """Return a plan whose responses have logged lengths; None where there are none of which a log prints these."""
    workload = replace(plan.job.workload, response_tokens=logged)
    with suppress(FileError):
        workload = with_logged_lengths(workload, JobPlace(file="log"))
        return replace(plan, job=replace(plan.job, workload=workload))
    return None
