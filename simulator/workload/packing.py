"""Micro-batches that are packed up to a budget of tokens."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from rlplan.plan import TaskPlan
from rlplan.workload.work import Workload
from simulator.workload.sequences import LengthStatistics, longest_of, statistics_of
from simulator.workload.usual import Floats

PACKED_SEQUENCES = 512  # of which micro-batches are made, to see how full they get
# Sequences that are drawn to see how uneven shares are: a mean of so many is known within some per cent.
CHANCE_SEQUENCES = 2**19
CHANCE_SEED = 3


def packed_layout(layout: TaskPlan, workload: Workload) -> TaskPlan:
    """Return a layout whose micro-batch has as many sequences as its token budget holds, if it has one."""
    if layout.token_budget is None:
        return layout
    return replace(layout, micro_batch=packed_sequences(layout.token_budget, workload))


def packed_sequences(token_budget: int, workload: Workload) -> int:
    """Return how many sequences of mean length a budget of tokens holds; one that is longer goes alone."""
    return max(1, int(token_budget / statistics_of(workload).mean_tokens))


def packed_waiting(statistics: LengthStatistics, token_budget: int, ranks: int) -> float:
    """Return how much more tokens than the mean the fullest of `ranks` packed micro-batches has, as a fraction.

    A budget that holds but one of most sequences leaves micro-batches as unlike as those are; of many,
    all get full.
    """
    if ranks == 1:
        return 0.0
    tokens = _packed_tokens(statistics, token_budget)
    most, _ = longest_of(tokens, ranks)
    return most / float(tokens.mean()) - 1


@lru_cache(maxsize=256)
def unbalanced_waiting(statistics: LengthStatistics, sequences: int, ranks: int) -> float:
    """Return how much more tokens than the mean the fullest of `ranks` has, as a fraction.

    Each has so many sequences by chance. They are drawn: a few that never end, of many short ones, are
    far from a normal distribution's sum.
    """
    if ranks == 1:
        return 0.0
    batches = max(1, CHANCE_SEQUENCES // (sequences * ranks))
    generator = np.random.default_rng(CHANCE_SEED)
    drawn = generator.choice(statistics.ordered("whole"), size=(batches, ranks, sequences))
    shares = drawn.sum(axis=2)
    return float(shares.max(axis=1).mean() / shares.mean()) - 1


@lru_cache(maxsize=64)
def _packed_tokens(statistics: LengthStatistics, token_budget: int) -> Floats:
    """Return the tokens of micro-batches, in order, that a usual batch is packed into. Shape (micro-batches,).

    By first fit, longest sequences first (Johnson 1973, "Near-Optimal Bin Packing Algorithms"), as
    frameworks' packers do. The one begun last is left out where there are others: it is not full only because
    nothing comes after it.
    """
    ordered = statistics.ordered("whole")
    places = (np.arange(PACKED_SEQUENCES) + 0.5) * len(ordered) / PACKED_SEQUENCES
    held = np.zeros(PACKED_SEQUENCES)
    for tokens in ordered[places.astype(np.int64)][::-1]:
        fits = held + tokens <= token_budget
        place = np.argmax(fits) if fits.any() else np.argmin(held)
        held[place] += tokens
    begun = held[held > 0]
    return np.sort(begun[: max(1, len(begun) - 1)])
