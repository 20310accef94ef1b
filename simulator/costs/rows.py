"""The rows that a pass computes, packed or padded: what is planned for their widths, and how long ranks wait for the longest."""

from dataclasses import replace

import numpy as np

from rlplan.models import Batch
from rlplan.sheets import EngineSheet
from rlplan.simulator.columns import Floats, Ints
from rlplan.simulator.model import padded_to_longest
from rlplan.simulator.placed import PlacedTask, PlacedTasks
from rlplan.simulator.workload import (
    PADDED_ALIKE,
    RUN_STEPS,
    computed_batch,
    packed_waiting,
    samples_in_budget,
    unbalanced_waiting,
    waiting_fraction,
)


def batch_of(placed: PlacedTask) -> Batch:
    """Return the average micro-batch of a layout, in tokens as they are computed."""
    size = placed.layout.micro_batch
    batch = computed_batch(_of_rows(placed), placed.statistics, size, placed.local)
    budget = placed.layout.token_budget
    if budget is None or not placed.options.fills_budgets:
        return batch
    tokens = max(batch.tokens, budget)  # what is filled up attends to nothing
    return replace(batch, tokens=tokens, head_tokens=tokens)


def _of_rows(placed: PlacedTask) -> EngineSheet:
    """Return a task's engine as it computes rows: some frameworks pad what they count, and do not pack."""
    counts = placed.framework.pads_counted and placed.layout.token_budget is None
    return padded_to_longest(placed.engine) if counts else placed.engine


def waiting(placed: PlacedTask) -> tuple[float]:
    """Return how much longer than the mean the rank with the longest sequences works.

    Balancing ranks leaves micro-batches as uneven as they are, and ranks that exchange in every layer
    wait in each of them. Where only a batch is balanced, ranks wait for the one whose part of an update is longest. Ranks
    that pad to the same width have the same work, whatever its sequences are.
    """
    layout, engine, statistics = placed.layout, _of_rows(placed), placed.statistics
    if engine.padding in PADDED_ALIKE:
        return (0.0,)
    ranks = layout.dp if engine.waits_each_micro_batch else placed.expert_batches
    if layout.token_budget is not None:
        if placed.framework.pads_packs and layout.pp > 1:
            # Each is padded to the fullest of the batch: as if it waited for all of them.
            ranks *= -(-placed.local // layout.micro_batch)
        samples = samples_in_budget(engine, placed.workload)
        each = packed_waiting(statistics, layout.token_budget, ranks, samples)
        if placed.options.fills_budgets:
            each = 0.0
    else:
        sequences = min(layout.micro_batch, placed.local)
        if engine.padding == "rank":
            # Balancing tokens leaves the longest of each rank as it is.
            sequences, ranks = placed.local, layout.dp
        each = waiting_fraction(engine, statistics, sequences, layout.micro_batch, ranks)
    if placed.trains and placed.workload.updates > 1 and not placed.framework.balances_updates:
        each = max(each, unbalanced_waiting(statistics, placed.local, layout.dp))
    if engine.waits_each_micro_batch or placed.framework.balances_tokens:
        return (each,)
    sizes = (placed.local, layout.micro_batch, layout.dp)
    return (max(each, waiting_fraction(engine, statistics, *sizes)),)


def planned_seconds(table: PlacedTasks, micro_batches: Ints) -> Floats:
    """Return the host's seconds to plan attention in a pass or an update, for widths of rows that are new. Shape (layouts,).

    A process plans a width once in each direction. Of draws that are equally likely to have any of W widths, n have
    W (1 - (1 - 1/W)^n) of them on average, and no other chances have more; a pass has its share of those of a whole run.

    Args:
        micro_batches: Of a rank, for each layout.
    """
    any_ = table.any
    engine, statistics = any_.engine, any_.statistics
    # What is packed is planned for any lengths, and what is padded to the limits once for a whole run.
    drawn = dict.fromkeys(("rank", "longest", "batch"), np.ones_like(micro_batches))
    drawn["micro_batch"] = micro_batches
    draws = drawn.get(engine.padding, np.zeros_like(micro_batches))
    spread = statistics.longest_tokens - statistics.ordered("whole")[0]
    # Sequence parallelism wants rows that TP divides (verl, models/mcore/util.py: preprocess_bshd_engine).
    widths = 1 + spread / (table.columns.tp if engine.sequence_parallel else 1)
    directions, passes = 1, RUN_STEPS
    if any_.trains:
        directions, passes = 2, RUN_STEPS * any_.workload.updates * any_.workload.epochs
    new = widths * -np.expm1(draws * passes * np.log1p(-1 / np.maximum(widths, 1 + 1e-9))) / passes
    return np.asarray(engine.attention_plan_seconds * directions * new, dtype=np.float64)
