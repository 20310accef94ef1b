"""What infer and train tasks cost: one layout by cause, or the seconds of many layouts at once."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rlplan.estimate import ZERO, Estimate, Source
from rlplan.plan import TaskPlan
from rlplan.probing import USUAL, ModelPass, PassName, is_uneven
from rlplan.results.forecast import CALL
from rlplan.rules.batches import rank_sequences
from rlplan.simulator.columns import Floats
from rlplan.simulator.costs.passes import gradient_exchange, infer_parts, train_parts
from rlplan.simulator.costs.pricing import HOST_SPREAD
from rlplan.simulator.costs.taskcost import (
    TaskCost,
    call_of,
    cost_of,
    parts_on_host,
    task_at_site,
    times_of,
    with_spread,
)
from rlplan.simulator.placed import PlacedTask, PlacedTasks
from rlplan.simulator.workload import (
    computed_batch,
    micro_batch_of,
    micro_batches,
    waiting_fraction,
)


def measured_cost(placed: PlacedTask) -> TaskCost | None:
    """Return what a task that infers or trains costs by measured passes, or None where one is missing.

    Rewards and advantages come before updates. Each update then runs its micro-batches, reduces
    gradients over the data-parallel ranks if there are several, and steps the optimizer.
    """
    if placed.device.profile is None or not is_plain(placed.layout) or _cuts_across_nodes(placed):
        return None
    if placed.adapter is not None or placed.layout.token_budget is not None:
        return None  # no probe has adapters, or packs up to a budget
    if not placed.framework.runs:
        return None  # passes are measured as `rlplan execute` makes them
    work = _passes(placed, "train" if placed.trains else "infer")
    if work is None:
        return None
    parts = {"uneven lengths": _uneven(placed, work), CALL: call_of(placed)}
    if not placed.trains:
        return cost_of({"forward": work} | parts)
    step, reduction = _seconds(placed, "optimizer"), _reduction(placed)
    if step is None or reduction is None:
        return None
    updates = placed.workload.updates * placed.workload.epochs
    return cost_of(
        {
            "experience": _experience(placed),
            "forward and backward": work * updates,
            "uneven lengths": parts["uneven lengths"] * updates,
            "gradient reduction": reduction * updates,
            "optimizer": step * updates,
            CALL: parts[CALL],
        }
    )


def _reduction(placed: PlacedTask) -> Estimate | None:
    """Return the seconds of one reduction of gradients, or None where it was not measured.

    Passes were measured on one node: what crosses nodes takes what its collective does.
    """
    layout = placed.layout
    if layout.dp == 1:
        return ZERO
    if placed.device.measured_by_node and _crosses(placed, layout.dp, layout.tp):
        return gradient_exchange(placed)[0]
    return _seconds(placed, "gradient_reduction", dp=layout.dp)


def _cuts_across_nodes(placed: PlacedTask) -> bool:
    """Tell whether tensor-parallel ranks are on several nodes, where those of measured passes shared one."""
    return placed.device.measured_by_node and _crosses(placed, placed.layout.tp)


def _crosses(placed: PlacedTask, ranks: int, stride: int = 1) -> bool:
    return placed.site.ranks_per_node(ranks, stride) < ranks


def is_plain(layout: TaskPlan) -> bool:
    """Tell whether measured passes speak of this layout: they know TP and DP only."""
    sharded = layout.pp * layout.cp * layout.ep > 1 or layout.zero > 0
    return not (sharded or layout.offload or layout.recompute != "none")


def _seconds(
    placed: PlacedTask, name: PassName, *, dp: int = 1, sequences: int = 1, tokens: int = 1
) -> Estimate | None:
    """Return seconds of one pass, or None where this model was never measured so."""
    wanted = ModelPass(
        name=name,
        model=placed.model,
        head=placed.task.head,
        precision=placed.precision,
        tp=placed.layout.tp,
        dp=dp,
        sequences=sequences,
        tokens=tokens,
    )
    return placed.device.model_pass(wanted)


def _seconds_at_once(placed: PlacedTask, name: PassName, **batch: int) -> Estimate | None:
    """Return seconds of one pass on all copies at once, or of one rank's where only that is known."""
    whole = _seconds(placed, name, dp=placed.layout.dp, **batch)
    return whole or _seconds(placed, name, **batch)


def _seconds_of(
    placed: PlacedTask, name: PassName, sequences: float, tokens: int
) -> Estimate | None:
    """Return the seconds of a micro-batch that computes the tokens of `sequences` sequences, which may be no whole number.

    Where samples share their prompt, fewer tokens are computed than the micro-batch holds. Left out is what is still
    done for each sample: attention over the prompt's tokens, and copying them to every sample for it.
    """
    low = math.floor(sequences)
    least = _seconds_at_once(placed, name, sequences=low, tokens=tokens)
    if least is None or sequences == low:
        return least
    most = _seconds_at_once(placed, name, sequences=low + 1, tokens=tokens)
    assert most is not None, "what was measured once is found again"
    return least * (low + 1 - sequences) + most * (sequences - low)


def _passes(placed: PlacedTask, name: PassName) -> Estimate | None:
    whole = ZERO
    for size, count in micro_batches(placed.local, placed.layout.micro_batch):
        each = _usual_seconds(placed, name, size) or _even_seconds(placed, name, size)
        if each is None:
            return None
        whole = whole + each * count
    return whole


