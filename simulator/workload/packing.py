"""Micro-batches that are packed up to a budget of tokens."""

from dataclasses import replace

from rlplan.job import Workload
from rlplan.plan import TaskPlan
from simulator.workload.sequences import statistics_of


def packed_layout(layout: TaskPlan, workload: Workload) -> TaskPlan:
    """Return a layout whose micro-batch has as many sequences as its token budget holds, if it has one."""
    if layout.token_budget is None:
        return layout
    return replace(layout, micro_batch=packed_sequences(layout.token_budget, workload))


def packed_sequences(token_budget: int, workload: Workload) -> int:
    """Return how many sequences of mean length a budget of tokens holds; one that is longer goes alone."""
    return max(1, int(token_budget / statistics_of(workload).mean_tokens))
