"""Variants of plans that a search found, on spot nodes or with idle GPUs lent: forecast as far as they may stand among what was found."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, permutations
from typing import Final

from rlplan.errors import CapabilityError, MissingFactError
from rlplan.job import Job, Specs
from rlplan.plan import Lending, Plan
from rlplan.planner.exact.deadlines import deadline_in, is_past
from rlplan.planner.objectives import load_objective
from rlplan.planner.requests.specs import roomy, usable_fraction, violations
from rlplan.planner.searchers.exact import lost_seconds
from rlplan.profiles.catalog import ENGINES
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Candidate, Forecast, SearchResult
from rlplan.rules import refusals
from rlplan.simulator.asynchronous.lending import lent_fraction
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate

# Plans of which orders are tried, the best first, and orders of each.
MOST_SPOT_PLANS, MOST_SPOT_ORDERS = 3, 6
COST: Final = "cost"

# Plans that stream of which lending is tried, the best first: each is simulated once for every way below.
MOST_LENDING_PLANS = 3
# Samples that are there when GPUs go back to training, as shares of those between two syncs.
LENDING_SHARES: Final = (0.25, 0.5, 1.0)
WAYS_TO_LEND: Final = (
    *(Lending(until=share) for share in LENDING_SHARES),
    Lending(to=("training",)),
)
# What lending has to bring, as a share of the objective: means of finitely many iterations are off by as much.
LEAST_LENDING_GAIN: Final = 0.01


class TimeLeft:
    """Say whether a search may try more variants.

    Args:
        seconds: What is left of a search's; None is no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._deadline = deadline_in(seconds)
        self.was_short, self.tried = False, 0

    def __bool__(self) -> bool:
        """Tell whether there is time for one more; how many there were, and that there was none, is remembered."""
        is_over = is_past(self._deadline)
        self.was_short |= is_over
        self.tried += not is_over
        return not is_over

    @property
    def words(self) -> str:
        """Return for people that not all was tried."""
        return ", as far as there was time" if self.was_short else ""


def variant_forecast(
    plan: Plan, facts: Facts, limits: Specs, unknown: tuple[type[Exception], ...]
) -> Forecast | None:
    """Return a plan's forecast; None where a rule refuses it, it does not fit or breaks a limit, or has none.

    Args:
        unknown: Errors of plans without a forecast.
    """
    if next(refusals(plan, plan.job, ENGINES), None) is not None:
        return None
    try:
        forecast = simulate(plan, facts)
    except unknown:
        return None
    return forecast if forecast.feasible and not violations(plan, forecast, limits) else None


def beside(each: Candidate, winner: Forecast) -> Candidate:
    """Return a candidate with what it loses to a winner."""
    return replace(
        each,
        loses_seconds=each.forecast.iteration_seconds - winner.iteration_seconds,
        loses_to=lost_seconds(each.forecast, winner),
    )


# Which pools stand on spot nodes: of plans that a search found, by what is expected with losses.
#
# A search weighs iterations without losses. Where groups of nodes of one device come and go differently, the same
# pools in another order stand on other nodes: each order is simulated, and the best by what is expected is taken.


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
    tried = [_best_order(each, job, facts, left) for each in found.plans[:MOST_SPOT_PLANS]]
    plans = sorted((*tried, *found.plans[MOST_SPOT_PLANS:]), key=lambda each: expected(each, job))
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
    return expected_value(candidate.forecast, job)


def expected_value(forecast: Forecast, job: Job) -> float:
    """Return what a forecast is worth by a job's objective with losses counted: seconds or money of an iteration; less is better."""
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
        for plan, forecast in _orders_tried(candidate.plan, job, facts, left)
    ]
    return min((candidate, *others), key=lambda each: expected(each, job))


def _orders_tried(
    plan: Plan, job: Job, facts: Facts, left: TimeLeft
) -> Iterator[tuple[Plan, Forecast]]:
    """Yield a plan with its pools on other nodes, and its forecasts, as far as they are allowed, fit and keep the limits."""
    for pools in islice(permutations(plan.pools), 1, MOST_SPOT_ORDERS):
        if not left:
            return
        other = replace(plan, pools=pools)
        if forecast := variant_forecast(other, facts, roomy(job), (MissingFactError,)):
            yield other, forecast


# Plans of a search with idle GPUs lent, where a forecast says that it pays.
#
# Plans that lend are tried on what a search found, never in place of it: so what is best with lending allowed is at
# least as good as without. How fast any plan that lends could be is bounded by nothing here; where one wins, the
# search says so.


def with_lending(
    found: SearchResult, job: Job, facts: Facts, seconds: float | None = None
) -> SearchResult:
    """Return a search's plans, those that stream with idle GPUs lent where that is better by the job's objective.

    Each plan that lends fits, keeps the job's limits, and leaves as much memory free as searches do.

    Args:
        seconds: When to stop; None tries all.
    """
    left = TimeLeft(seconds)
    streams = [each for each in found.plans if each.plan.flow.by_sample][:MOST_LENDING_PLANS]
    figure = load_objective(job.objective).figure
    better = {id(each): _best_lending(each, job, facts, left) for each in streams}
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


def _best_lending(candidate: Candidate, job: Job, facts: Facts, left: TimeLeft) -> Candidate | None:
    """Return a plan with the way of lending that is best of all; None where none is better than none."""
    figure = load_objective(job.objective).figure
    best, least = None, figure(candidate.forecast) * (1 - LEAST_LENDING_GAIN)
    for plan, forecast in _lending_tried(candidate.plan, job, facts, left):
        if figure(forecast) < least:
            least = figure(forecast)
            best = replace(candidate, plan=plan, forecast=forecast, gap=1.0)
    return best


def _lending_tried(
    plan: Plan, job: Job, facts: Facts, left: TimeLeft
) -> Iterator[tuple[Plan, Forecast]]:
    """Yield plans that lend, with their forecasts, as far as they are allowed, played, fit and keep the limits."""
    limits = roomy(job)
    for way in WAYS_TO_LEND:
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
