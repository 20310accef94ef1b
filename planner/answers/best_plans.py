"""Search for what a user asks: an objective under specs, or a front; and say which specs bind."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

from rlplan.errors import InfeasibleError
from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.planner.answers.frontier import Progress, Solve, find_frontier
from rlplan.planner.answers.infeasible_specs import infeasible_specs_error
from rlplan.planner.answers.misfits import least_misfit, misfit_error
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.specs import roomy
from rlplan.planner.search import search
from rlplan.profiles.facts import Facts
from rlplan.results.frontier import Frontier
from rlplan.results.searched import SearchResult
from rlplan.specs import Specs

Found = TypeVar("Found")


def best_plans(
    job: Job,
    facts: Facts,
    *,
    pinned: Pinned = NOTHING_PINNED,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Return plans of a resolved job by its objective under its specs, best first.

    They leave the usual share of memory free, unless the specs say how much.

    Args:
        pinned: What the user pinned.
        seconds: When to stop with the best plan so far; None searches to the end.

    Raises:
        InfeasibleError: No plan fits and keeps the specs; the message says which spec binds and what
            the nearest value is that a plan can keep.
    """
    solve = solver(job, facts, seconds, pinned, progress)

    def why_none(specs: Specs, none_fits: InfeasibleError) -> InfeasibleError:
        found = infeasible_specs_error(job, specs, solve, none_fits)
        if found is none_fits and pinned != NOTHING_PINNED:
            found = _pinned_error(job, facts, pinned, none_fits)
        return found

    return under_specs(job, lambda specs: solve(job.objective, specs), why_none)


def under_specs(
    job: Job,
    find: Callable[[Specs], Found],
    why_none: Callable[[Specs, InfeasibleError], InfeasibleError],
) -> Found:
    """Return what is found under a job's specs, with the usual share of memory free where they say nothing of it.

    Fuller plans are not taken where there are no others: a narrower search, which has those alone, might find better
    plans than a wider one. The error names the share that a plan can leave free.

    Raises:
        InfeasibleError: Nothing is found.
    """
    specs = roomy(job)
    try:
        return find(specs)
    except InfeasibleError as error:
        raise why_none(specs, error) from None


def _pinned_error(
    job: Job, facts: Facts, pinned: Pinned, none_fits: InfeasibleError
) -> InfeasibleError:
    """Return an error that says why nothing fits which keeps what is pinned, and what would."""

    def choose(larger: Facts) -> Plan:
        specs = Specs(staleness=job.specs.staleness)
        found = search(job, larger, pinned=pinned, objective="throughput", specs=specs)
        return found.plans[0].plan

    try:
        plan = least_misfit(choose, facts, none_fits)
    except InfeasibleError as error:
        return error
    return misfit_error(plan, facts, pinned)


def best_front(
    job: Job,
    facts: Facts,
    names: Sequence[str],
    *,
    pinned: Pinned = NOTHING_PINNED,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Frontier:
    """Return the Pareto front of a resolved job over two or three objectives, under its specs.

    Args:
        pinned: What the user pinned.
        seconds: When to stop each of the searches with the best plan so far; None searches to the end.

    Raises:
        UserError: The names are not two or three different objectives.
        InfeasibleError: As `best_plans`.
    """
    solve = solver(job, facts, seconds, pinned)
    return front_under_specs(job, names, solve, progress)


def front_under_specs(
    job: Job, names: Sequence[str], solve: Solve, progress: Progress | None = None
) -> Frontier:
    """Return the front of what a search finds, under a job's specs as `under_specs` has them.

    Raises:
        UserError: The names are not two or three different objectives.
        InfeasibleError: As `best_plans`.
    """
    return under_specs(
        job,
        lambda specs: find_frontier(job, solve, names, specs=specs, progress=progress),
        lambda specs, error: infeasible_specs_error(job, specs, solve, error),
    )


def solver(
    job: Job,
    facts: Facts,
    seconds: float | None,
    pinned: Pinned,
    progress: Progress | None = None,
) -> Solve:
    """Return the search of a job's plans by an objective under specs, each asked for once."""

    @cache
    def solve(objective: str, specs: Specs) -> SearchResult:
        return search(
            job,
            facts,
            pinned=pinned,
            objective=objective,
            specs=specs,
            seconds=seconds,
            progress=progress,
        )

    return solve
