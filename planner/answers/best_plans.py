"""Search for what a user asks: an objective under specs, or a front; and say which specs bind."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

from planner.answers.frontier import Progress, Solve, find_frontier
from planner.answers.infeasible_specs import infeasible_specs_error
from planner.answers.misfits import least_misfit, misfit_error
from planner.requests.pinned import NOTHING_PINNED, Pinned
from planner.search import search
from profiles.facts import Facts
from rlplan.errors import InfeasibleError
from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.results.frontier import Frontier
from rlplan.results.searched import SearchResult
from rlplan.specs import Specs

# Share of every GPU's memory that plans leave free where the user asks for nothing: what frameworks keep
# beside the terms that are counted, and longer batches than expected, need some.
USUAL_HEADROOM = 0.10


def best_plans(
    job: Job,
    facts: Facts,
    *,
    pinned: Pinned = NOTHING_PINNED,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Return plans of a resolved job by its objective under its specs, best first.

    They leave some memory free, unless the specs say how much or only fuller ones are there.

    Args:
        pinned: What the user pinned.
        seconds: When to stop with the best plan so far; None searches to the end.

    Raises:
        InfeasibleError: No plan fits and keeps the specs; the message says which spec binds and what
            the nearest value is that a plan can keep.
    """
    try:
        return search(
            job, facts, pinned=pinned, specs=roomy(job), seconds=seconds, progress=progress
        )
    except InfeasibleError as error:
        none_fits = error
    if roomy(job) != job.specs:
        try:
            return search(job, facts, pinned=pinned, seconds=seconds, progress=progress)
        except InfeasibleError as error:
            none_fits = error
    solve = _solver(job, facts, seconds, pinned)
    found = infeasible_specs_error(job, job.specs, solve, none_fits)
    if found is none_fits and pinned != NOTHING_PINNED:
        found = _pinned_error(job, facts, pinned, none_fits)
    raise found


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
    solve = _solver(job, facts, seconds, pinned)
    try:
        return find_frontier(job, solve, names, specs=roomy(job), progress=progress)
    except InfeasibleError as error:
        if roomy(job) != job.specs:
            with suppress(InfeasibleError):
                return find_frontier(job, solve, names, specs=job.specs, progress=progress)
        raise infeasible_specs_error(job, job.specs, solve, error) from None


def roomy(job: Job) -> Specs:
    """Return the job's specs, which leave the usual share of memory free where they say nothing of it."""
    if job.specs.memory_headroom_fraction is not None:
        return job.specs
    return replace(job.specs, memory_headroom_fraction=USUAL_HEADROOM)


def _solver(job: Job, facts: Facts, seconds: float | None, pinned: Pinned) -> Solve:
    @cache
    def solve(objective: str, specs: Specs) -> SearchResult:
        return search(job, facts, pinned=pinned, objective=objective, specs=specs, seconds=seconds)

    return solve
