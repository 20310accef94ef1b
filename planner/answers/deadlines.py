"""What a deadline costs: the cheapest run that ends in time, beside the cheapest one without the deadline."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from rlplan.errors import InfeasibleError
from rlplan.job import Job
from rlplan.planner.requests.specs import run_seconds
from rlplan.results.forecast import Candidate, DeadlinePrice, SearchResult

COST = "cost"
Search = Callable[[Job], SearchResult]


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
