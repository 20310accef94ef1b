"""Forward passes over whole sequences, or what an engine answers about them, on a pool's GPUs."""

import numpy as np

from rlplan.estimate import Estimate
from rlplan.models import Batch
from rlplan.results.forecast import CALL
from rlplan.simulator.columns import Floats
from rlplan.simulator.costs import layouts
from rlplan.simulator.costs.layouts import passes_cost
from rlplan.simulator.costs.pricing import pass_seconds
from rlplan.simulator.costs.setting import setting_of
from rlplan.simulator.costs.taskcost import (
    ENVIRONMENT,
    TaskCost,
    call_of,
    cost_of,
    task_at_site,
    times,
    with_spread,
)
from rlplan.simulator.costs.teaching import picked_bytes
from rlplan.simulator.generation.generating import DECODE, parts_with_host, slowest_replica
from rlplan.simulator.generation.judging import judging
from rlplan.simulator.memory.task_memory import JUDGED_COLUMNS
from rlplan.simulator.memory.task_memory import passes_memory as memory
from rlplan.simulator.memory.transition_memory import serving_cache_bytes
from rlplan.simulator.placed import PlacedTask, PlacedTasks

__all__ = ["cost", "layout_seconds", "memory"]

# The part of a served teacher's cost that makes log-probabilities of what it reads.
PROMPT_LOG_PROBS = "prompt log-probabilities"


def cost(placed: PlacedTask, kv_bytes: float | None = None) -> TaskCost:
    """Return what it costs to infer all batches, one after another."""
    assert kv_bytes is None, "nothing is generated"
    judge = judging(placed) if placed.job.serves else None
    once = passes_cost(placed) if judge is None else _judged_cost(placed, judge)
    return times(once, placed.task.batches)


def layout_seconds(table: PlacedTasks) -> Floats:
    """Return the seconds of a task that infers or trains in each layout, with its site's factors. Shape (layouts,).

    Raises:
        MissingFactError: Neither profile nor device sheet can price something.
    """
    if not table.any.job.serves or judging(table.any) is None:
        return layouts.layout_seconds(table)
    return np.asarray(table.by(JUDGED_COLUMNS, _seconds)[0])


def _seconds(placed: PlacedTask) -> tuple[float]:
    return (task_at_site(cost(placed), placed).total.seconds,)


def _judged_cost(placed: PlacedTask, judge: PlacedTask) -> TaskCost:
    """Return what a served model's generation costs; its engine has what its share of each GPU leaves to its cache."""
    slowest = slowest_replica(judge, serving_cache_bytes(judge))
    parts = {"prefill": slowest.prefill, DECODE: slowest.decode, ENVIRONMENT: slowest.waiting}
    if placed.task.role == "teacher":
        parts[PROMPT_LOG_PROBS] = _prompt_log_probs(judge)
    once = cost_of({**parts, CALL: call_of(placed)})
    spread = judge.engine.generation_spread(judge.model, judge.device.sheet.architecture)
    return with_spread(once, spread, parts_with_host(judge.engine))


def _prompt_log_probs(teacher: PlacedTask) -> Estimate:
    """Return the seconds in which a replica of a served teacher makes the log-probabilities of its prompts.

    A prefill makes logits of the last token alone; here all tokens' are made, each prompt's at once, and its likeliest
    tokens are picked of the whole vocabulary, as every rank has it.
    """
    setting, statistics = setting_of(teacher), teacher.statistics
    prompts = -(-teacher.workload.sequences // teacher.layout.dp)
    tokens = max(1, round(statistics.prompt_tokens))
    batch = Batch(sequences=1, tokens=tokens, sequence_tokens=tokens, head_tokens=tokens)
    each = pass_seconds(setting, teacher.model, "sampling head", batch).total
    top = teacher.job.top_tokens
    if top:
        width = teacher.model.vocab_size
        each += teacher.device.memory_bound(picked_bytes(tokens, width, min(top, width)))
    return each * prompts
