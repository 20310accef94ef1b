"""Forward passes over whole sequences, on a pool's GPUs."""

from rlplan.simulator.costs.layouts import passes_cost
from rlplan.simulator.costs.taskcost import TaskCost, times
from rlplan.simulator.memory.task_memory import passes_memory as memory
from rlplan.simulator.placed import PlacedTask

__all__ = ["cost", "memory"]


def cost(placed: PlacedTask, kv_bytes: float | None = None) -> TaskCost:
    """Return what it costs to infer all batches, one after another."""
    assert kv_bytes is None, "nothing is generated"
    return times(passes_cost(placed), placed.task.batches)
