"""Updates of a model, on a pool's GPUs."""

from rlplan.simulator.costs.layouts import passes_cost
from rlplan.simulator.costs.taskcost import TaskCost
from rlplan.simulator.memory.task_memory import passes_memory as memory
from rlplan.simulator.placed import PlacedTask

__all__ = ["cost", "memory"]


def cost(placed: PlacedTask, kv_bytes: float | None = None) -> TaskCost:
    """Return what all updates cost; several global batches are one larger batch."""
    assert kv_bytes is None, "nothing is generated"
    return passes_cost(placed.batched)
