"""A plan, played in simulated time."""

from rlplan.plan import Plan
from rlplan.profiles.catalog import ENGINES
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast
from rlplan.rules import check_plan
from rlplan.simulator.capabilities import check_played
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.assemble import device_pools
from rlplan.simulator.timeline.batches import batch_forecast
from rlplan.simulator.timeline.beside import with_beside
from rlplan.simulator.timeline.pool_memory import pool_memory
from rlplan.simulator.timeline.speculating import with_speculation


def simulate(plan: Plan, facts: Facts, *, iterations: int = 1) -> Forecast:
    """Return what a plan is expected to take, to need and to cost.

    Everything is an expectation, nothing is drawn: the same plan gives the same forecast. A plan
    that does not fit is simulated all the same, as if memory were larger: its forecast says that
    it is infeasible, and why.

    Where iterations overlap, the figures are those of the long run: they are played until their
    lengths repeat. What a run does beside its iterations, validation and checkpoints, has figures of its own.

    Args:
        iterations: How many iterations the trace shows, beside those in which overlapping ones fill
            the pools; the figures are the last one's.

    Raises:
        FileError: The plan breaks a rule of `rlplan.rules`.
        CapabilityError: The plan asks for what has no playing.
        MissingFactError: A cost is known neither from the profile nor from a sheet.
    """
    check_plan(plan, ENGINES)
    assert iterations >= 1
    check_played(plan)
    placed = PlacedPlan(plan, facts)
    memory = [pool_memory(placed, pool) for pool in device_pools(plan)]
    if plan.flow.by_sample:
        from rlplan.simulator.asynchronous.forecasting import stream_forecast  # noqa: PLC0415 -- only there

        forecast = stream_forecast(placed, memory, iterations)
    else:
        forecast = batch_forecast(placed, memory, iterations)
    return with_beside(with_speculation(forecast, placed), placed)
