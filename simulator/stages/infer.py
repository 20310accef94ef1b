"""Forward passes over whole sequences, or a reward model's own generation about them, on a pool's GPUs."""

import numpy as np

from rlplan.results.forecast import CALL
from rlplan.simulator.costs import layouts
from rlplan.simulator.costs.layouts import passes_cost
from rlplan.simulator.costs.taskcost import (
    ENVIRONMENT,
    TaskCost,
    call_of,
    cost_of,
    task_at_site,
    times,
    with_spread,
)
from rlplan.simulator.generation.generating import slowest_replica
from rlplan.simulator.generation.judging import judging
from rlplan.simulator.memory.task_memory import JUDGED_COLUMNS
from rlplan.simulator.memory.task_memory import passes_memory as memory
from rlplan.simulator.memory.transition_memory import generation_room
from rlplan.simulator.placed import Floats, PlacedTask, PlacedTasks

__all__ = ["cost", "layout_seconds", "memory"]


def cost(placed: PlacedTask, kv_bytes: float | None = None) -> TaskCost:
    """Return what it costs to infer all batches, one after another."""
    assert kv_bytes is None, "nothing is generated"
    judge = None if placed.job.judge is None else judging(placed)
    once = passes_cost(placed) if judge is None else _judged_cost(placed, judge)
    return times(once, placed.task.batches)


def layout_seconds(table: PlacedTasks) -> Floats:
    """Return the seconds of a task that infers or trains in each layout, with its site's factors. Shape (layouts,).

    Raises:
        MissingFactError: Neither profile nor device sheet can price something.
    """
    if table.any.job.judge is None or judging(table.any) is None:
        return layouts.layout_seconds(table)
    return np.asarray(table.by(JUDGED_COLUMNS, _seconds)[0])


def _seconds(placed: PlacedTask) -> tuple[float]:
    return (task_at_site(cost(placed), placed).total.seconds,)


def _judged_cost(placed: PlacedTask, judge: PlacedTask) -> TaskCost:
    """Return what a judge's generation costs; its engine has what its share of each GPU leaves to its cache."""
    room = generation_room(judge, None, 0.0)
    kv_bytes = float(room.cache_bytes(judge.engine, judge.layout.memory_fraction))
    slowest = slowest_replica(judge, kv_bytes)
    parts = {"prefill": slowest.prefill, "decode": slowest.decode, ENVIRONMENT: slowest.waiting}
    once = cost_of({**parts, CALL: call_of(placed)})
    return with_spread(once, judge.engine.forecast_spread)
