"""What each kind of task costs and holds, one file per kind: `cost` and `memory` of a placed task.

How parts are priced stands in `rlplan.simulator.costs`, `rlplan.simulator.generation` and `rlplan.simulator.memory`.
"""

from dataclasses import replace
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from rlplan.plug_ins import PlugIns
from rlplan.simulator.costs.taskcost import TaskCost, task_at_site
from rlplan.simulator.memory.terms import TaskMemory
from rlplan.simulator.placed import PlacedTask, placed_task


class StageKind(Protocol):
    """Say what a task of one kind costs and holds."""

    def cost(self, placed: PlacedTask, kv_bytes: float | None = None) -> TaskCost:
        """Return seconds by cause."""

    def memory(self, placed: PlacedTask) -> TaskMemory:
        """Return the bytes on each GPU by term."""


_nameless: WeakKeyDictionary[PlacedTask, PlacedTask] = WeakKeyDictionary()
_memories: WeakKeyDictionary[PlacedTask, TaskMemory] = WeakKeyDictionary()
_costs: WeakKeyDictionary[PlacedTask, dict[float | None, TaskCost]] = WeakKeyDictionary()
STAGES: Final = PlugIns[StageKind](__name__, __path__, kind="kind of task", dashes=False)


def _on_any_pool(placed: PlacedTask) -> PlacedTask:
    """Return a task on a pool without a name: plans that name the pools of a site otherwise take and hold the same."""
    if not placed.layout.pool:
        return placed
    found = _nameless.get(placed)
    if found is None:
        layout = replace(placed.layout, pool="")
        found = placed_task(placed.task, layout, placed.site, placed.job, placed.facts)
        _nameless[placed] = found
    return found


def task_cost(placed: PlacedTask, kv_bytes: float | None = None) -> TaskCost:
    """Return what a task costs on its pool, in seconds by cause, with the factors of its site.

    Batches of a task that generates or infers pass through it one after another; those of an update
    are one larger batch. What is asked of one placed task again is looked up.

    Args:
        kv_bytes: Bytes free for the KV cache on each GPU (generate); None for all that it can use.

    Raises:
        MissingFactError: Neither profile nor device sheet can price something.
    """
    placed = _on_any_pool(placed)
    known = _costs.setdefault(placed, {})
    if kv_bytes not in known:
        known[kv_bytes] = task_at_site(STAGES.load(placed.task.kind).cost(placed, kv_bytes), placed)
    return known[kv_bytes]


def task_memory(placed: PlacedTask) -> TaskMemory:
    """Return the bytes that a task puts on each GPU, by term, on its fullest pipeline stage.

    Tasks of one role share resident terms of one name. What is asked of one placed task again is looked up.
    """
    placed = _on_any_pool(placed)
    found = _memories.get(placed)
    if found is None:
        found = _memories[placed] = STAGES.load(placed.task.kind).memory(placed)
    return found
