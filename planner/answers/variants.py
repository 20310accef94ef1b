"""Variants of plans that a search found: forecast as far as they may stand among what was found, and beside what is best."""

from dataclasses import replace

from rlplan.job import Specs
from rlplan.plan import Plan
from rlplan.planner.requests.specs import violations
from rlplan.planner.searchers.exact import lost_seconds
from rlplan.profiles.catalog import ENGINES
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Candidate, Forecast
from rlplan.rules import refusals
from rlplan.simulator.simulate import simulate


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
