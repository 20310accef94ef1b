"""A whole run, from its first step to its last: steps whose responses grow, validations, checkpoints, failures.

A plan is simulated at a few steps of the run, at the mean lengths that responses have there; between two of them the
seconds change evenly. That is near what they do: a step's work is about linear in the mean length, and what is not
(attention, the longest response) bends slowly.

What is off in a forecast of one step is off in all of them alike: the same operators, kernels and links. So the spreads of
steps add up, and do not average out over a run. Chance in the lengths does average out; its share is left in, so that the
interval is rather too wide than too narrow.

Nodes that fail, and spot nodes that are lost while they train, stop the run, which goes on from its last checkpoint
(`rlplan.simulator.timeline.expenses`, Daly 2006, eq. 20). Losses of spot nodes that only generate make steps longer
(`rlplan.simulator.timeline.spot`). How many there are is a matter of chance: with L expected, each of a restart r and of what is lost of a piece of
work w, evenly between nothing and all of it, the variance of their seconds is L (r^2 + r w + w^2 / 3), that of a compound
Poisson sum. It has nothing to do with how well steps are known: the variances add up.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlplan.errors import InfeasibleError, UserError
from rlplan.estimate import P90_DEVIATIONS
from rlplan.files.frozen import FrozenDict
from rlplan.job import Failures, Job
from rlplan.plan import Plan
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import CHECKPOINTS, VALIDATION, BesideForecast, Forecast
from rlplan.results.run import FAILURES, SPOT, STEPS, RunForecast, RunPoint
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.expenses import (
    LEAST_FRACTION,
    SECONDS_PER_HOUR,
    best_interval,
    goodput,
)
from rlplan.simulator.timeline.spot import stops_of
from rlplan.workload import (
    Lengths,
    Lognormal,
    can_have_mean,
    longest,
    mean_at_step,
    mean_length,
    with_mean,
)

# Steps at which a growing run is simulated: a fifth one moves a run whose responses grow fourfold by less than a part in
# a hundred (tests/simulator/test_whole_run.py holds it).
USUAL_POINTS = 5
# The most of a measured curve that are kept: nine, and the run's ends.
MOST_POINTS = 11

SPOT_NOTE = (
    "losses of spot nodes are counted on average: of nodes that train as failures, of those that only generate as longer "
    "steps; nodes that are away are not paid for"
)

# Mean response tokens by step, such as a log shows: (step, tokens), steps ascending from 1.
Curve = Sequence[tuple[float, float]]


def run_forecast(
    plan: Plan,
    facts: Facts,
    steps: int,
    *,
    curve: Curve | None = None,
    usd_per_hour: float | None = None,
    points: int = USUAL_POINTS,
) -> RunForecast:
    """Return what a whole run of a plan takes and costs.

    Args:
        curve: Mean lengths of responses over the run, in tokens; None takes what the job says of their growth
            (`mean_at_end`), and else lengths that stay.
        usd_per_hour: What is paid while it runs; None is the price of the GPUs that the plan's pools hold.
        points: Steps that are simulated where lengths grow as the job says.

    Raises:
        UserError: The curve has no points, or its lengths are none that the job's responses can have.
        InfeasibleError: Failures, or losses of spot nodes, let none of it be done, as good as.
        MissingFactError: As `simulate`.
    """
    means = _means(plan.job, steps, curve, points)
    forecasts = [_at(plan, facts, steps, mean) for _, mean in means]
    found = tuple(
        RunPoint(
            step=step,
            response_tokens=mean,
            seconds=forecast.iteration_seconds,
            interval_seconds=forecast.iteration_seconds_interval,
            validation_seconds=_beside_of(forecast).each_seconds.get(VALIDATION, 0.0),
        )
        for (step, mean), forecast in zip(means, forecasts, strict=True)
    )
    slowed = [_slowed_seconds(each) for each in forecasts]
    work = _work_of(plan.job, steps, found, slowed, _beside_of(forecasts[-1]))
    paid = _usd_per_hour(forecasts[0]) if usd_per_hour is None else usd_per_hour
    run = _with_failures(work, plan, found, paid, _beside_of(forecasts[-1]))
    notes = (*run.notes, *([SPOT_NOTE] if forecasts[0].spot is not None else []))
    return replace(run, notes=notes, infeasible_reasons=tuple(_misfits(found, forecasts)))


def _misfits(points: Sequence[RunPoint], forecasts: Sequence[Forecast]) -> Iterator[str]:
    """Yield why the plan does not fit at steps at which it does not."""
    for point, forecast in zip(points, forecasts, strict=True):
        for reason in forecast.infeasible_reasons:
            yield f"at step {point.step:,} ({point.response_tokens:,.0f} tokens a response): {reason}"


def _means(job: Job, steps: int, curve: Curve | None, points: int) -> tuple[tuple[int, float], ...]:
    """Return the steps that are simulated, with the mean length of their responses."""
    lengths = job.workload.response_tokens
    if curve is not None:
        means = _of_curve(curve, steps)
    elif isinstance(lengths, Lognormal) and lengths.training_means is not None:
        training = lengths.training_means
        between = len(training) - 1  # as many points again wherever the growth may bend
        chosen = _spread_over(steps, between * math.ceil((points - 1) / between) + 1)
        means = tuple((at, mean_at_step(training, at, steps)) for at in chosen)
    else:
        return ((1, mean_length(lengths)),)
    for step, mean in means:
        _check_mean(lengths, step, mean)
    return means


def _check_mean(lengths: Lengths, step: int, mean: float) -> None:
    """Refuse a mean that no lengths up to the longest have.

    Raises:
        UserError: Names the step.
    """
    if not can_have_mean(lengths, mean):
        raise UserError(
            f"responses of {mean:,.0f} tokens on average at step {step:,} are none of this job, whose longest has "
            f"{longest(lengths):,}"
        )


def _spread_over(steps: int, points: int) -> tuple[int, ...]:
    """Return so many steps of a run, the first and the last among them, evenly between."""
    chosen = np.linspace(1, steps, min(points, steps)).round().astype(int)
    return tuple(dict.fromkeys(int(each) for each in chosen))


def _of_curve(curve: Curve, steps: int) -> tuple[tuple[int, float], ...]:
    """Return at most so many points of a curve over a run; before its first and behind its last point it stays."""
    known = sorted(curve)
    if not known:
        raise UserError("a curve of lengths without a point says nothing")
    at, tokens = zip(*known, strict=True)
    chosen = [step for step in (1, *(round(each) for each in at), steps) if 1 <= step <= steps]
    chosen = sorted(dict.fromkeys(chosen))
    if len(chosen) > MOST_POINTS:  # of the curve's own: it may end long before the run does
        chosen = [chosen[at - 1] for at in _spread_over(len(chosen), MOST_POINTS)]
    return tuple((step, float(np.interp(step, at, tokens))) for step in chosen)


def _at(plan: Plan, facts: Facts, steps: int, mean: float) -> Forecast:
    """Return the forecast of a plan's step at a mean length of its responses."""
    work = plan.job.workload
    lengths = work.response_tokens
    if mean != mean_length(lengths):
        work = replace(work, response_tokens=with_mean(lengths, mean))
    job = replace(plan.job, workload=work, iterations=steps)
    return simulate(replace(plan, job=job), facts)


