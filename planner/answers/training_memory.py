"""The fullest training stage of a plan, to stand beside the memory that its engine fills with cache."""

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.plan import Plan
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import MemoryMoment
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.assemble import device_pools
from rlplan.simulator.timeline.pool_memory import memory_moments


def fullest_training(plan: Plan, facts: Facts) -> MemoryMoment | None:
    """Return what lies in memory during the task that trains and fills most of its GPU; None where none trains."""
    placed = PlacedPlan(plan, facts)
    tasks = tasks_of(load_algorithm(plan.job.algorithm), plan.job)
    trains = {task.name for task in tasks if task.trains}
    found = [
        MemoryMoment(
            pool=pool.name,
            during=name,
            terms=terms,
            capacity_bytes=facts.device(pool.device).sheet.memory_bytes,
        )
        for pool in device_pools(plan)
        for name, terms in memory_moments(placed, pool).items()
        if name in trains
    ]
    known = [each for each in found if each.capacity_bytes]
    return max(known, key=lambda each: sum(each.terms.values()) / each.capacity_bytes, default=None)
