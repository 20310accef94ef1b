"""What another plan would bring a run: calibrate on its last iterations, search anew at their lengths, forecast gains."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice, pairwise
from math import ceil
from statistics import fmean
from typing import Final

from rlplan.calibration import NO_CALIBRATION, Calibration
from rlplan.errors import PlanError, UserError
from rlplan.files.writing import plain
from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.planner.adapting.coming import Coming, generating_gpus, on_devices
from rlplan.planner.adapting.window import planned_mean
from rlplan.planner.answers.best_plans import SEARCH_SECONDS, best_plans
from rlplan.planner.measured.advising import OF_HOW, SITE, does_the_same
from rlplan.planner.measured.gains import gain_of
from rlplan.planner.measured.measured_lengths import at_lengths, at_run_lengths
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.profiles.analytic.efficiencies import load_spreads
from rlplan.profiles.facts import DATASHEET, Facts
from rlplan.replicas import ReplicaDevices, replica_gpus
from rlplan.results.advice import Gain, KeyChange
from rlplan.results.forecast import Forecast, SearchResult
from rlplan.results.measurement import MeasuredRun
from rlplan.simulator.calibration import calibrate
from rlplan.simulator.observations import observations_of_run
from rlplan.simulator.simulate import simulate
from rlplan.units import show_seconds
from rlplan.workload import Lognormal, mean_at_step, mean_length

# Of plans that gain, how many are kept: the executor may refuse the first.
MOST_PROPOSALS: Final = 5
# Of plans that were found, how many are forecast again before it is searched anew.
MOST_KNOWN: Final = 3
# How long it is searched at most before a run begins: about as long as its workers take to start.
BEFORE_SECONDS: Final = 10.0
BEFORE: Final = (
    "plans of a search before the run, at the lengths that its job plans, which took {} of a core"
)
# By how many times a stage is longer or shorter than sheets or a profile say, where plans that such a search dropped may be best.
BEFORE_FACTOR: Final = 1.5
AGAIN: Final = "plans of an earlier search, forecast again"
PLANNED: Final = "forecasts and gains are of {:,.1f} response tokens, which the job plans: the {:,.1f} that were measured are off by no more than chance"
# The objective that counts nothing but the seconds of an iteration.
OF_SECONDS: Final = "throughput"
# Weights of an interval's beginning, middle and end in its mean: Simpson's rule.
SIMPSON: Final = (1 / 6, 4 / 6, 1 / 6)
# Fields of a gain.
ENDS: Final = ("p10_seconds", "p50_seconds", "p90_seconds")

# Of a plan, all but the job and who made it.
LAYOUT = tuple(each.name for each in fields(Plan) if each.name not in {"version", "job", "made_by"})
# What a key says that a plan does not have.
NOTHING = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Hold what a search beside a run starts from.

    Attributes:
        measured: The last iterations, as a run of their own.
        step_seconds: Their median.
        iterations: Of the run in all.
        staleness: Most updates that weights may lack in this run.
        barred: Plans that are not tried again.
        known: Plans that a search has found and that alone are to be looked at; none: it is searched.
        search_seconds: When the search stops with the best plan so far.
        has_planned_lengths: Whether responses are as long as the job says; see `Window.has_planned_lengths`.
        coming: Where replicas come and go, how many devices they have when; `measured` is of those that generated.
    """

    measured: MeasuredRun
    step_seconds: float
    iterations: int
    staleness: float
    barred: tuple[Plan, ...] = ()
    known: tuple[Plan, ...] = ()
    search_seconds: float = SEARCH_SECONDS
    has_planned_lengths: bool = False
    coming: Coming | None = None

    @property
    def running(self) -> Plan:
        """Return the run's plan, with all replicas that it has at most."""
        return self.measured.plan if self.coming is None else self.coming.plan

    @property
    def done(self) -> int:
        """Return how many iterations are done."""
        return self.measured.trace.iterations[-1].iteration + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Hold a plan that a run could go on with: at its own lengths, with what it is forecast to gain.

    Attributes:
        seconds: Of an iteration at the present lengths.
        gain: Of an iteration at the present lengths.
        gain_left: Of an iteration that is left, their mean at the lengths that the job says they will have; the same where
            lengths stay.
        better_after: Where iterations by it would be longer at first: of how many iterations of the run they are forecast to be
            longer, by the growth that the job says; None where they are not, or to the end.
    """

    plan: Plan
    seconds: float
    gain: Gain
    gain_left: Gain
    better_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """Hold what a search found.

    Attributes:
        request: What it started from.
        forecast_seconds: Of an iteration as it is, with factors fitted on those that were measured; None where that failed.
        site: These factors.
        plans: That gain, the one that surely gains most first.
        known: The first of those that were found, whether they gain or not.
        most_share: Of an iteration that is left, what no plan gains more than, by the search's bound; 1 where none is known.
        cpu_seconds: Of the process that searched.
        search_cpu_seconds: Of these, what the search alone took, without forecasts of its plans.
        before_cpu_seconds: What the search before the run took whose plans were looked at; 0 where they were not.
        notes: What hindered the search, or is left out of its gains.
    """

    request: Request
    forecast_seconds: float | None = None
    site: Calibration = NO_CALIBRATION
    plans: tuple[Proposal, ...] = ()
    known: tuple[Plan, ...] = ()
    most_share: float = 1.0
    cpu_seconds: float = 0.0
    search_cpu_seconds: float = 0.0
    before_cpu_seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedBefore:
    """Hold what was found before a run began, at the lengths of its job, without factors of the run.

    Attributes:
        staleness: Most updates that weights may lack by it.
        cpu_seconds: What the search took.
    """

    plans: tuple[Plan, ...]
    staleness: float
    cpu_seconds: float

    def holds(self, request: Request, site: Calibration) -> bool:
        """Tell whether a run is as the search took it to be: its lengths are those of its job, and no factor is far from 1."""
        factors = [factor.value for _, factor in site.named()]
        near = all(1 / BEFORE_FACTOR < each < BEFORE_FACTOR for each in factors)
        return request.has_planned_lengths and near and request.staleness == self.staleness


def proposals(request: Request, facts: Facts, before: SearchedBefore | None = None) -> Proposals:
    """Return what other plans would bring a run, at the lengths that it has now and will have by its job.

    Args:
        facts: What operations take; factors of a site in them give way to the run's own.
        before: Plans of a search before the run, looked at in place of a search where the run is as that took it to be.
    """
    begin = time.process_time()
    try:
        found = _found(request, facts, before)
    except UserError as error:
        found = Proposals(request=request, notes=(f"the search found no plan: {error}",))
    return replace(found, cpu_seconds=time.process_time() - begin)


def site_of(measured: MeasuredRun, facts: Facts) -> Calibration:
    """Return factors fitted on iterations of a run, beside what sheets or a profile say.

    Raises:
        UserError: They cannot be laid beside a forecast.
    """
    bare = facts.with_calibration(NO_CALIBRATION)
    forecast = simulate(at_run_lengths(measured.plan, measured), bare)
    framework = measured.plan.job.framework
    within = _within(framework, facts)
    observations = observations_of_run(measured, forecast, within)
    found = calibrate(
        observations, site=SITE, rests_on=bare.label, framework=framework, within=within
    )
    return found.calibration


def _within(framework: str, facts: Facts) -> float | None:
    """Return how far single forecasts are off where the executor runs on a machine that was profiled, relative, one sigma; None elsewhere.

    Of tasks as of iterations: medians of the tasks of three jobs (reports/published/jobs.json) were off by 0.03 (updates) to 0.09 (generation).
    """
    is_measured = facts.framework(framework).runs and facts.label != DATASHEET
    return load_spreads().within_machine.value if is_measured else None


def _found(request: Request, facts: Facts, before: SearchedBefore | None) -> Proposals:
    measured = request.measured
    site = site_of(measured, facts)
    facts = facts.with_calibration(site)
    now, step_seconds = at_present_lengths(request, facts)
    try:
        later, notes = _later(request, now), tuple[str, ...]()
    except PlanError as error:
        later, notes = (), (f"gains are of the present lengths alone: {error}",)
    notes += _planned_notes(request)
    ways = with_forecasts((now, *later), facts, _left(request))
    plans, most_share, begin = request.known, 1.0, time.process_time()
    before_cpu_seconds = 0.0
    if plans:
        notes += (AGAIN,)
    elif before is not None and before.holds(request, site):
        plans, before_cpu_seconds = before.plans, before.cpu_seconds
        notes += (BEFORE.format(show_seconds(before_cpu_seconds)),)
    else:
        plans, most_share = _searched(ways, request, facts)
    search_cpu_seconds = time.process_time() - begin
    weighed = sorted(
        _weighed(ways, plans, request, step_seconds, facts),
        key=lambda each: each.gain_left.p10_seconds,
        reverse=True,
    )
    # Responses may still get as long as the job lets them.
    gained = (
        each
        for each in weighed
        if each.gain_left.p50_seconds > 0 and _fits(each.plan, request, facts)
    )
    return Proposals(
        request=request,
        forecast_seconds=ways[0][1].iteration_seconds,
        site=site,
        plans=tuple(islice(gained, MOST_PROPOSALS)),
        known=tuple(each.plan for each in weighed[:MOST_KNOWN]),
        most_share=most_share,
        search_cpu_seconds=search_cpu_seconds,
        before_cpu_seconds=before_cpu_seconds,
        notes=notes,
    )


def _searched(
    ways: Sequence[tuple[Plan, Forecast]], request: Request, facts: Facts
) -> tuple[tuple[Plan, ...], float]:
    """Return the plans that a search finds, and the share of an iteration that no plan gains more than; 1 where none is known."""
    middle, running = ways[len(ways) // 2][0], request.running
    if request.coming is not None:  # with another number of replicas each search has another bound
        last = (request.done, request.iterations, request.search_seconds)
        return _with_replicas_of(request.coming, middle, request.staleness, facts, *last), 1.0
    job, pinned = _searched_job(middle, request.staleness), _pinned(running)
    found = best_plans(job, facts, pinned=pinned, seconds=request.search_seconds)
    plans = tuple(in_layout_of(running, each.plan) for each in found.plans)
    return plans, _most_share(found, ways)


def _with_replicas_of(
    coming: Coming,
    way: Plan,
    staleness: float,
    facts: Facts,
    first: int,
    last: int,
    seconds: float,
) -> tuple[Plan, ...]:
    """Return plans of a run whose replicas come and go, with what all its devices hold: best with as many as most iterations have.

    Where their replicas are larger than the fewest devices there will be, those best with these too.

    Args:
        way: The run's plan at some lengths.
        first, last: Iterations between which it goes on.
        seconds: Of each search.
    """
    plans, last = list[Plan](), max(last, first + 1)
    usual, least = coming.usual_gpus(first, last), coming.devices.least(first, last)
    for gpus in dict.fromkeys((usual, least)):
        if any(replica_gpus(each) <= least for each in plans):
            break
        now = on_devices(coming.whole(way), gpus)
        pinned = coming.pinned(generating_gpus(now))
        found = best_plans(_searched_job(now, staleness), facts, pinned=pinned, seconds=seconds)
        filled = (coming.filled(each.plan) for each in found.plans)
        plans += (in_layout_of(coming.plan, each) for each in filled)
    return tuple(plans)


def _fits(plan: Plan, request: Request, facts: Facts) -> bool:
    """Tell whether a plan fits at the longest responses, with any number of replicas that it will have."""
    if request.coming is None:
        return simulate(plan, facts).feasible
    last = max(request.iterations, request.done + 1)
    counts = {gpus for _, _, gpus in request.coming.devices.spans(request.done, last)}
    return all(simulate(on_devices(plan, gpus), facts).feasible for gpus in counts)


def _most_share(found: SearchResult, ways: Sequence[tuple[Plan, Forecast]]) -> float:
    """Return the share of an iteration that no plan of a search gains more than, by its bound; 1 where that bounds no seconds.

    The search is at lengths in the middle of those that are left. At others, the iterations of another plan are taken to be longer or shorter by
    no more than the run's own.
    """
    if ways[0][0].job.objective != OF_SECONDS:
        return 1.0
    own = [forecast.iteration_seconds for _, forecast in ways]
    middle = own[len(own) // 2]
    apart = max(max(each / middle, middle / each) for each in own)
    return max(0.0, 1 - found.bound_seconds / middle / apart)


def searched_before(
    plan: Plan, facts: Facts, devices: ReplicaDevices | None = None
) -> SearchedBefore | None:
    """Search before a run begins, while its workers start; None where no plan is found.

    Args:
        plan: With which the run begins.
        devices: Of its replicas, where they come and go; of those with which it begins where the job has no number of iterations.
    """
    begin, staleness = time.process_time(), most_staleness(plan)
    try:
        if devices is not None:
            coming, last = Coming(devices=devices, plan=plan), plan.job.iterations or 1
            plans = _with_replicas_of(coming, plan, staleness, facts, 0, last, BEFORE_SECONDS)
        else:
            job, pinned = _searched_job(plan, staleness), _pinned(plan)
            found = best_plans(job, facts, pinned=pinned, seconds=BEFORE_SECONDS)
            plans = tuple(in_layout_of(plan, each.plan) for each in found.plans)
    except UserError:
        return None
    return SearchedBefore(
        plans=plans,
        staleness=staleness,
        cpu_seconds=time.process_time() - begin,
    )


def _left(request: Request) -> int:
    """Return how many iterations of a run are left; 1 where none is."""
    return max(1, request.iterations - request.done)


def at_present_lengths(request: Request, facts: Facts) -> tuple[Plan, float]:
    """Return a run's plan at its present lengths, and the seconds of an iteration there.

    Lengths are those that the job plans for the present where those that are measured are as long within chance. Few responses an iteration say
    little of how long all are, and a run would wait, or move, by chance: of four that are drawn with a log standard deviation
    of 0.64, ten iterations have a mean that is off by 11 %. What was measured is brought to planned lengths by the
    ratio of forecasts.
    """
    running = _with_known_spread(request.measured.plan)
    now = _with_known_spread(at_run_lengths(running, request.measured))
    present = _present_mean(request)
    if present is None or not request.has_planned_lengths:
        return now, request.step_seconds
    planned = at_lengths(running, None, present)
    then, measured = (simulate(each, facts).iteration_seconds for each in (planned, now))
    return planned, request.step_seconds * then / measured


def _with_known_spread(plan: Plan) -> Plan:
    """Return a run's plan whose lengths are no more taken to be spread by as much as other runs' may be.

    Factors of the run are fitted on generations of its own lengths, so what these take longer or shorter for it is in the factors, and
    other plans generate the same lengths.
    """
    lengths = plan.job.workload.response_tokens
    if not isinstance(lengths, Lognormal) or lengths.assumed is None:
        return plan
    workload = replace(plan.job.workload, response_tokens=replace(lengths, assumed=None))
    return replace(plan, job=replace(plan.job, workload=workload))


def _planned_notes(request: Request) -> tuple[str, ...]:
    """Return what is said where forecasts are of other lengths than the measured ones that stand beside them."""
    present, measured = _present_mean(request), request.measured.mean_response_tokens
    if present is None or measured is None or not request.has_planned_lengths:
        return ()
    return (PLANNED.format(present, measured),)


def _present_mean(request: Request) -> float | None:
    """Return the mean response tokens that a job plans for the iterations that were measured; None where it plans no growth."""
    measured = request.measured
    means = [
        planned_mean(measured.plan, each.iteration + 1, request.iterations)
        for each in measured.trace.iterations
    ]
    return fmean(each for each in means if each is not None) if None not in means else None


def _later(request: Request, now: Plan) -> tuple[Plan, ...]:
    """Return a run's plan at the lengths in the middle of what is left and of its last iteration; none where they stay.

    The job says how lengths grow; what was measured, over the iterations that were, is as many times longer or shorter all the way,
    and so is the longest, up to the longest that the job allows.

    Raises:
        PlanError: The job allows no responses of these lengths.
    """
    planned = request.measured.plan.job.workload.response_tokens
    lengths = now.job.workload.response_tokens
    present = _present_mean(request)
    if not isinstance(planned, Lognormal) or planned.training_means is None or present is None:
        return ()
    assert isinstance(lengths, Lognormal), (
        "lengths that were measured are of the kind that is planned"
    )
    steps, iterations = now.job.iterations or request.iterations, request.measured.trace.iterations
    means = partial(mean_at_step, planned.training_means, steps=steps)
    if now.job.workload.drops_responses:  # those that are measured do not say how long all are
        present = mean_length(lengths)
    done = iterations[-1].iteration + 1
    later = [
        means(step=step) / present
        for step in (round((done + request.iterations) / 2), request.iterations)
    ]
    return tuple(_lengthened(now, lengths, times, planned.max) for times in later)


def _lengthened(plan: Plan, lengths: Lognormal, times: float, most: int) -> Plan:
    """Return a plan whose responses are some times as long as lengths that were measured, cut where the job cuts them."""
    mean = times * mean_length(lengths)
    is_cut = lengths.max >= most  # else the longest is of those that were drawn
    longest = most if is_cut else min(most, ceil(times * lengths.max))
    if not 1 <= mean < longest:
        raise PlanError(
            f"responses would have a mean of {mean:,.0f} tokens later, and lie from 1 to {most:,}"
        )
    workload = replace(plan.job.workload, response_tokens=replace(lengths, max=longest))
    cut = replace(plan, job=replace(plan.job, workload=workload))
    return at_lengths(cut, None, mean)


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


def _weighed(
    ways: Sequence[tuple[Plan, Forecast]],
    plans: Sequence[Plan],
    request: Request,
    step_seconds: float,
    facts: Facts,
) -> Iterator[Proposal]:
    """Yield those of some plans that the run may go on with, with what they gain of the iterations that are left.

    Args:
        ways: The run's plan with its forecast, at the present lengths and at later ones.
        step_seconds: Of an iteration at the present lengths.
    """
    running, done = request.running, request.iterations - _left(request)
    gains_by = _Gains(ways, request, step_seconds, facts)
    for plan in plans:
        known = (running, *request.barred)
        if any(same_layout(plan, other) for other in known):
            continue
        if not may_follow(plan, running, request.staleness):
            continue
        try:
            gains, gain_left = gains_by(plan)
        except PlanError:  # at some time there are fewer devices than one of its replicas has
            continue
        yield Proposal(
            plan=plan,
            seconds=gains_by.seconds,
            gain=gains[0],
            gain_left=gain_left,
            better_after=better_after(gains, done, request.iterations),
        )


class _Gains:
    """Say what other plans gain of a run's iterations: at its present replicas, and as a mean over those that are left.

    Args:
        ways: The run's plan with its forecast, at the present lengths and at later ones.
        step_seconds: Of an iteration at the present lengths.

    Attributes:
        seconds: Of an iteration by the plan that was asked for last.
    """

    def __init__(
        self,
        ways: Sequence[tuple[Plan, Forecast]],
        request: Request,
        step_seconds: float,
        facts: Facts,
    ) -> None:
        self._ways, self._request, self._facts = ways, request, facts
        self._step_seconds, self.seconds = step_seconds, step_seconds
        self._by_gpus = dict[int, Sequence[tuple[Plan, Forecast]]]()

    def __call__(self, plan: Plan) -> tuple[list[Gain], Gain]:
        """Return what a plan gains at the present and at later lengths, and as a mean of the iterations left.

        Raises:
            PlanError: At some time there are fewer devices than one of its replicas has.
        """
        request, coming = self._request, self._request.coming
        if coming is None:
            gains, self.seconds = self._of(plan, self._ways)
            return gains, mean_gain(gains)
        present = generating_gpus(request.measured.plan)
        self._by_gpus.setdefault(present, self._ways)
        shares = coming.shares(request.done, request.iterations)
        found = {gpus: self._of(plan, self._with(coming, gpus))[0] for gpus, _ in shares}
        gains, self.seconds = self._of(plan, self._ways)
        ends = dict.fromkeys(ENDS, 0.0)
        for gpus, weights in shares:
            of_gpus = found[gpus]
            times = weights if len(of_gpus) == len(weights) else (sum(weights),)
            for name in ENDS:
                pairs = zip(times, of_gpus, strict=True)
                ends[name] += sum(weight * getattr(each, name) for weight, each in pairs)
        return gains, Gain(**ends)

    def _with(self, coming: Coming, gpus: int) -> Sequence[tuple[Plan, Forecast]]:
        """Return the run's plan with its forecasts, where its replicas have so many devices."""
        if gpus not in self._by_gpus:
            plans = (on_devices(coming.whole(way), gpus) for way, _ in self._ways)
            self._by_gpus[gpus] = with_forecasts(plans, self._facts, _left(self._request))
        return self._by_gpus[gpus]

    def _of(self, plan: Plan, ways: Sequence[tuple[Plan, Forecast]]) -> tuple[list[Gain], float]:
        """Return what a plan gains beside the run's, and the seconds of an iteration by it at the first lengths."""
        request = self._request
        then = with_forecasts(
            (beside(way, plan, request.coming) for way, _ in ways), self._facts, _left(request)
        )
        times = ways[0][1].iteration_seconds / self._ways[0][1].iteration_seconds
        gains = gains_of(ways, then, times * self._step_seconds, self._facts)
        return gains, then[0][1].iteration_seconds


