"""Which sequences fall to which generation replica, which replica may end last, and how far chance spreads that.

A forecast plays one usual batch. Other batches of the same workload are drawn, and their time is not
played but added up: a decode step costs a fixed part, a part for every running sequence, and a part
for every token that it reads, so a batch is its steps, its response tokens, the tokens that these
read, and its prompt tokens, each times its price. The prices are taken where the played batch spends
its time on average; only ratios between batches are used, so what they leave out cancels.
"""

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rlplan.simulator.environments import HostShare
from rlplan.simulator.generation.episodes import Episode, EpisodeShare, Turn
from rlplan.simulator.generation.replica import Batching
from rlplan.simulator.workload import Episodes, Floats, LengthStatistics, evenly, usual_episodes
from rlplan.workload import Workload

ORDER_SEED = 0
# Shares of 16,384 sequences take a megabyte, and a job asks for a dozen, by its numbers of replicas.
REMEMBERED_SHARES = 128
REMEMBERED_DRAWS = 64

# Fewer sequences are drawn: a longest of 64 that stands for its 64th of the distribution is a sixth longer than
# the longest of 64 is on average, where responses have a tail that is cut.
DRAWN_BELOW_SEQUENCES = 512
DRAWS = 128
# What is waited for decides a small batch's time more than its tokens do.
WAITING_WEIGHT = 10.0

# Prompt tokens and response tokens by sequence, in the order of their admission.
Share = tuple[tuple[int, ...], tuple[int, ...]]


@lru_cache(maxsize=REMEMBERED_SHARES)
def longest_shares(
    statistics: LengthStatistics, replicas: int, block: int, wave: int = 0
) -> tuple[Share, ...]:
    """Return the shares of the replicas that may end last in a usual batch.

    The batch holds each length as often as the distribution has it, in an order that is the same for
    every layout and on any machine. Where it is small, the one longest response that stands for the tail is
    much of its time, and so is its place; then the usual one of many drawn batches is taken.

    Args:
        block: Samples of one prompt, which follow one another.
        wave: Sequences that begin together and wait for their longest response; 0 where they do not.
    """
    prompts, responses = _usual_batch(statistics, replicas, wave, np.random.default_rng(ORDER_SEED))
    return _last(prompts, responses, replicas, block, wave)


