"""A plan, played in simulated time."""

from profiles.facts import Facts
from rlplan.errors import PlanError
from rlplan.forecast import Forecast
from rlplan.plan import Plan
from simulator.agenda import agenda_of
from simulator.assemble import assemble, device_pools
from simulator.engine import play
from simulator.memory import pool_memory
from simulator.site import sites_of

MODES = ("sync",)


def simulate(plan: Plan, facts: Facts, *, iterations: int = 1) -> Forecast:
    """Return what a plan is expected to take, to need and to cost.

    Everything is an expectation, nothing is drawn: the same plan gives the same forecast. A plan
    that does not fit is simulated all the same, as if memory were larger: its forecast says that
    it is infeasible, and why.

    Args:
        iterations: How many iterations the trace shows; the figures are the last one's.

    Raises:
        PlanError: The plan's mode is not simulated, a task has no layout, or the pools want more
            GPUs than the cluster has.
        MissingFactError: A cost is known neither from the profile nor from a sheet.
    """
    if plan.mode not in MODES:
        raise PlanError(
            f"plan: mode: {plan.mode!r} cannot be simulated; allowed: {', '.join(MODES)}"
        )
    assert iterations >= 1
    agenda = agenda_of(plan, facts, sites_of(plan, facts))
    trace = play(
        [entry.work for entry in agenda],
        {entry.work.key: entry.cost.total.seconds for entry in agenda},
        plan.order,
        iterations=iterations,
    )
    memory = [pool_memory(plan, pool, facts) for pool in device_pools(plan)]
    return assemble(plan, facts, agenda, trace, memory)