def better_after(gains: Sequence[Gain], done: int, iterations: int) -> int | None:
    """Return how many iterations of a run are done when one by another plan begins to be shorter; None where it is now, or never is.

    Args:
        gains: Of an iteration now, in the middle of those that are left and of the last; between two of them they change evenly.
        done: Iterations until now.
    """
    middles = [each.p50_seconds for each in gains]
    if middles[0] > 0:
        return None
    apart = (iterations - done) / max(1, len(middles) - 1)
    for place, (before, after) in enumerate(pairwise(middles)):
        if before <= 0 < after:
            return min(iterations, done + ceil(apart * (place - before / (after - before))))
    return None


def with_forecasts(
    plans: Iterable[Plan], facts: Facts, mean_of: int = 1
) -> list[tuple[Plan, Forecast]]:
    """Return plans, each with its forecast.

    Args:
        mean_of: Iterations whose mean their intervals are of.
    """
    return [(each, simulate(each, facts, mean_of=mean_of)) for each in plans]


def gains_of(
    now: Sequence[tuple[Plan, Forecast]],
    then: Sequence[tuple[Plan, Forecast]],
    step_seconds: float,
    facts: Facts,
) -> list[Gain]:
    """Return what an iteration gains at several lengths.

    Args:
        now, then: Two plans of the run with their forecasts, at each of these lengths.
        step_seconds: What an iteration took at the first.
    """
    within = _within(now[0][0].job.framework, facts)
    times = step_seconds / now[0][1].iteration_seconds
    return [
        gain_of(before, after, times * before[1].iteration_seconds, within)
        for before, after in zip(now, then, strict=True)
    ]