def _usual_batch(
    statistics: LengthStatistics, replicas: int, wave: int, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return prompts and responses of a usual batch in tokens, as `longest_shares` says it."""
    if statistics.workload.sequences < DRAWN_BELOW_SEQUENCES:
        return _usual_draw(statistics, replicas, wave)
    return evenly_spread(statistics.workload, generator)


def evenly_spread(workload: Workload, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Return prompts and responses in tokens, each length as often as its distribution has it."""
    prompts = generator.permutation(evenly(workload.prompt_tokens, workload.prompts))
    return prompts, generator.permutation(evenly(workload.response_tokens, workload.sequences))


def _usual_draw(statistics: LengthStatistics, replicas: int, wave: int) -> tuple[Floats, Floats]:
    """Return prompts and responses in tokens of the drawn batch that is nearest to the average of them all.

    Batches are compared by all their tokens, and by what is waited for: the longest response, or the
    replica's sum of the longest of its waves.
    """
    prompts, responses = _draws(statistics)
    amounts = np.stack(
        [responses.sum(axis=1), prompts.sum(axis=1), _waited_for(responses, replicas, wave)]
    )
    usual = amounts.mean(axis=1, keepdims=True)
    weights = np.array([[1.0], [1.0], [WAITING_WEIGHT]])
    apart = (weights * (amounts / usual - 1) ** 2).sum(axis=0)
    nearest = int(np.argmin(apart))
    return prompts[nearest], responses[nearest]


@lru_cache(maxsize=REMEMBERED_DRAWS)
def _draws(statistics: LengthStatistics) -> tuple[Floats, Floats]:
    """Return prompts and responses of drawn batches in tokens. Shapes (DRAWS, prompts), (DRAWS, sequences)."""
    workload, generator = statistics.workload, np.random.default_rng(ORDER_SEED)
    prompts = generator.choice(statistics.ordered("prompts"), (DRAWS, workload.prompts))
    responses = generator.choice(statistics.ordered("responses"), (DRAWS, workload.sequences))
    return prompts, responses


def _waited_for(responses: Floats, replicas: int, wave: int) -> Floats:
    """Return how many steps the replica of most of them takes, by batch. Shape (DRAWS,)."""
    if not wave:
        return np.asarray(responses.max(axis=1))
    steps = [
        np.maximum.reduceat(responses[:, rows], np.arange(0, rows.size, wave), axis=1).sum(axis=1)
        for rows in _replicas_rows(responses.shape[1], replicas)
    ]
    return np.asarray(np.max(steps, axis=0))


@lru_cache(maxsize=REMEMBERED_SHARES)
def other_shares(
    statistics: LengthStatistics, replicas: int, block: int, wave: int, number: int
) -> tuple[Share, ...]:
    """Return the shares of the replicas that may end last in another batch of the same workload.

    Args:
        number: Which other batch, from 0; the same one is the same on any machine.
    """
    workload = statistics.workload
    generator = np.random.default_rng(number)
    prompts = generator.choice(statistics.ordered("prompts"), workload.prompts)
    responses = generator.choice(statistics.ordered("responses"), workload.sequences)
    return _last(prompts, responses, replicas, block, wave)


@lru_cache(maxsize=REMEMBERED_SHARES)
def longest_episodes(
    statistics: LengthStatistics, replicas: int, samples: int, host: HostShare
) -> tuple[EpisodeShare, ...]:
    """Return the episodes of the replicas that may end last in a usual batch.

    Prompts and responses are those of `longest_shares`.

    Args:
        samples: Of one prompt, which follow one another.
        host: What each replica has of it.
    """
    workload = statistics.workload
    generator = np.random.default_rng(ORDER_SEED)
    each, responses = _usual_batch(statistics, replicas, 0, generator)
    prompts = np.repeat(each, samples)
    drawn = usual_episodes(workload.environments, workload.prompts, samples, generator)
    rows_of = _replicas_rows(len(prompts), replicas)
    tokens, outside = prompts + responses + drawn.observed_tokens, drawn.outside_seconds
    amounts = (
        [tokens[rows].sum() for rows in rows_of],
        [responses[rows].max() for rows in rows_of],
        [outside[rows].max() for rows in rows_of],
    )
    last = {int(np.argmax(each)) for each in amounts}
    return tuple(
        EpisodeShare(
            tuple(
                episode_of(
                    drawn, int(row), int(prompts[row]), int(responses[row]), samples, workload
                )
                for row in rows_of[number]
            ),
            host,
            workload.environments[0].inference == "inline",
        )
        for number in sorted(last)
    )


def episode_of(
    drawn: Episodes, row: int, prompt: int, response: int, samples: int, workload: Workload
) -> Episode:
    """Return a drawn episode whose turns share its response evenly, as far as the limit of all tokens lets it go on."""
    first = drawn.first[row]
    count = min(int(drawn.turns[row]), response)
    last = drawn.first[row + 1] - 1
    left = workload.longest_sequence_tokens - prompt
    turns: list[Turn] = []
    for turn in range(count):
        tokens = response // count + (turn < response % count)
        ends = turn + 1 == count or left <= tokens + drawn.observation_tokens[first + turn]
        step = last if ends else first + turn
        seconds, added = float(drawn.step_seconds[step]), int(drawn.observation_tokens[step])
        turns.append(Turn(max(1, min(tokens, left)), seconds, added))
        left -= tokens + added
        if ends:
            break
    reset = float(drawn.reset_seconds[row])
    return Episode(row // samples, prompt, int(drawn.environment[row]), reset, tuple(turns))


def _last(
    each: Floats, responses: Floats, replicas: int, block: int, wave: int
) -> tuple[Share, ...]:
    """Return the shares with most tokens and with the longest response, or with the longest waves.

    Replicas get runs of equal numbers, or of one more on the first ones; the samples of a prompt follow one
    another.
    """
    prompts = np.repeat(each, block)
    rows_of = _replicas_rows(len(prompts), replicas)
    if wave:
        last = [max(rows_of, key=lambda rows: float(wave_tops(responses[rows], wave).sum()))]
    else:
        fullest = max(rows_of, key=lambda rows: int(prompts[rows].sum() + responses[rows].sum()))
        longest = max(rows_of, key=lambda rows: int(responses[rows].max()))
        last = [fullest] if np.array_equal(fullest, longest) else [fullest, longest]
    return tuple((_whole(prompts[rows]), _whole(responses[rows])) for rows in last)


def first_shares(
    statistics: LengthStatistics, replicas: int, block: int, most: int
) -> tuple[Share, ...]:
    """Return the shares of the first replicas of a usual batch, with whole prompts' samples together.

    Args:
        block: Samples of one prompt, which follow one another.
        most: Sequences, from which on fewer replicas stand for all.
    """
    workload = statistics.workload
    prompts, responses = evenly_spread(workload, np.random.default_rng(ORDER_SEED))
    return tuple(
        (_whole(prompts[rows // block]), _whole(responses[rows]))
        for rows in first_replicas_rows(workload.sequences, replicas, block, most)
    )


def first_replicas_rows(
    sequences: int, replicas: int, block: int, most: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the rows of the first replicas that stand for all, as `first_shares` takes them."""
    count = 0
    for rows in _replicas_rows(sequences, replicas):
        if count >= most and count % block == 0:
            return
        yield rows
        count += len(rows)


def _replicas_rows(sequences: int, replicas: int) -> list[npt.NDArray[np.int64]]:
    return [rows for rows in np.array_split(np.arange(sequences), replicas) if rows.size]


def _whole(tokens: Floats) -> tuple[int, ...]:
    return tuple(tokens.astype(np.int64).tolist())


def waits(batching: Batching) -> bool:
    """Tell whether sequences begin only when all before them have ended."""
    return batching in ("calls", "static", "none")


def wave_tops(tokens: Floats, wave: int) -> Floats:
    """Return the most tokens in each wave of sequences. Shape (waves,)."""
    return np.asarray(np.maximum.reduceat(tokens, np.arange(0, len(tokens), wave)))


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
    batches: int = 1,
) -> float:
    """Return by what share of its time a generation differs between batches, or their mean from it, one sigma.

    Differences are from the batch that is forecast, so what is unusual in it counts too. Where the spread
    of the lengths is assumed, batches of the spreads of other runs differ beside that.

    Args:
        slots: Most sequences that a replica decodes at a time.
        cache_tokens: Tokens that its KV cache holds; 0 if it has none.
        batches: Whose mean it is of. How they are spread averages out; how far the batch that is forecast lies from their
            mean does not, nor does what is assumed of lengths. That distance is known from few batches: of its square, their
            mean's own variance is no part.
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

    def differ(drawn: Iterable[tuple[Share, ...]], of: int = 1) -> float:
        """Return the mean square of the difference of a mean of so many batches, as shares of the time."""
        seconds = [
            max(prices.seconds(_amounts(share, batching, width)) for share in shares)
            for shares in drawn
        ]
        square = sum((each / here - 1) ** 2 for each in seconds) / max(1, len(seconds))
        if of == 1:
            return square
        bias = (sum(each / here - 1 for each in seconds) / max(1, len(seconds))) ** 2
        variance = max(0.0, square - bias) * len(seconds) / max(1, len(seconds) - 1)
        return min(square, max(0.0, bias - variance / len(seconds)) + variance / of)

    numbers = range(OTHER_BATCHES)
    luck = differ(
        (other_shares(statistics, replicas, block, wave, number) for number in numbers), batches
    )
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
