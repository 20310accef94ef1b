"""Micro-batches as an engine computes them, with prompts whose samples share their tokens.

A packed micro-batch may hold all but the last token of a prompt once for all of its samples there; the
last token stays with each sample, as what follows it differs. A prompt of p tokens with k samples of r
is then (p - 1) + k (r + 1) tokens to all that works token by token, while attention sees k sequences
of p + r.
"""

import math
from dataclasses import replace

from rlplan.estimate import largest_normal
from rlplan.models.operators import Batch
from rlplan.sheets.hardware import EngineSheet
from rlplan.simulator.workload.sequences import LengthStatistics, micro_batch_of, straggler_fraction
from rlplan.workload.lengths import longest
from rlplan.workload.work import Workload


def computed_batch(engine: EngineSheet, statistics: LengthStatistics, sequences: int) -> Batch:
    """Return the average micro-batch of so many sequences, in tokens as the engine computes them."""
    batch = micro_batch_of(statistics, sequences, engine.padding)
    samples = samples_sharing(engine, statistics.workload)
    if samples == 1:
        return batch
    copies = sequences - prompts_held(sequences, samples)
    tokens = batch.tokens - round(copies * (statistics.prompt_tokens - 1))
    return replace(batch, tokens=tokens, head_tokens=tokens)


def waiting_fraction(
    engine: EngineSheet, statistics: LengthStatistics, sequences: int, micro_batch: int, ranks: int
) -> float:
    """Return how much longer than the mean the fullest of `ranks` data-parallel ranks works.

    As `straggler_fraction` says it, or where samples share their prompt: a rank's work is a sum over
    prompts, each of which counts once in every micro-batch that holds samples of it.
    """
    samples = samples_sharing(engine, statistics.workload)
    if samples == 1 or ranks == 1:
        return straggler_fraction(statistics, sequences, micro_batch, ranks, engine.padding)
    copies = -(-samples // micro_batch)
    mean = copies * (statistics.prompt_tokens - 1) + samples * (statistics.following_tokens + 1)
    deviation = math.hypot(
        copies * statistics.prompt_std_tokens,
        math.sqrt(samples) * statistics.following_std_tokens,
    )
    return largest_normal(ranks) * deviation / (mean * math.sqrt(sequences / samples))


def samples_sharing(engine: EngineSheet, workload: Workload) -> int:
    """Return the samples of a prompt for which an engine computes its tokens once; 1 if it does not."""
    return workload.samples_per_prompt if engine.shares_prompts else 1


def prompts_held(sequences: int, samples: int) -> int:
    """Return the prompts of a micro-batch of so many sequences, which keeps samples together."""
    return -(-sequences // samples)


def least_shared_tokens(engine: EngineSheet, workload: Workload, sequences: int) -> int:
    """Return the tokens that the longest micro-batch is spared for certain.

    That is none where neither the samples of a prompt nor the sequences of a micro-batch divide the
    other: prompts are then cut, and a micro-batch may hold pieces of many.
    """
    samples = samples_sharing(engine, workload)
    if sequences % samples and samples % sequences:
        return 0
    copies = sequences - prompts_held(sequences, samples)
    return copies * (longest(workload.prompt_tokens) - 1)
