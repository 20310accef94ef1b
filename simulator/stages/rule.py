"""A reward function on CPU workers."""

from rlplan.simulator.costs.rule import rule_cost
from rlplan.simulator.costs.taskcost import TaskCost, times
from rlplan.simulator.memory.task_memory import TaskMemory
from rlplan.simulator.placed import PlacedTask


def cost(placed: PlacedTask, kv_bytes: float | None = None) -> TaskCost:
    """Return what the job's functions cost on all batches, one after another."""
    assert kv_bytes is None, "nothing is generated"
    return times(rule_cost(placed), placed.task.batches)


def memory(placed: PlacedTask) -> TaskMemory:
    """Return that it holds nothing on GPUs."""
    del placed
    return TaskMemory()
