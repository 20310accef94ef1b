"""How far a generation's time is spread by chance in its lengths.

A forecast plays one usual batch. Other batches of the same workload are drawn, and their time is not
played but added up: a decode step costs a fixed part, a part for every running sequence, and a part
for every token that it reads, so a batch is its steps, its response tokens, the tokens that these
read, and its prompt tokens, each times its price. The prices are taken where the played batch spends
its time on average; only ratios between batches are used, so what they leave out cancels.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from rlplan.simulator.generation.replica import Batching
from rlplan.simulator.generation.shares import Share, longest_shares, other_shares, waits, wave_tops
from rlplan.simulator.workload import LengthStatistics

# Enough that the spread itself is known within a quarter (1 / sqrt(2 x 12) = 20 %).
OTHER_BATCHES = 12

PASS_PROMPTS = 4  # of a usual prefill pass
REMEMBERED_AMOUNTS = (
    64  # of the batches that plans of one job share, for some limits of running sequences
)


class StepPrices(Protocol):
    """Give seconds of steps, as the clocks of generation do."""

    def prefill(self, sequences: int, tokens: float) -> float:
        """Return seconds of a prefill pass."""

    def decode(self, running: int, cached: float) -> float:
        """Return seconds of a decode step."""


@dataclass(frozen=True, slots=True)
class ReplicaShare:
    """Hold what a replica's share of a batch amounts to.

    Attributes:
        steps: Decode steps until the last response ends.
        responses: Response tokens.
        reads: Cached tokens that all of them read.
        prompts: Prompt tokens.
    """

    steps: float
    responses: float
    reads: float
    prompts: float


@dataclass(frozen=True, slots=True)
class Prices:
    """Hold seconds of one of each of `ReplicaShare`."""

    step: float
    response: float
    read: float
    prompt: float

    def seconds(self, amounts: ReplicaShare) -> float:
        """Return what they come to."""
        return (
            self.step * amounts.steps
            + self.response * amounts.responses
            + self.read * amounts.reads
            + self.prompt * amounts.prompts
        )


def length_spread(
    clock: StepPrices,
    batching: Batching,
    slots: int,
    cache_tokens: int,
    statistics: LengthStatistics,
    replicas: int,
) -> float:
    """Return by what share of its time a generation differs between batches, one sigma.

    Differences are from the batch that is forecast, so what is unusual in it counts too. Where the spread
    of the lengths is assumed, batches of the spreads of other runs differ beside that.

    Args:
        slots: Most sequences that a replica decodes at a time.
        cache_tokens: Tokens that its KV cache holds; 0 if it has none.
    """
    if statistics.std_tokens == 0:
        return 0.0
    block = statistics.workload.samples_per_prompt
    wave = slots if waits(batching) else 0
    played = longest_shares(statistics, replicas, block, wave)
    width = _width(slots, cache_tokens, played[0])
    amounts = [_amounts(share, batching, width) for share in played]
    prices = _prices(clock, batching, width, amounts[0], len(played[0][0]))
    here = max(map(prices.seconds, amounts))

    def differ(batches: Iterable[tuple[Share, ...]]) -> float:
        """Return the mean square of the batches' differences, as shares of the time."""
        seconds = [
            max(prices.seconds(_amounts(share, batching, width)) for share in shares)
            for shares in batches
        ]
        return sum((each / here - 1) ** 2 for each in seconds) / max(1, len(seconds))

    numbers = range(OTHER_BATCHES)
    luck = differ(other_shares(statistics, replicas, block, wave, number) for number in numbers)
    assumed = differ(
        longest_shares(other, replicas, block, wave) for other in statistics.other_spreads
    )
    return math.sqrt(luck + assumed)


def _width(slots: int, cache_tokens: int, share: Share) -> int:
    """Return how many sequences run at a time, as far as slots and the KV cache let them."""
    prompts, responses = (np.asarray(tokens, dtype=np.float64) for tokens in share)
    width = min(slots, len(prompts))
    if not cache_tokens:
        return width
    held = float((responses * (prompts + responses / 2)).sum() / responses.sum())
    return max(1, min(width, int(cache_tokens / held)))


@lru_cache(maxsize=REMEMBERED_AMOUNTS)
def _amounts(share: Share, batching: Batching, width: int) -> ReplicaShare:
    prompts, responses = (np.asarray(tokens, dtype=np.float64) for tokens in share)
    reads = float((responses * (prompts + responses / 2)).sum())
    if waits(batching):
        steps = wave_tops(responses, width)
        if batching != "calls":  # padded to the longest, in prompts and in responses
            reads = width * float((steps * (wave_tops(prompts, width) + steps / 2)).sum())
        whole = float(steps.sum())
    else:
        whole = _steps(share[1], width)
    return ReplicaShare(whole, float(responses.sum()), reads, float(prompts.sum()))


def _steps(responses: tuple[int, ...], width: int) -> float:
    """Return the steps until the last response ends, each beginning when a slot is free."""
    ends = list(responses[:width])
    heapq.heapify(ends)
    for tokens in responses[width:]:
        heapq.heapreplace(ends, ends[0] + tokens)
    return float(max(ends))


def _prices(
    clock: StepPrices, batching: Batching, width: int, amounts: ReplicaShare, sequences: int
) -> Prices:
    """Return prices around the mean number of running sequences and of cached tokens."""
    if batching in ("static", "none"):
        cost = clock.decode if batching == "static" else clock.prefill
        mean = amounts.reads / amounts.steps / width
        each = (cost(width, 1.5 * mean) - cost(width, 0.5 * mean)) / mean
        return Prices(cost(width, mean) - each * mean, 0.0, each / width, 0.0)
    cached = amounts.reads / amounts.responses
    mean_prompt = amounts.prompts / sequences
    prompt = clock.prefill(PASS_PROMPTS, mean_prompt) / (PASS_PROMPTS * mean_prompt)
    running = max(1, round(amounts.responses / amounts.steps))
    whole = clock.decode(running, cached)
    read = (clock.decode(running, 1.5 * cached) - clock.decode(running, 0.5 * cached)) / (
        running * cached
    )
    half = max(1, running // 2)
    if running == half:
        return Prices(max(0.0, whole - read * cached), 0.0, read, prompt)
    response = (whole - clock.decode(half, cached)) / (running - half) - read * cached
    return Prices(whole - running * (response + read * cached), response, read, prompt)
