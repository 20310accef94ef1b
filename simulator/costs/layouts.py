"""What infer and train tasks cost: one layout by cause, or the seconds of many layouts at once."""

import numpy as np

from simulator.costs.calibrated import task_at_site, times_of
from simulator.costs.passes.measured import measured_cost
from simulator.costs.passes.pipeline import Parts
from simulator.costs.passes.tasks import infer_parts, train_parts
from simulator.costs.taskcost import TaskCost, cost_of, with_spread
from simulator.placed.columns import Floats
from simulator.placed.task import PlacedTask, PlacedTasks


def passes_cost(placed: PlacedTask) -> TaskCost:
    """Return what one global batch costs in seconds by cause: by measured passes where they are known."""
    measured = measured_cost(placed)
    if measured is not None:
        return measured
    parts = _parts(PlacedTasks.of(placed))
    cost = cost_of({name: part.row(0) for name, part in parts.items()})
    return with_spread(cost, placed.engine.forecast_spread)


def layout_seconds(table: PlacedTasks) -> Floats:
    """Return the seconds of a task in each layout, with the factors of its site. Shape (layouts,).

    Raises:
        MissingFactError: Neither profile nor device sheet can price something.
    """
    batches = 1.0 if table.any.trains else table.any.task.batches
    if table.any.trains:
        table = PlacedTasks(table.columns, table.any.batched)
    if table.any.device.profile is not None:
        # Measured passes are few, and each layout is looked up by itself.
        rows = (table.row(row) for row in range(len(table)))
        costs = (task_at_site(passes_cost(placed), placed) for placed in rows)
        return np.array([cost.total.seconds for cost in costs]) * batches
    parts = _parts(table)
    seconds = [part.seconds * times_of(table.any, name) for name, part in parts.items()]
    return np.asarray(np.sum(seconds, axis=0) * batches)


def _parts(table: PlacedTasks) -> Parts:
    return train_parts(table) if table.any.trains else infer_parts(table)
