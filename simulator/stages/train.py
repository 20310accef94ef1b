"""Updates of a model, on a pool's GPUs."""

from simulator.costs.layouts import passes_cost
from simulator.costs.taskcost import TaskCost
from simulator.memory.task_memory import TaskMemory, passes_memory
from simulator.placed.task import PlacedTask


def cost(placed: PlacedTask, kv_bytes: float | None = None) -> TaskCost:
    """Return what all updates cost; several global batches are one larger batch."""
    assert kv_bytes is None, "nothing is generated"
    return passes_cost(placed.batched)


def memory(placed: PlacedTask) -> TaskMemory:
    """Return what it holds on its fullest pipeline stage."""
    return passes_memory(placed)
