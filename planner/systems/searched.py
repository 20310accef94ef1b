"""The best plan of a system whose plans are those of the search, some things pinned."""

from dataclasses import replace

from planner.requests.pinned import NOTHING_PINNED, Pinned
from planner.search import search
from profiles.facts import Facts
from rlplan.errors import InfeasibleError
from rlplan.job import Job
from rlplan.results.systems import SystemForecast


def best_searched(
    name: str,
    about: str,
    job: Job,
    facts: Facts,
    pinned: Pinned = NOTHING_PINNED,
    *,
    staleness: float | None = None,
) -> SystemForecast:
    """Return the best plan that a search finds, or why none fits.

    Args:
        staleness: The limit within which it searches; None takes the job's.
    """
    specs = job.specs if staleness is None else replace(job.specs, staleness=staleness)
    try:
        result = search(job, facts, pinned=pinned, specs=specs)
    except InfeasibleError as error:
        return SystemForecast(name=name, about=about, reason=str(error))
    best = result.plans[0]
    return SystemForecast(
        name=name,
        about=about,
        plan=best.plan,
        forecast=best.forecast,
        considered=sum(result.considered.values()),
    )
