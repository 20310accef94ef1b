"""What comes nearest where nothing that keeps what a user pinned fits: the plan, why not, what would."""

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress

from rlplan.errors import InfeasibleError
from rlplan.plan import Plan
from rlplan.planner.answers.explain import with_nearest_fit
from rlplan.planner.requests.pinned import Pinned
from rlplan.profiles.facts import Facts
from rlplan.simulator.simulate import simulate
from rlplan.units import show_bytes

# Memories in which a plan is looked for, as multiples of what the devices have. The first in which there is
# one decides how much too large the plan may be: at most by the step from the one before.
MEMORY_STEPS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)

SHOWN_TERMS = 4


def least_misfit(choose: Callable[[Facts], Plan], facts: Facts, none_fits: InfeasibleError) -> Plan:
    """Return the plan that would be chosen on devices of little more memory than there is.

    Args:
        choose: Returns a plan by facts, or raises `InfeasibleError`.
        none_fits: What it raised by these facts.

    Raises:
        InfeasibleError: Memory is not what is short.
    """
    found: dict[int, Plan] = {}

    def fits(at: int) -> bool:
        with suppress(InfeasibleError):
            found[at] = choose(facts.with_memory(MEMORY_STEPS[at]))
        return at in found

    # What fits some memory fits a larger one.
    first = bisect_left(range(len(MEMORY_STEPS)), True, key=fits)
    if first not in found:
        raise none_fits
    return found[first]


def misfit_error(plan: Plan, facts: Facts, pinned: Pinned) -> InfeasibleError:
    """Return an error that says why a plan does not fit: where, by how much, of what, what would."""
    forecast = with_nearest_fit(simulate(plan, facts), plan, facts, pinned)
    fullest = max(forecast.memory, key=lambda each: each.gpu_peak_bytes - each.capacity_bytes)
    largest = sorted(fullest.terms.items(), key=lambda item: -item[1])[:SHOWN_TERMS]
    terms = ", ".join(f"{term} {show_bytes(size)}" for term, size in largest)
    shortage, *others = forecast.infeasible_reasons
    reasons = "; ".join((shortage, f"it holds {terms}", *others))
    return InfeasibleError(
        f"no plan of job {plan.job.name!r} that keeps what is pinned fits its cluster; the nearest: {reasons}"
    )
