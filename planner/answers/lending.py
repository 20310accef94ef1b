"""Plans of a search with idle GPUs lent, where a forecast says that it pays.

Plans that lend are tried on what a search found, never in place of it: so what is best with lending allowed is at least as
good as without. How fast any plan that lends could be is bounded by nothing here; where one wins, the search says so.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rlplan.errors import CapabilityError
from rlplan.job import Job
from rlplan.plan import Lending, Plan
from rlplan.planner.answers.variants import TimeLeft, beside, variant_forecast
from rlplan.planner.objectives import load_objective
from rlplan.planner.requests.specs import roomy, usable_fraction
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Candidate, Forecast, SearchResult
from rlplan.simulator.asynchronous.lent import lent_fraction
from rlplan.simulator.placed import PlacedPlan

# Plans that stream of which lending is tried, the best first: each is simulated once for every way below.
MOST_PLANS = 3
# Samples that are there when GPUs go back to training, as shares of those between two syncs.
SHARES: Final = (0.25, 0.5, 1.0)
WAYS: Final = (*(Lending(until=share) for share in SHARES), Lending(to=("training",)))
# What lending has to bring, as a share of the objective: means of finitely many iterations are off by as much.
LEAST_GAIN: Final = 0.01


def with_lending(
    found: SearchResult, job: Job, facts: Facts, seconds: float | None = None
) -> SearchResult:
    """Return a search's plans, those that stream with idle GPUs lent where that is better by the job's objective.

    Each plan that lends fits, keeps the job's limits, and leaves as much memory free as searches do.

    Args:
        seconds: When to stop; None tries all.
    """
    left = TimeLeft(seconds)
    streams = [each for each in found.plans if each.plan.flow.by_sample][:MOST_PLANS]
    figure = load_objective(job.objective).figure
    better = {id(each): _best(each, job, facts, left) for each in streams}
    plans = [better.get(id(each)) or each for each in found.plans]
    plans.sort(key=lambda each: figure(each.forecast))
    winner = plans[0]
    lends = winner.plan.lending is not None
    words = f"; idle GPUs lent, tried on {len(streams)} of the plans found{left.words}"
    if lends:
        words += ", one of which wins so: what else could lend is not bounded"
    return replace(
        found,
        plans=tuple(beside(each, winner.forecast) for each in plans),
        considered=found.considered.with_item("plans that lend", left.tried),
        bound_seconds=0.0 if lends else found.bound_seconds,
        gap=1.0 if lends else found.gap,
        space=found.space + words,
    )


def _best(candidate: Candidate, job: Job, facts: Facts, left: TimeLeft) -> Candidate | None:
    """Return a plan with the way of lending that is best of all; None where none is better than none."""
    figure = load_objective(job.objective).figure
    best, least = None, figure(candidate.forecast) * (1 - LEAST_GAIN)
    for plan, forecast in _tried(candidate.plan, job, facts, left):
        if figure(forecast) < least:
            least = figure(forecast)
            best = replace(candidate, plan=plan, forecast=forecast, gap=1.0)
    return best


def _tried(plan: Plan, job: Job, facts: Facts, left: TimeLeft) -> Iterator[tuple[Plan, Forecast]]:
    """Yield plans that lend, with their forecasts, as far as they are allowed, played, fit and keep the limits."""
    limits = roomy(job)
    for way in WAYS:
        if not left:
            return
        lends = replace(plan, lending=way)
        if "generation" in way.to:
            fraction = lent_fraction(PlacedPlan(lends, facts), usable_fraction(limits))
            if fraction <= 0:
                continue
            lends = replace(plan, lending=replace(way, memory_fraction=fraction))
        if forecast := variant_forecast(lends, facts, limits, (CapabilityError,)):
            yield lends, forecast
