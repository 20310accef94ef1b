"""What another plan would bring a run: calibrate on its last iterations, search anew at their lengths, forecast gains."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from rlplan.calibration import NO_CALIBRATION, Calibration
from rlplan.errors import UserError
from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.planner.adapting.layouts import in_layout_of, may_follow, same_layout
from rlplan.planner.answers.best_plans import SEARCH_SECONDS, best_plans
from rlplan.planner.measured.advising import SITE
from rlplan.planner.measured.gains import gain_of
from rlplan.planner.measured.measured_lengths import at_run_lengths
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.profiles.facts import Facts
from rlplan.results.advice import Gain
from rlplan.results.forecast import Candidate, Forecast
from rlplan.results.measurement import MeasuredRun
from rlplan.simulator.calibration import calibrate
from rlplan.simulator.observations import observations_of_run
from rlplan.simulator.simulate import simulate

# Of plans that gain, how many are kept: the executor may refuse the first.
MOST_PROPOSALS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Hold what a search beside a run starts from.

    Attributes:
        measured: The last iterations, as a run of their own.
        step_seconds: Their median.
        staleness: Most updates that weights may lack in this run.
        barred: Plans that are not tried again.
        search_seconds: When the search stops with the best plan so far.
    """

    measured: MeasuredRun
    step_seconds: float
    staleness: float
    barred: tuple[Plan, ...] = ()
    search_seconds: float = SEARCH_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Hold a plan that a run could go on with: at its own lengths, with what it is forecast to gain at the present ones."""

    plan: Plan
    seconds: float
    gain: Gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """Hold what a search found.

    Attributes:
        request: What it started from.
        forecast_seconds: Of an iteration as it is, with factors fitted on those that were measured; None where that failed.
        site: These factors.
        plans: That gain, the one that surely gains most first.
        notes: What hindered the search.
    """

    request: Request
    forecast_seconds: float | None = None
    site: Calibration = NO_CALIBRATION
    plans: tuple[Proposal, ...] = ()
    notes: tuple[str, ...] = ()


def proposals(request: Request, facts: Facts) -> Proposals:
    """Return what other plans would bring a run, at the lengths that it has now.

    Args:
        facts: What operations take; factors of a site in them give way to the run's own.
    """
    try:
        return _found(request, facts)
    except UserError as error:
        return Proposals(request=request, notes=(f"the search found no plan: {error}",))


def site_of(measured: MeasuredRun, facts: Facts) -> Calibration:
    """Return factors fitted on iterations of a run, beside what sheets or a profile say.

    Raises:
        UserError: They cannot be laid beside a forecast.
    """
    bare = facts.with_calibration(NO_CALIBRATION)
    forecast = simulate(at_run_lengths(measured.plan, measured), bare)
    observations = observations_of_run(measured, forecast)
    framework = measured.plan.job.framework
    found = calibrate(observations, site=SITE, rests_on=bare.label, framework=framework)
    return found.calibration


def _found(request: Request, facts: Facts) -> Proposals:
    measured = request.measured
    site = site_of(measured, facts)
    facts = facts.with_calibration(site)
    now = at_run_lengths(measured.plan, measured)
    forecast = simulate(now, facts)
    found = best_plans(
        _searched_job(now, request.staleness),
        facts,
        pinned=_pinned(measured.plan),
        seconds=request.search_seconds,
    )
    gained = sorted(
        _gaining((now, forecast), found.plans, request, facts),
        key=lambda each: each.gain.p10_seconds,
        reverse=True,
    )
    return Proposals(
        request=request,
        forecast_seconds=forecast.iteration_seconds,
        site=site,
        plans=tuple(gained[:MOST_PROPOSALS]),
    )


def _searched_job(now: Plan, staleness: float) -> Job:
    """Return the job of a search: a run's at its present lengths, with its engines, and weights as old as they may be.

    Of a synchronous run whose job says nothing of that, synchronous plans alone are looked at.
    """
    engines = replace(
        now.job.engines,
        train=now.tasks["actor.update"].engine,
        generate=now.tasks["actor.generate"].engine,
    )
    is_asked = staleness > 0 or now.job.specs.staleness is not None
    specs = replace(now.job.specs, staleness=staleness if is_asked else None)
    return replace(now.job, engines=engines, specs=specs)


def _pinned(plan: Plan) -> Pinned:
    """Return what a search keeps: an endless stream goes on as one, for its prompts have no order."""
    if not plan.flow.is_endless:
        return NOTHING_PINNED
    return Pinned(asked=AskedSchedules(modes=(plan.mode,), in_flight=plan.in_flight))


def _gaining(
    now: tuple[Plan, Forecast],
    candidates: tuple[Candidate, ...],
    request: Request,
    facts: Facts,
) -> Iterator[Proposal]:
    """Yield the candidates that the run may go on with and that would make its iterations shorter."""
    running = request.measured.plan
    for each in candidates:
        plan = in_layout_of(running, each.plan)
        known = (running, *request.barred)
        if any(same_layout(plan, other) for other in known):
            continue
        gain = gain_of(now, (each.plan, each.forecast), request.step_seconds)
        if gain.p50_seconds <= 0 or not may_follow(plan, running, request.staleness):
            continue
        # Responses may still get as long as the job lets them.
        if simulate(plan, facts).feasible:
            yield Proposal(plan=plan, seconds=each.forecast.iteration_seconds, gain=gain)
