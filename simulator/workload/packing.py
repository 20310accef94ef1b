"""Micro-batches that are packed up to a budget of tokens."""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from rlplan.estimate import largest_normal
from rlplan.plan import TaskPlan
from rlplan.simulator.workload.sequences import LengthStatistics, longest_of, statistics_of
from rlplan.simulator.workload.usual import Floats
from rlplan.workload.work import Workload

PACKED_SEQUENCES = 512  # of which micro-batches are made, to see how full they get
# Sequences that are drawn to see how uneven shares are: a mean of so many is known within some per cent.
CHANCE_SEQUENCES = 2**19
CHANCE_SEED = 3

# Steps of a run, of whose micro-batches the fullest has to fit: about what published recipes train for.
RUN_STEPS = 1000
# How much longer responses get on average than the mean that a forecast is asked for: a mean is of some step, and a
# run fits only if its longest steps do. Engineering assumption: published logs of tuned models (GSM8K, MATH, DAPO-17k)
# have steps within a fifth of their mean; base models that learn to think at length grow several times, which
# whoever plans for the end of their run has to say by the mean.
RESPONSES_GROW = 1.2
# Sums of more lengths than that are nearly normal.
MOST_CONVOLVED = 256
LENGTH_BINS = 1024


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


def fullest_tokens(statistics: LengthStatistics, sequences: int) -> int:
    """Return the tokens of the fullest of all micro-batches of so many packed sequences that a run computes.

    It is the quantile that one of them is expected to pass, of the sum of so many lengths: the distribution of one
    length, convolved with itself (as `numpy.fft` does it). Responses are taken to grow (`RESPONSES_GROW`).
    """
    longest_tokens = statistics.longest_tokens
    if sequences == 1:
        share = 1 - 1 / (RUN_STEPS * statistics.workload.sequences)
        return min(longest_tokens, math.ceil(float(np.quantile(_grown(statistics), share))))
    passes = RUN_STEPS * -(-statistics.workload.sequences // sequences)
    return min(sequences * longest_tokens, _sum_quantile(statistics, sequences, passes))


@lru_cache(maxsize=1024)
def _sum_quantile(statistics: LengthStatistics, sequences: int, passes: int) -> int:
    """Return the sum of so many lengths that one of `passes` sums is expected to pass."""
    lengths = _grown(statistics)
    if sequences > MOST_CONVOLVED:
        spread = largest_normal(passes) * math.sqrt(sequences) * float(lengths.std())
        return math.ceil(sequences * float(lengths.mean()) + spread)
    width = max(1.0, float(lengths.max()) / LENGTH_BINS)
    counts = np.bincount(np.rint(lengths / width).astype(np.int64))
    size = 1 << math.ceil(math.log2(sequences * len(counts)))
    one = np.fft.rfft(counts / len(lengths), size)
    sums = np.clip(np.fft.irfft(one**sequences, size), 0.0, None)
    beyond = np.cumsum(sums[::-1])[::-1]
    return math.ceil(float(np.argmax(beyond <= 1 / passes)) * width)


def _grown(statistics: LengthStatistics) -> Floats:
    """Return whole sequences whose responses have grown, as far as their limits let them. Shape (lengths,)."""
    ordered, work = statistics.ordered("whole"), statistics.workload
    grows = (RESPONSES_GROW - 1) * statistics.response_tokens / statistics.mean_tokens
    return np.minimum(ordered * (1 + grows), work.longest_sequence_tokens)


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
