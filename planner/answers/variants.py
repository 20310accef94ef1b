"""Variants of plans that a search found: forecast as far as they may stand among what was found, and beside what is best."""

import math
import time
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


class TimeLeft:
    """Say whether a search may try more variants.

    Args:
        seconds: What is left of a search's; None is no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._deadline = math.inf if seconds is None else time.perf_counter() + seconds
        self.was_short, self.tried = False, 0

    def __bool__(self) -> bool:
        """Tell whether there is time for one more; how many there were, and that there was none, is remembered."""
        is_over = time.perf_counter() > self._deadline
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
