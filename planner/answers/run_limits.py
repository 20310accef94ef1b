"""The best plan whose whole run keeps a budget and a number of days, judged at p90.

A search keeps limits of one step. So the run of what it found is forecast; where its p90 is over a limit, the limit becomes one
of a step, by what this plan's p90 is beyond its own step, and the search is made again. A plan of another shape may have
another spread: it is judged anew by its own run. So what is found is not proven best of those that keep the limits: its gap
is that to the best plan without them.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from rlplan.errors import InfeasibleError
from rlplan.job import Job
from rlplan.planner.objectives import load_objective
from rlplan.planner.requests.specs import run_seconds
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Candidate, DeadlinePrice, SearchResult
from rlplan.results.renting import RentalLimits
from rlplan.results.run import RunForecast
from rlplan.simulator.timeline.assemble import batch_tokens
from rlplan.simulator.timeline.progress import with_progress
from rlplan.simulator.whole_run import run_forecast
from rlplan.units import show_duration, whole_usd

Search = Callable[[Job], SearchResult]
# Searches until a plan keeps the limits; the second one does, unless plans of unlike spread follow each other.
MOST_SEARCHES = 5
# Below the limit, so that rounding decides nothing.
JUST_BELOW = 1 - 1e-6

COST = "cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """Say how many steps a run has, and what it may take.

    Attributes:
        steps: Of the run.
        limits: That its p90 keeps.
    """

    steps: int
    limits: RentalLimits

    @property
    def has_limits(self) -> bool:
        """Tell whether anything limits the run."""
        return self.limits != RentalLimits()


def with_run(found: SearchResult, facts: Facts, asked: AskedRun) -> SearchResult:
    """Return what was found, the best plan with the forecast of its run."""
    return replace(
        found, plans=(candidate_with_run(found.plans[0], facts, asked), *found.plans[1:])
    )


def candidate_with_run(candidate: Candidate, facts: Facts, asked: AskedRun) -> Candidate:
    """Return a plan that was found with the forecast of its whole run."""
    run = run_forecast(candidate.plan, facts, asked.steps)
    return replace(candidate, forecast=replace(candidate.forecast, run=run))


def plans_within(job: Job, facts: Facts, asked: AskedRun, search: Search) -> SearchResult:
    """Return what a search finds by the job's objective whose best plan's run keeps the limits at p90, with its run.

    Args:
        search: Returns the plans of a job, best first.

    Raises:
        InfeasibleError: Nothing fits, or no plan's run was found that keeps the limits; it says what the cheapest and the fastest take.
    """
    found = free = with_run(search(job), facts, asked)
    extremes: dict[str, SearchResult] = {}
    limited = job
    for _ in range(MOST_SEARCHES):
        run = _run_of(found)
        if asked.limits.keeps(run):
            return found if found is free else _beside(free, found, job)
        # A search that proves that nothing keeps a limit takes long; whether anything can, the extremes say at once.
        extremes = extremes or _extremes(job, facts, asked, search, free)
        limited = _tightened(limited, found.plans[0], run, asked.limits)
        try:
            found = with_run(search(limited), facts, asked)
        except InfeasibleError:
            break
    kept = [each for each in extremes.values() if asked.limits.keeps(_run_of(each))]
    if not kept:
        raise _nearest(asked, extremes)
    return _beside(free, min(kept, key=lambda each: _value(each, job)), job)


def _value(found: SearchResult, job: Job) -> float:
    """Return what the best plan is worth by a job's objective; less is better."""
    return load_objective(job.objective).value(found.plans[0].forecast, batch_tokens(job))


def _beside(free: SearchResult, found: SearchResult, job: Job) -> SearchResult:
    """Return what was found under limits of a step that nobody asked for: its plans are of the job, and its gap is to all plans.

    Args:
        free: What the job's search without limits of the run found.
    """
    bound = _value(free, job) * (1 - free.gap)
    plans = tuple(_asked_of(each, job) for each in found.plans)
    gap = max(0.0, 1 - bound / _value(found, job))
    space = f"{found.space}; the distance is that to the best plan without limits of the run"
    return replace(
        found,
        plans=plans,
        infeasible=free.infeasible,  # what is over such a limit of a step may well fit
        unseen=free.unseen,
        gap=gap,
        bound_seconds=free.bound_seconds,
        space=space,
    )


def _asked_of(candidate: Candidate, job: Job) -> Candidate:
    """Return a candidate whose plan's job has the objective and limits that were asked for."""
    own = replace(candidate.plan.job, specs=job.specs, objective=job.objective)
    plan, forecast = replace(candidate.plan, job=own), candidate.forecast
    if load_objective(job.objective).weighs_age and forecast.progress is None:
        forecast = with_progress(forecast, plan)
    return replace(candidate, plan=plan, forecast=forecast)


