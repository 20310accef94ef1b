"""Which pools stand on spot nodes: of plans that a search found, by what is expected with losses.

A search weighs iterations without losses. Where groups of nodes of one device come and go differently, the same pools in
another order stand on other nodes: each order is simulated, and the best by what is expected is taken.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, permutations
from typing import Final

from rlplan.errors import MissingFactError
from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.planner.answers.variants import TimeLeft, beside, variant_forecast
from rlplan.planner.objectives import load_objective
from rlplan.planner.requests.specs import roomy
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Candidate, Forecast, SearchResult

# Plans of which orders are tried, the best first, and orders of each.
MOST_PLANS, MOST_ORDERS = 3, 6
COST: Final = "cost"


def on_spot_nodes(
    found: SearchResult, job: Job, facts: Facts, seconds: float | None = None
) -> SearchResult:
    """Return a search's plans, the best by what is expected with losses first; as they are without spot nodes.

    Args:
        seconds: When to stop trying orders; None tries all.
    """
    if not found.plans[0].plan.job.has_spot:
        return found
    left = TimeLeft(seconds)
    tried = [_best_order(each, job, facts, left) for each in found.plans[:MOST_PLANS]]
    plans = sorted((*tried, *found.plans[MOST_PLANS:]), key=lambda each: expected(each, job))
    winner, value = plans[0].forecast, expected(plans[0], job)
    # No plan is worth less without losses, nor with them.
    bound = load_objective(job.objective).figure(found.plans[0].forecast) * (1 - found.gap)
    known = math.isfinite(value) and bound > 0
    return replace(
        found,
        plans=tuple(beside(each, winner) for each in plans),
        gap=max(found.gap, 1 - bound / value) if known else 1.0,
        space=f"{found.space}; what stands on spot nodes by what is expected with losses{left.words}, which the bound leaves out",
    )


def expected(candidate: Candidate, job: Job) -> float:
    """Return what a plan is worth by a job's objective with losses counted: seconds or money of an iteration; less is better."""
    forecast = candidate.forecast
    if forecast.spot is None:
        return load_objective(job.objective).figure(forecast)
    if job.objective == COST:
        return math.inf if forecast.spot.cost_usd is None else forecast.spot.cost_usd
    times = expected_seconds(forecast) / forecast.iteration_seconds
    return load_objective(job.objective).figure(forecast) * times


def expected_seconds(forecast: Forecast) -> float:
    """Return an iteration's seconds with losses counted; infinite where a run would not get on."""
    if forecast.spot is None:
        return forecast.iteration_seconds
    return math.inf if forecast.spot.iteration_seconds is None else forecast.spot.iteration_seconds


def _best_order(candidate: Candidate, job: Job, facts: Facts, left: TimeLeft) -> Candidate:
    others = [
        replace(candidate, plan=plan, forecast=forecast)
        for plan, forecast in _tried(candidate.plan, job, facts, left)
    ]
    return min((candidate, *others), key=lambda each: expected(each, job))


def _tried(plan: Plan, job: Job, facts: Facts, left: TimeLeft) -> Iterator[tuple[Plan, Forecast]]:
    """Yield a plan with its pools on other nodes, and its forecasts, as far as they are allowed, fit and keep the limits."""
    for pools in islice(permutations(plan.pools), 1, MOST_ORDERS):
        if not left:
            return
        other = replace(plan, pools=pools)
        if forecast := variant_forecast(other, facts, roomy(job), (MissingFactError,)):
            yield other, forecast