def _beside_of(forecast: Forecast) -> BesideForecast:
    assert forecast.beside is not None, "a job of so many iterations has what stands beside them"
    return forecast.beside


def _usd_per_hour(forecast: Forecast) -> float:
    """Return what is paid, spot nodes only while they are there."""
    spot = forecast.spot
    if spot is not None and spot.cost_usd is not None and spot.iteration_seconds is not None:
        return spot.cost_usd * SECONDS_PER_HOUR / spot.iteration_seconds
    return forecast.cost_usd * SECONDS_PER_HOUR / forecast.iteration_seconds


def _slowed_seconds(forecast: Forecast) -> float:
    """Return a step's seconds with what losses of spot nodes leave of generation; those that stop the run come beside.

    Raises:
        InfeasibleError: With losses the run would not get on.
    """
    spot = forecast.spot
    if spot is None:
        return forecast.iteration_seconds
    if spot.iteration_seconds is None:
        every = spot.loss_every_seconds
        raise InfeasibleError(
            f"with a spot node lost every {every:,.0f} s the run would not get on: hardly a step and its checkpoint would ever "
            "be done"
        )
    return spot.iteration_seconds * (spot.goodput.fraction if spot.goodput else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Hold what a run does where nothing fails, in seconds.

    Attributes:
        spread_seconds: Of the steps, one sigma.
        spot_seconds: By which steps take longer since spot nodes that generate are away now and then.
        each_checkpoint: What one checkpoint keeps training waiting.
    """

    steps: int
    step_seconds: float
    spread_seconds: float
    spot_seconds: float
    validation_seconds: float
    validations: int
    each_checkpoint: float
    checkpoints: int

    @property
    def useful_seconds(self) -> float:
        """Return the seconds of steps and validations."""
        return self.step_seconds + self.spot_seconds + self.validation_seconds


def _work_of(
    job: Job,
    steps: int,
    points: Sequence[RunPoint],
    slowed: Sequence[float],
    beside: BesideForecast,
) -> _Work:
    """Return what a run does where nothing stops it.

    Args:
        slowed: Seconds of each point's step with what losses of spot nodes leave of generation.
    """
    at = np.arange(1, steps + 1)
    known = [point.step for point in points]

    def over_run(values: Sequence[float]) -> float:
        return float(np.interp(at, known, values).sum())

    margins = [point.interval_seconds[1] - point.seconds for point in points]
    validations = job.evaluation.due(steps) if job.evaluation is not None else 0
    each = over_run([point.validation_seconds for point in points]) / steps
    checkpoints = job.checkpoints.due(steps) if job.checkpoints is not None else 0
    return _Work(
        steps=steps,
        step_seconds=over_run([point.seconds for point in points]),
        spread_seconds=over_run(margins) / P90_DEVIATIONS,
        spot_seconds=over_run(
            [each - point.seconds for each, point in zip(slowed, points, strict=True)]
        ),
        validation_seconds=validations * each,
        validations=validations,
        each_checkpoint=beside.each_seconds.get(CHECKPOINTS, 0.0),
        checkpoints=checkpoints,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _FailureOverhead:
    """Hold what failures and checkpoints add to a run's work.

    Attributes:
        failures: Expected number of failures; None where the job says nothing of them.
        spread_seconds: Standard deviation of the seconds that failures cost, by chance in their number and times.
    """

    checkpoint_seconds: float
    checkpoints: int
    failure_seconds: float = 0.0
    failures: float | None = None
    spread_seconds: float = 0.0


def _failure_overhead(work: _Work, plan: Plan) -> _FailureOverhead:
    """Return what failures and checkpoints add to a run.

    Raises:
        InfeasibleError: Failures let none of it be done.
    """
    asked = plan.job.failures
    if asked is None:
        written = work.checkpoints * work.each_checkpoint
        return _FailureOverhead(checkpoint_seconds=written, checkpoints=work.checkpoints)
    checkpoints = plan.job.checkpoints
    known = work.each_checkpoint or asked.checkpoint_seconds
    failures, between = stops_of(plan, replace(asked, checkpoint_seconds=known))
    mean = work.useful_seconds / work.steps
    every = (checkpoints.every if checkpoints else None) or failures.checkpoint_every
    every = min(every or best_interval(failures, between, mean), work.steps)
    fraction = goodput(failures, between, every * mean)
    if fraction < LEAST_FRACTION:
        raise InfeasibleError(
            f"with a failure every {between:,.0f} s the run would not get on: hardly {every:,} of its steps and their "
            "checkpoint would ever be done"
        )
    whole = work.useful_seconds / fraction
    written = -(-work.steps // every)
    return _lost_to_failures(failures, between, whole, every * mean, written, work)


def _lost_to_failures(
    failures: Failures, between: float, whole: float, piece: float, written: int, work: _Work
) -> _FailureOverhead:
    """Return what failures add to a run.

    Args:
        between: Mean seconds between two of them.
        whole: Seconds of the run with them and with checkpoints.
        piece: Seconds of work between two checkpoints.
        written: Checkpoints.
    """
    expected, restart = whole / between, failures.restart_seconds
    lost = piece + failures.checkpoint_seconds
    variance = expected * (restart**2 + restart * lost + lost**2 / 3)
    checkpoint_seconds = written * failures.checkpoint_seconds
    return _FailureOverhead(
        checkpoint_seconds=checkpoint_seconds,
        checkpoints=written,
        failure_seconds=max(0.0, whole - work.useful_seconds - checkpoint_seconds),
        failures=expected,
        spread_seconds=math.sqrt(variance),
    )


def _with_failures(
    work: _Work, plan: Plan, points: tuple[RunPoint, ...], paid: float, beside: BesideForecast
) -> RunForecast:
    """Return the forecast of a run, failures and checkpoints counted, and what is paid for it."""
    lost = _failure_overhead(work, plan)
    parts = {
        STEPS: work.step_seconds,
        SPOT: work.spot_seconds,
        VALIDATION: work.validation_seconds,
        CHECKPOINTS: lost.checkpoint_seconds,
        FAILURES: lost.failure_seconds,
    }
    seconds = sum(parts.values())
    # Steps that take longer make what is lost longer in the same share.
    steps_spread = work.spread_seconds * seconds / work.step_seconds
    margin = P90_DEVIATIONS * math.hypot(steps_spread, lost.spread_seconds)
    interval = max(0.0, seconds - margin), seconds + margin
    per_second = paid / SECONDS_PER_HOUR
    low, high = (each * per_second for each in interval)
    return RunForecast(
        steps=work.steps,
        points=points,
        seconds=seconds,
        interval_seconds=interval,
        parts=FrozenDict({name: each for name, each in parts.items() if each or name == STEPS}),
        usd_per_hour=paid,
        usd=seconds * per_second,
        interval_usd=(low, high),
        failures=lost.failures,
        validations=work.validations,
        checkpoints=lost.checkpoints,
        unknown=beside.unknown,
        notes=beside.notes,
    )