def _with_objective(found: SearchResult, job: Job) -> SearchResult:
    """Return plans that another objective found, with what a job's own says of them."""
    return replace(found, plans=tuple(_asked_of(each, job) for each in found.plans))


def _run_of(found: SearchResult) -> RunForecast:
    run = found.plans[0].forecast.run
    assert run is not None, "it was forecast"
    return run


def _extremes(
    job: Job, facts: Facts, asked: AskedRun, search: Search, free: SearchResult
) -> dict[str, SearchResult]:
    """Return the cheapest and the fastest plans, by these words.

    Args:
        free: What was found by the job's own objective, which is often one of these.

    Raises:
        InfeasibleError: The cheapest is over the budget, or the fastest too late; it says what both take.
    """
    found = {
        word: free
        if objective == job.objective
        else _with_objective(with_run(search(replace(job, objective=objective)), facts, asked), job)
        for word, objective in (("cheapest", "cost"), ("fastest", "throughput"))
    }
    limits = asked.limits
    only = {
        "cheapest": RentalLimits(budget_usd=limits.budget_usd),
        "fastest": RentalLimits(deadline_seconds=limits.deadline_seconds),
    }
    if not all(only[word].keeps(_run_of(each)) for word, each in found.items()):
        raise _nearest(asked, found)
    return found


def _tightened(job: Job, best: Candidate, run: RunForecast, limits: RentalLimits) -> Job:
    """Return the job whose steps are limited so that a run with this plan's spread would keep the limits."""
    specs, forecast = job.specs, best.forecast
    if limits.budget_usd is not None and run.interval_usd[1] > limits.budget_usd:
        share = limits.budget_usd / run.interval_usd[1]
        specs = replace(specs, cost_usd=forecast.cost_usd * share * JUST_BELOW)
    late = limits.deadline_seconds
    if late is not None and run.interval_seconds[1] > late:
        share = late / run.interval_seconds[1]
        specs = replace(specs, iteration_seconds=forecast.iteration_seconds * share * JUST_BELOW)
    return replace(job, specs=specs)


def _nearest(asked: AskedRun, told: dict[str, SearchResult]) -> InfeasibleError:
    """Return why no plan was found that keeps the limits: what the cheapest and the fastest run take."""
    limits = asked.limits
    words = [
        f"the {word} run takes {whole_usd(run.interval_usd[1])} and {show_duration(run.interval_seconds[1])} at p90"
        for word, run in ((word, _run_of(each)) for word, each in told.items())
    ]
    allowed = [] if limits.budget_usd is None else [whole_usd(limits.budget_usd)]
    allowed += [] if limits.deadline_seconds is None else [show_duration(limits.deadline_seconds)]
    return InfeasibleError(
        f"no plan was found that does {asked.steps:,} steps within {' and '.join(allowed)} at p90; {'; '.join(words)}"
    )


# What a deadline costs: the cheapest run that ends in time, beside the cheapest one without the deadline.


def deadline_price(job: Job, found: SearchResult, search: Search) -> DeadlinePrice | None:
    """Return what the deadline of a job's run costs; None where it has none.

    Both are the cheapest by what an iteration costs where no node is lost, priced by what is expected with losses.

    Args:
        found: By the job's own objective, under its deadline.
        search: Returns the plans of a job, best first.

    Raises:
        InfeasibleError: No plan was found without the deadline.
    """
    if job.specs.run_seconds is None:
        return None
    in_time = [found]
    if job.objective != COST:
        with suppress(InfeasibleError):  # one that is ended early may find none, but one was found
            in_time.append(search(replace(job, objective=COST)))
    free = replace(job, objective=COST, specs=replace(job.specs, run_seconds=None))
    without = search(free)
    own = min((_run(each.plans[0]) for each in in_time), key=_usd)
    # What ends in time is one of those without a deadline too.
    free_seconds, free_usd = min(own, _run(without.plans[0]), key=_usd)
    return DeadlinePrice(
        deadline_seconds=job.specs.run_seconds,
        run_seconds=own[0],
        run_usd=own[1],
        free_run_seconds=free_seconds,
        free_run_usd=free_usd,
    )


def _usd(run: tuple[float, float]) -> float:
    return run[1]


def _run(candidate: Candidate) -> tuple[float, float]:
    """Return the seconds and USD of a whole run on average; what is cheap by the iteration is dear where it is lost again."""
    forecast = candidate.forecast
    seconds = run_seconds(candidate.plan, forecast)
    if forecast.spot is not None and forecast.spot.run_usd is not None:
        return seconds, forecast.spot.run_usd
    return seconds, forecast.cost_usd / forecast.iteration_seconds * seconds