def mean_gain(gains: Sequence[Gain]) -> Gain:
    """Return the mean gain of iterations whose lengths grow evenly, from gains at the first, the middle and the last.

    Simpson's rule; both ends are off alike all the way, so that the mean's ends are the ends' means.
    """
    if len(gains) < len(SIMPSON):
        return gains[0]
    return Gain(
        **{
            name: sum(
                weight * getattr(each, name) for weight, each in zip(SIMPSON, gains, strict=True)
            )
            for name in ENDS
        }
    )


# Plans of one run: the same job in another layout, and what differs between two of them.


def in_layout_of(plan: Plan, other: Plan) -> Plan:
    """Return a plan's job, its lengths and data included, in another plan's layout."""
    how = {name: getattr(other.job, name) for name in OF_HOW}
    layout = {name: getattr(other, name) for name in LAYOUT}
    return replace(plan, job=replace(plan.job, **how), made_by=other.made_by, **layout)


def beside(way: Plan, plan: Plan, coming: Coming | None) -> Plan:
    """Return a plan at the lengths of another one of its run and, where replicas come and go, on as many devices.

    Raises:
        PlanError: These hold none of its replicas.
    """
    if coming is None:
        return in_layout_of(way, plan)
    return on_devices(in_layout_of(coming.whole(way), plan), generating_gpus(way))


