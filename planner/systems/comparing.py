"""Our plan of a job beside what systems of the field make of it, all forecast by one simulator."""

from collections.abc import Callable, Sequence

from planner.search import search
from planner.systems.baselines import baseline_names, load_baseline
from profiles.facts import Facts
from rlplan.errors import InfeasibleError
from rlplan.job import Job
from rlplan.results.systems import SystemForecast, SystemsComparison

OURS = "rlplan"
ABOUT = "the best plan over all placements, allocations and layouts, found by `rlplan search`"

Progress = Callable[[int, int, str], None]


def compare_systems(
    job: Job,
    facts: Facts,
    names: Sequence[str] | None = None,
    *,
    progress: Progress | None = None,
) -> SystemsComparison:
    """Return the best plan of each system for a resolved job, and ours.

    Args:
        names: Systems in the order wanted; None is all of them.
        progress: Called with (done, total, system) before each.

    Raises:
        UnknownNameError: There is no system of a name.
    """
    wanted = list(dict.fromkeys(baseline_names() if names is None else names))
    systems = [load_baseline(name) for name in wanted]
    found: list[SystemForecast] = []
    for done, (name, system) in enumerate(zip(wanted, systems, strict=True)):
        if progress:
            progress(done, len(wanted) + 1, name)
        found.append(system.best_plan(job, facts))
    if progress:
        progress(len(wanted), len(wanted) + 1, OURS)
    return SystemsComparison(job=job.name, ours=_ours(job, facts), systems=tuple(found))


def _ours(job: Job, facts: Facts) -> SystemForecast:
    try:
        result = search(job, facts)
    except InfeasibleError as error:
        return SystemForecast(name=OURS, about=ABOUT, reason=str(error))
    best = result.plans[0]
    return SystemForecast(
        name=OURS,
        about=ABOUT,
        plan=best.plan,
        forecast=best.forecast,
        considered=sum(result.considered.values()),
    )