def _even_seconds(placed: PlacedTask, name: PassName, size: int) -> Estimate | None:
    """Return the seconds of a micro-batch of equal lengths that computes as many tokens."""
    statistics, engine = placed.statistics, placed.engine
    tokens = micro_batch_of(statistics, size, engine.padding).tokens // size
    computed = computed_batch(engine, statistics, size).tokens
    return _seconds_of(placed, name, min(size, computed / tokens), tokens)


def _usual_seconds(placed: PlacedTask, name: PassName, size: int) -> Estimate | None:
    """Return seconds of a micro-batch as the job has them, or None where none was measured.

    Attention over sequences of unlike lengths, or over shared prompts, is padded to the longest, with gathers for it:
    that costs more than passes over sequences of one length show.
    """
    engine, statistics = placed.engine, placed.statistics
    packs = engine.padding == "none" and engine.shares_prompts
    if not packs or not is_uneven(placed.workload):
        return None
    tokens = round(statistics.mean_tokens)

    def seconds_of(sequences: int) -> Estimate | None:
        return _seconds_at_once(placed, USUAL[name], sequences=sequences, tokens=tokens)

    found = seconds_of(size)
    if found is None or not found.outside_range:
        return found
    return _beyond(placed, name, size, seconds_of) or found


def _beyond(
    placed: PlacedTask, name: PassName, size: int, seconds_of: Callable[[int], Estimate | None]
) -> Estimate | None:
    """Return seconds of a micro-batch as the job has them that is larger than any that was measured.

    The largest measured one tells what a token costs; how many are computed follows from the prompts that samples share,
    which in a few sequences are fewer. None where no smaller one was measured.

    Args:
        seconds_of: Of as many sequences.
    """
    known = size
    while known > 1:
        known //= 2
        least = seconds_of(known)
        if least is not None and not least.outside_range:
            more, even = _even_seconds(placed, name, size), _even_seconds(placed, name, known)
            if more is None or even is None:
                return None
            scaled = least * (more.seconds / even.seconds)
            return replace(scaled, outside_range=True)
    return None


def _uneven(placed: PlacedTask, work: Estimate) -> Estimate:
    layout = placed.layout
    sizes = (placed.local, layout.micro_batch, layout.dp)
    return work * waiting_fraction(placed.engine, placed.statistics, *sizes)


def _experience(placed: PlacedTask) -> Estimate:
    """Return seconds of rewards and advantages; the engine's host work where nobody measured them."""
    rows = rank_sequences(placed.layout.dp, placed.workload, trains=False)
    tokens = round(placed.statistics.mean_tokens)
    measured = _seconds_at_once(placed, "experience", sequences=rows, tokens=tokens)
    if measured is not None:
        return measured
    return Estimate(placed.engine.step_seconds, 0.0, Source.DATASHEET)


def passes_cost(placed: PlacedTask) -> TaskCost:
    """Return what one global batch costs in seconds by cause: by measured passes where they are known."""
    measured = measured_cost(placed)
    if measured is not None:
        return measured
    spread = placed.engine.passes_spread(placed.model)
    cost = with_spread(_operators_cost(placed), spread, keep=parts_on_host(placed.options))
    if not spread or placed.device.sheet.kind == "cpu":
        return cost
    # What an engine's forecasts were off says nothing of another site's host, which launches kernels and gathers.
    facts = placed.facts.with_slower_hosts(1 + HOST_SPREAD)
    slower = dict(_operators_cost(replace(placed, facts=facts)).parts)
    return cost.each(
        lambda name, part: _as_known(part, slower.get(name, part).seconds - part.seconds)
    )


def _operators_cost(placed: PlacedTask) -> TaskCost:
    parts = (train_parts if placed.trains else infer_parts)(PlacedTasks.of(placed))
    return cost_of({name: part.row(0) for name, part in parts.items()})


def _as_known(part: Estimate, host_seconds: float) -> Estimate:
    """Return a part with what it takes longer, one sigma, where its host is slow."""
    if host_seconds <= 0:
        return part
    return replace(part, spread_seconds=math.hypot(part.spread_seconds, host_seconds))


def layout_seconds(table: PlacedTasks) -> Floats:
    """Return the seconds of a task in each layout, with the factors of its site. Shape (layouts,).

    Raises:
        MissingFactError: Neither profile nor device sheet can price something.
    """
    batches = 1.0 if table.any.trains else table.any.task.batches
    if table.any.trains:
        table = PlacedTasks(table.columns, table.any.batched, is_row=len(table) == 1)
    if table.any.device.profile is not None:
        # Measured passes are few, and each layout is looked up by itself; how well it is known is not asked.
        rows = (table.row(row) for row in range(len(table)))
        costs = (
            task_at_site(measured_cost(placed) or _operators_cost(placed), placed)
            for placed in rows
        )
        return np.array([cost.total.seconds for cost in costs]) * batches
    parts = (train_parts if table.any.trains else infer_parts)(table)
    seconds = [part.seconds * times_of(table.any, name) for name, part in parts.items()]
    return np.asarray(np.sum(seconds, axis=0) * batches)