def same_layout(plan: Plan, other: Plan) -> bool:
    """Tell whether two plans of a job are carried out alike."""
    return all(getattr(plan, name) == getattr(other, name) for name in LAYOUT)


def most_staleness(plan: Plan) -> float:
    """Return how many updates old weights may be in a run that began with a plan: as its job says, else as the plan does."""
    limit = plan.job.specs.staleness
    return plan.staleness if limit is None else limit


def may_follow(plan: Plan, now: Plan, staleness: float) -> bool:
    """Tell whether a run by one plan may go on with another: the same work, every prompt once, weights no older than allowed.

    An endless stream learns from prompts in the order in which they end: whole batches, and streams of them, go by their
    order, and would begin some again. So do whole batches of which the longest responses are dropped.

    Args:
        staleness: Most updates that weights may lack.
    """
    alike = replace(plan, mode=now.mode, staleness=now.staleness)
    if not does_the_same(alike, now) or plan.staleness > staleness:
        return False
    if now.flow.is_endless:
        return plan.flow.is_endless
    return plan.flow.by_sample == now.flow.by_sample or not now.job.workload.drops_responses


def plan_changes(before: Plan, after: Plan) -> tuple[KeyChange, ...]:
    """Return the keys of a plan's file in which two plans of a job differ."""
    first, second = (dict(_keys(each)) for each in (before, after))
    return tuple(
        KeyChange(key=key, before=first.get(key), after=second.get(key, NOTHING))
        for key in dict.fromkeys((*first, *second))
        if first.get(key) != second.get(key)
    )


def _keys(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the layout of a plan, a key of its file each."""
    for name in LAYOUT:
        held = getattr(plan, name)
        if name == "pools":
            for pool in held:
                roles = ", ".join(plan.shown_roles(pool))
                yield f"pools.{pool.name}", f"{pool.gpus} x {pool.device}: {roles}"
        elif isinstance(held, Mapping):
            for key, value in held.items():
                yield from _spread(f"{name}.{key}", plain(value))
        else:
            yield name, str(held)


def _spread(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield f"{key}.{name}", str(inner)
    elif isinstance(value, (list, tuple)):
        yield key, ", ".join(map(str, value))
    else:
        yield key, str(value)
