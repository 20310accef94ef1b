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
    own, other = _run_usd(first.plan, first.forecast), _run_usd(second.plan, second.forecast)
    return DeadlinePrice(
        deadline_seconds=job.specs.run_seconds,
        run_seconds=run_seconds(first.plan, first.forecast),
        run_usd=own,
        free_run_seconds=run_seconds(second.plan, second.forecast),
        free_run_usd=min(own, other),
    )


def _run_usd(plan: Plan, forecast: Forecast) -> float:
    """Return what a whole run costs on average; what is cheap by the iteration is dear where it is lost again."""
    if forecast.spot is not None and forecast.spot.run_usd is not None:
        return forecast.spot.run_usd
    return forecast.cost_usd / forecast.iteration_seconds * run_seconds(plan, forecast)
