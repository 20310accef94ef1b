"""Generation by an engine with a KV cache or without one, on a pool's GPUs."""

from rlplan.results.forecast import CALL
from rlplan.simulator.costs.taskcost import (
    ENVIRONMENT,
    HANDED,
    TaskCost,
    call_of,
    cost_of,
    times,
    with_spread,
)
from rlplan.simulator.generation.generating import DECODE, parts_with_host, slowest_replica
from rlplan.simulator.memory.task_memory import generate_memory as memory
from rlplan.simulator.placed import PlacedTask

__all__ = ["cost", "memory"]


def cost(placed: PlacedTask, kv_bytes: float | None = None) -> TaskCost:
    """Return what it costs to generate all batches, one after another: the time of the replica that ends last.

    Args:
        kv_bytes: Bytes free for the KV cache on each GPU; None is as many as it can use.
    """
    slowest = slowest_replica(placed, kv_bytes)
    parts = {"prefill": slowest.prefill, DECODE: slowest.decode, ENVIRONMENT: slowest.waiting}
    if slowest.handed.seconds:
        parts[HANDED] = slowest.handed
    once = cost_of({**parts, CALL: call_of(placed)})
    spread = placed.engine.generation_spread(placed.model, placed.device.sheet.architecture)
    known = with_spread(once, spread, parts_with_host(placed.engine))
    return times(known, placed.task.batches)
