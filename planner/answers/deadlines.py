"""What a deadline costs: the cheapest run that ends in time, beside the cheapest one without the deadline."""

from collections.abc import Callable
from dataclasses import replace

from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.planner.requests.specs import run_seconds
from rlplan.results.forecast import DeadlinePrice, Forecast, SearchResult

COST = "cost"
Search = Callable[[Job], SearchResult]


def deadline_price(job: Job, found: SearchResult, search: Search) -> DeadlinePrice | None:
    """Return what the deadline of a job's run costs; None where it has none.

    Both are the cheapest by what an iteration costs where no node is lost, priced by what is expected with losses.

    Args:
        found: By the job's own objective, under its deadline.
        search: Returns the plans of a job, best first.

    Raises:
        InfeasibleError: Nothing ends in time.
    """
    if job.specs.run_seconds is None:
        return None
    within = found if job.objective == COST else search(replace(job, objective=COST))
    free = replace(job, objective=COST, specs=replace(job.specs, run_seconds=None))
    without = search(free)
    first, second = within.plans[0], without.plans[0]
    own, other = (_run(each.plan, each.forecast) for each in (first, second))
    # What ends in time is one of those without a deadline too.
    free_seconds, free_usd = min(own, other, key=lambda run: run[1])
    return DeadlinePrice(
        deadline_seconds=job.specs.run_seconds,
        run_seconds=own[0],
        run_usd=own[1],
        free_run_seconds=free_seconds,
        free_run_usd=free_usd,
    )


def _run(plan: Plan, forecast: Forecast) -> tuple[float, float]:
    """Return the seconds and USD of a whole run on average; what is cheap by the iteration is dear where it is lost again."""
    seconds = run_seconds(plan, forecast)
    if forecast.spot is not None and forecast.spot.run_usd is not None:
        return seconds, forecast.spot.run_usd
    return seconds, forecast.cost_usd / forecast.iteration_seconds * seconds
