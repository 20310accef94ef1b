"""Generation by an engine with a KV cache or without one, on a pool's GPUs."""

from rlplan.simulator.costs.taskcost import TaskCost, times, with_spread
from rlplan.simulator.generation.generating import generate_cost
from rlplan.simulator.memory.task_memory import generate_memory as memory
from rlplan.simulator.placed import PlacedTask

__all__ = ["cost", "memory"]


def cost(placed: PlacedTask, kv_bytes: float | None = None) -> TaskCost:
    """Return what it costs to generate all batches, one after another."""
    once = with_spread(generate_cost(placed, kv_bytes), placed.engine.forecast_spread)
    return times(once, placed.task.batches)
