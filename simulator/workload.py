"""How the sequences of an iteration are shared out, and what micro-batches they make.

It knows no device and prices nothing.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from rlplan.dataflow import Task
from rlplan.errors import MissingFactError
from rlplan.estimate import largest_normal
from rlplan.job import Job
from rlplan.models import Batch, ModelArchitecture
from rlplan.profiles.analytic.normal import normal_quantiles
from rlplan.profiles.analytic.ordered import quantile_of
from rlplan.profiles.jobs.logged_lengths import other_spreads
from rlplan.sheets import EngineSheet
from rlplan.workload import (
    Empirical,
    EmpiricalSeconds,
    Environment,
    Lengths,
    Lognormal,
    PromptImages,
    PromptSounds,
    Seconds,
    Uniform,
    UniformSeconds,
    Workload,
    log_moments,
    log_normal_of,
    longest,
)

Floats = npt.NDArray[np.float64]
Complexes = npt.NDArray[np.complex128]
# What prompts hold beside text.
Held = Literal["images", "sounds"]


def evenly(lengths: Lengths, count: int) -> Floats:
    """Return `count` lengths in tokens, one of each `count`-th of the distribution, in order.

    No luck is in their mean, spread and tail, as it is in as many drawn ones. Shape (count,).
    """
    shares = (np.arange(count) + 0.5) / count
    if isinstance(lengths, int):
        return np.full(count, float(lengths))
    if isinstance(lengths, Uniform):
        return np.floor(lengths.low + shares * (lengths.high - lengths.low + 1))
    if isinstance(lengths, Lognormal):
        centre, width = log_moments(lengths.mean, lengths.std)
        drawn = np.minimum(shares / (1 - (lengths.at_max or 0.0)), 1.0)  # what is left is `max`
        found = np.exp(centre + width * normal_quantiles(drawn))
        return np.asarray(np.clip(np.round(found), 1, lengths.max), dtype=np.float64)
    assert isinstance(lengths, Empirical), "a trace is resolved before use"
    return _at_shares(lengths.values, shares)


def _at_shares(values: Sequence[float], shares: Floats) -> Floats:
    """Return the observed values at shares of their order. Same shape as `shares`."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    return np.asarray(ordered[(shares * len(ordered)).astype(np.int64)])


def seconds_evenly(seconds: Seconds, count: int, most: float | None = None) -> Floats:
    """Return `count` times in seconds, one of each `count`-th of the distribution, in order. Shape (count,).

    Args:
        most: A limit after which each is broken off.
    """
    shares = (np.arange(count) + 0.5) / count
    if isinstance(seconds, int | float):
        found = np.full(count, float(seconds))
    elif isinstance(seconds, UniformSeconds):
        found = seconds.low + shares * (seconds.high - seconds.low)
    elif isinstance(seconds, EmpiricalSeconds):
        found = _at_shares(seconds.values, shares)
    else:
        centre, width = log_normal_of(seconds)
        found = np.exp(centre + width * normal_quantiles(shares))
        found = np.minimum(found, math.inf if seconds.max is None else seconds.max)
    return np.asarray(np.minimum(found, math.inf if most is None else most), dtype=np.float64)


Ints = npt.NDArray[np.int64]

# Quantiles of each distribution from which random values are drawn: one in ten thousand is among them.
RANDOM_VALUES = 16384


@dataclass(frozen=True, slots=True, eq=False)
class Episodes:
    """Hold the episodes of a batch.

    Attributes:
        environment: Index of each one's environment. Shape (episodes,).
        turns: Of each. Shape (episodes,).
        first: Where the steps of each begin, and the end of all. Shape (episodes + 1,).
        step_seconds: Of every step, an episode's one after another. Shape (steps,).
        observation_tokens: That every step adds; none behind a last turn. Shape (steps,).
        reset_seconds: Of each episode. Shape (episodes,).
    """

    environment: Ints
    turns: Ints
    first: Ints
    step_seconds: Floats
    observation_tokens: Ints
    reset_seconds: Floats

    @property
    def observed_tokens(self) -> Ints:
        """Return the tokens that observations add to each episode. Shape (episodes,)."""
        return np.add.reduceat(self.observation_tokens, self.first[:-1])

    @property
    def outside_seconds(self) -> Floats:
        """Return the seconds of each in its environment if cores were always free. Shape (episodes,)."""
        return np.add.reduceat(self.step_seconds, self.first[:-1]) + self.reset_seconds


class BatchSampler:
    """Sample lengths and times of a batch: evenly spaced quantiles in random order, or independent random values.

    Args:
        generator: Of the order, and so of which values come together.
        at_random: Whether values are drawn independently.
    """

    def __init__(self, generator: np.random.Generator, *, at_random: bool = False) -> None:
        self.generator, self.at_random = generator, at_random

    def lengths(self, lengths: Lengths, count: int) -> Ints:
        """Return `count` lengths in tokens, or turns. Shape (count,)."""
        found = self._order(evenly(lengths, RANDOM_VALUES if self.at_random else count), count)
        return found.astype(np.int64)

    def seconds(self, seconds: Seconds, count: int, most: float | None = None) -> Floats:
        """Return `count` times in seconds. Shape (count,).

        Args:
            most: Limit at which each is cut off.
        """
        values = seconds_evenly(seconds, RANDOM_VALUES if self.at_random else count, most)
        return self._order(values, count)

    def _order(self, values: Floats, count: int) -> Floats:
        if self.at_random:
            return self.generator.choice(values, count)
        return self.generator.permutation(values)


def usual_episodes(
    environments: Sequence[Environment],
    prompts: int,
    samples: int,
    generator: np.random.Generator,
) -> Episodes:
    """Return the episodes of a batch whose lengths and times are evenly spaced quantiles of their distributions.

    Args:
        samples: Episodes in a row that begin with one prompt.
    """
    return drawn_episodes(environments, prompts, samples, BatchSampler(generator))


def drawn_episodes(
    environments: Sequence[Environment], prompts: int, samples: int, sampler: BatchSampler
) -> Episodes:
    """Return the episodes of a batch, whose environments share the prompts out.

    Args:
        samples: Episodes in a row that begin with one prompt.
    """
    bounds = np.rint(np.cumsum([each.share for each in environments]) * prompts).astype(np.int64)
    bounds[-1] = prompts
    kinds = np.searchsorted(bounds, np.arange(prompts), side="right")
    environment = np.repeat(sampler.generator.permutation(kinds), samples)
    turns = np.empty(len(environment), dtype=np.int64)
    resets = np.empty(len(environment))
    for index, each in enumerate(environments):
        here = environment == index
        count = int(here.sum())
        turns[here] = sampler.lengths(each.turns, count)
        resets[here] = sampler.seconds(each.reset_seconds, count)
    first = np.concatenate([[0], np.cumsum(turns)])
    seconds, tokens = np.zeros(first[-1]), np.zeros(first[-1], dtype=np.int64)
    of_step, last = np.repeat(environment, turns), np.zeros(first[-1], dtype=bool)
    last[first[1:] - 1] = True
    for index, each in enumerate(environments):
        between, final = (of_step == index) & ~last, (of_step == index) & last
        limit, count = each.step_limit_seconds, int(between.sum())
        seconds[between] = sampler.seconds(each.step_seconds, count, limit)
        judging = each.step_seconds if each.final_step_seconds is None else each.final_step_seconds
        seconds[final] = sampler.seconds(judging, int(final.sum()), limit)
        if each.observation_tokens is not None:
            tokens[between] = sampler.lengths(each.observation_tokens, count)
    return Episodes(environment, turns, first, seconds, tokens, resets)


def longest_seconds_luck(workload: Workload, batches: int) -> tuple[float, float]:
    """Return what the longest episode of a usual batch spends in its environment, and how far other batches differ.

    Args:
        batches: Others that are drawn, with fixed seeds.

    Returns:
        Seconds, and the root of their differences' mean square.
    """
    environments, samples = workload.environments, workload.samples_per_prompt

    def longest(sampler: BatchSampler) -> float:
        drawn = drawn_episodes(environments, workload.prompts, samples, sampler)
        return float(drawn.outside_seconds.max())

    usual = longest(BatchSampler(np.random.default_rng(0)))
    others = [
        longest(BatchSampler(np.random.default_rng(number), at_random=True))
        for number in range(batches)
    ]
    return usual, float(np.sqrt(np.mean((np.array(others) - usual) ** 2)))


# Enough that the longest of a thousand is known within a few per cent.
DESCRIBED_SEQUENCES = 16384
REMEMBERED_WORKLOADS = 64
# Lengths that stand for generated responses and texts together.
MIXED_LENGTHS = 1024
# Seed of the random pairing of prompts and responses, which are independent.
PAIR_SEED = 2

# Means of equal whole numbers come out a rounding error above them.
ROUNDING = 1e-6

Padding = Literal["none", "micro_batch", "rank", "longest", "batch", "limits"]
PADDED_ALIKE = ("longest", "batch", "limits")  # all ranks pad to one width


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLengths(Empirical):
    """Draw lengths of several kinds, where all responses of a batch are of one kind.

    Attributes:
        kinds: Share of the batches, and their lengths.
    """

    kinds: tuple[tuple[float, Lengths], ...]


class LengthStatistics:
    """Hold what costs need to know of the lengths of prompts and responses.

    Attributes:
        workload: Whose lengths they are.
        prompt_tokens: Mean prompt length.
        response_tokens: Mean response length.
        mean_tokens: Mean length of prompt and response together.
        rms_tokens: Root of its mean square: the length whose attention costs the average.
        std_tokens: Its standard deviation.
        prompt_std_tokens: Standard deviation of prompt lengths.
        prompt_rms_tokens: Root of their mean square.
        following_tokens: Mean of what follows a prompt: the response and what environments add.
        following_std_tokens: Its standard deviation.
        longest_tokens: Longest sequence that can occur: what buffers are sized for.
        longest_prompt_tokens: Longest prompt that can occur.
        kinds: Of batches that are of one kind each, their share and statistics; none where all are alike.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        prompts = evenly(workload.prompt_tokens, DESCRIBED_SEQUENCES)
        responses = evenly(workload.response_tokens, DESCRIBED_SEQUENCES)
        pairs = np.random.default_rng(PAIR_SEED).permutation(DESCRIBED_SEQUENCES)
        following = responses + _observed(workload)
        whole = np.minimum(prompts + following[pairs], workload.longest_sequence_tokens)
        self.prompt_tokens = float(prompts.mean())
        self.response_tokens = float(responses.mean())
        self.mean_tokens = float(whole.mean())
        self.rms_tokens = math.sqrt(float(np.mean(whole**2)))
        self.std_tokens = float(whole.std())
        self.prompt_std_tokens = float(prompts.std())
        self.prompt_rms_tokens = math.sqrt(float(np.mean(prompts**2)))
        self.following_tokens = float(following.mean())
        self.following_std_tokens = float(following.std())
        self.longest_tokens = workload.longest_sequence_tokens
        self.longest_prompt_tokens = longest(workload.prompt_tokens)
        self._ordered = {
            "whole": np.sort(whole),
            "prompts": prompts,
            "responses": responses,
        }
        self._longest: dict[tuple[str, int], tuple[float, float]] = {}
        given = workload.response_tokens
        kinds = given.kinds if isinstance(given, MixedLengths) else ()
        self.kinds = tuple(
            (share, LengthStatistics(replace(workload, response_tokens=each)))
            for share, each in kinds
        )

    @cached_property
    def other_spreads(self) -> tuple["LengthStatistics", ...]:
        """Return the same with responses spread as in other published runs; none if it is not assumed."""
        others = other_spreads(self.workload.response_tokens)
        return tuple(
            LengthStatistics(replace(self.workload, response_tokens=other)) for other in others
        )

    def ordered(self, what: str) -> Floats:
        """Return lengths in tokens that stand for the distribution, in order. Shape (lengths,).

        Args:
            what: `whole` sequences, `prompts` or `responses`.
        """
        return self._ordered[what]

    def longest_of(self, count: int, what: str = "whole") -> tuple[float, float]:
        """Return mean and standard deviation of the longest of `count` sequences, in tokens.

        Args:
            what: `whole` sequences, `prompts` or `responses`.
        """
        key = (what, count)
        if key not in self._longest:
            self._longest[key] = self._longest_of(count, what)
        return self._longest[key]

    def _longest_of(self, count: int, what: str) -> tuple[float, float]:
        if not self.kinds:
            return longest_of(self._ordered[what], count)
        found = [(share, *each.longest_of(count, what)) for share, each in self.kinds]
        mean = sum(share * each for share, each, _ in found)
        squares = sum(share * (each**2 + deviation**2) for share, each, deviation in found)
        return mean, math.sqrt(max(0.0, squares - mean**2))


def _observed(workload: Workload) -> Floats | float:
    """Return tokens that environments add to sequences, in any order. Shape (DESCRIBED_SEQUENCES,)."""
    if not workload.environments:
        return 0.0
    generator = np.random.default_rng(PAIR_SEED)
    episodes = usual_episodes(workload.environments, DESCRIBED_SEQUENCES, 1, generator)
    return episodes.observed_tokens.astype(np.float64)


def longest_of(ordered: Floats, count: int) -> tuple[float, float]:
    """Return mean and standard deviation of the longest of `count` draws from ordered lengths.

    The i-th of n is the longest of c with weight (i^c - (i - 1)^c) / n^c. Sums are of what is beyond the shortest:
    of equal lengths the deviation is exactly 0, however a processor rounds.
    """
    beyond = ordered - ordered[0]
    weights = np.diff((np.arange(len(ordered) + 1) / len(ordered)) ** count)
    mean = float(weights @ beyond)
    deviation = math.sqrt(max(0.0, float(weights @ (beyond - mean) ** 2)))
    return float(ordered[0]) + mean, deviation


_known: OrderedDict[int, LengthStatistics] = OrderedDict()


def statistics_of(workload: Workload) -> LengthStatistics:
    """Return the length statistics of a workload, taken once.

    Remembered by identity: hashing the thousands of lengths of a trace would cost more than a
    task's whole forecast.
    """
    found = _known.get(id(workload))  # the statistics keep the workload, so its id stays its own
    if found is None:
        found = _known[id(workload)] = LengthStatistics(workload)
        if len(_known) > REMEMBERED_WORKLOADS:
            _known.popitem(last=False)
    return found


def learnt_work(work: Workload) -> Workload:
    """Return the work as tasks have it that do not generate: some of its responses are texts with lengths of their own."""
    if work.texts is None or work.texts.response_tokens is None:
        return work
    return _mixed(work)


@lru_cache(maxsize=REMEMBERED_WORKLOADS)
def _mixed(work: Workload) -> Workload:
    """Return work whose responses are generated ones and texts, each as often as its share; the longest of both occur."""
    texts = work.texts
    assert texts is not None
    assert texts.response_tokens is not None
    kinds = ((1 - texts.share, work.response_tokens), (texts.share, texts.response_tokens))
    alike = replace(texts, response_tokens=None)
    return replace(work, response_tokens=_mixture(kinds), texts=alike)


def _mixture(kinds: tuple[tuple[float, Lengths], ...]) -> MixedLengths:
    """Return lengths of two kinds, each as often as its share; the longest of both occur."""
    (_, own), (share, other) = kinds
    count = min(MIXED_LENGTHS - 1, max(1, round(share * MIXED_LENGTHS)))
    mixed: list[int] = []
    for lengths, each in ((own, MIXED_LENGTHS - count), (other, count)):
        values = evenly(lengths, each).round().astype(int).tolist()
        mixed += [*values[:-1], longest(lengths)]
    return MixedLengths(values=tuple(mixed), kinds=kinds)


def micro_batch_of(
    statistics: LengthStatistics, sequences: int, padding: Padding, local: int = 0
) -> Batch:
    """Return the average micro-batch of so many sequences, with the padding that is computed.

    Of kinds that are padded for themselves, its length is the root of the mean square of their widths, as attention costs.

    Args:
        local: Sequences that a rank passes over with it, among which the longest is where it pads to that.
    """
    if padding == "none":
        tokens = round(sequences * statistics.mean_tokens)
        each = round(statistics.rms_tokens)
    else:
        among = max(sequences, local) if padding == "rank" else sequences
        each = padded_tokens(statistics, among, padding)
        tokens = sequences * each
        if statistics.kinds and padding != "limits":
            widths = [
                (share, padded_tokens(kind, among, padding)) for share, kind in statistics.kinds
            ]
            each = round(math.sqrt(sum(share * width**2 for share, width in widths)))
    return Batch(sequences=sequences, tokens=tokens, sequence_tokens=each, head_tokens=tokens)


def padded_tokens(statistics: LengthStatistics, sequences: int, padding: Padding) -> int:
    """Return the expected width in tokens of micro-batches that are as wide as the longest of so many sequences.

    Padded to the longest, it is as wide as that of a step's batch; to the batch, it has room for the longest prompt and the
    longest response of all; to the limits, for the longest that there may be.
    """
    if padding == "limits":
        return statistics.longest_tokens
    if padding == "longest":
        sequences = statistics.workload.sequences
    if padding == "batch":
        work = statistics.workload
        prompt, _ = statistics.longest_of(work.prompts, "prompts")
        response, _ = statistics.longest_of(work.sequences, "responses")
        return math.ceil(prompt + response - ROUNDING)
    return math.ceil(statistics.longest_of(sequences)[0] - ROUNDING)


def micro_batches(sequences: int, micro_batch: int) -> tuple[tuple[int, int], ...]:
    """Return pairs of (sequences, how many micro-batches have so many); the last may be smaller."""
    full, rest = divmod(sequences, micro_batch)
    pairs = ((micro_batch, full), (rest, 1))
    return tuple((size, count) for size, count in pairs if size and count)


def straggler_fraction(
    statistics: LengthStatistics,
    sequences: int,
    micro_batch: int,
    ranks: int,
    padding: Padding,
) -> float:
    """Return how much longer than the mean the fullest of `ranks` data-parallel ranks works.

    The work of a rank is a sum of independent lengths, so nearly normal. Ranks that pad to the same width
    have the same work; where each pads to the longest of its own, none is longer than a sequence may be.
    """
    if ranks == 1 or padding in PADDED_ALIKE:
        return 0.0
    if padding == "rank":
        mean, deviation = statistics.longest_of(sequences)
        widest = min(largest_normal(ranks) * deviation, statistics.longest_tokens - mean)
        return max(0.0, widest) / mean
    if padding == "none":
        mean, deviation, draws = statistics.mean_tokens, statistics.std_tokens, sequences
    else:
        mean, deviation = statistics.longest_of(min(micro_batch, sequences))
        draws = -(-sequences // micro_batch)
    return largest_normal(ranks) * deviation / (mean * math.sqrt(draws))


def computed_batch(
    engine: EngineSheet, statistics: LengthStatistics, sequences: int, local: int = 0
) -> Batch:
    """Return the average micro-batch of so many sequences, in tokens as the engine computes them.

    Where k samples share a prompt of p tokens, linear layers have (k - 1) p tokens fewer, and where attention shares it
    too that has (k - 1) p^2 / 2 fewer pairs of a query and a key; under windows, which see less of a long prompt,
    it has fewer still. Without sharing attention, the last token of a prompt is each sample's own. Engines that pad make
    a row of each prompt with its samples, all as long as the longest.

    Args:
        local: As `micro_batch_of` has it.
    """
    samples = samples_sharing(engine, statistics.workload)
    if samples == 1:
        return micro_batch_of(statistics, sequences, engine.padding, local)
    batch = micro_batch_of(statistics, sequences, "none")
    prompts = prompts_held(sequences, samples)
    copies = sequences - prompts
    spared = statistics.prompt_tokens - (0 if engine.shares_attention else 1)
    tokens = batch.tokens - round(copies * spared)
    if engine.padding != "none":
        tokens = math.ceil(prompts * widest_row(statistics, sequences, samples) - ROUNDING)
    each = batch.sequence_tokens
    if engine.shares_attention:
        pairs = statistics.rms_tokens**2 - copies / sequences * statistics.prompt_rms_tokens**2
        each = max(1, round(math.sqrt(max(0.0, pairs))))
    return replace(batch, tokens=tokens, sequence_tokens=each, head_tokens=tokens)


def widest_row(statistics: LengthStatistics, sequences: int, samples: int) -> float:
    """Return the expected tokens of the longest row of a micro-batch whose rows are prompts, each with its samples.

    A row is a sum of many lengths, so nearly normal; of several kinds of batches it is the mean of theirs.
    """
    if statistics.kinds:
        kinds = statistics.kinds
        return sum(share * widest_row(kind, sequences, samples) for share, kind in kinds)
    rows = prompts_held(sequences, samples)
    each = sequences / rows
    mean = statistics.prompt_tokens + each * statistics.following_tokens
    deviation = math.hypot(
        statistics.prompt_std_tokens, math.sqrt(each) * statistics.following_std_tokens
    )
    widest = mean + (largest_normal(rows) * deviation if rows > 1 else 0.0)
    return min(widest, each * statistics.longest_tokens)


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


def least_shared_tokens(
    engine: EngineSheet, workload: Workload, sequences: int, prompt_tokens: int | None = None
) -> int:
    """Return the tokens that the longest micro-batch is spared for certain.

    That is none where neither the samples of a prompt nor the sequences of a micro-batch divide the
    other: prompts are then cut, and a micro-batch may hold pieces of many.

    Args:
        prompt_tokens: Of each of its prompts; None is the longest that there may be.
    """
    samples = samples_sharing(engine, workload)
    if sequences % samples and samples % sequences:
        return 0
    copies = sequences - prompts_held(sequences, samples)
    each = longest(workload.prompt_tokens) if prompt_tokens is None else prompt_tokens
    return copies * (each - (0 if engine.shares_attention else 1))


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
WRAPPED = 1e-13  # far below one pass of any run


def samples_in_budget(engine: EngineSheet, workload: Workload) -> int:
    """Return the samples of a prompt whose tokens count once in an engine's token budgets; 1 if each sample's do."""
    return workload.samples_per_prompt if engine.shares_attention else 1


def packed_sequences(token_budget: int, workload: Workload, samples: int = 1) -> int:
    """Return how many sequences of mean length a budget of tokens holds; one that is longer goes alone.

    Args:
        samples: Of a prompt, whose tokens count once for them.
    """
    statistics = statistics_of(workload)
    if samples == 1:
        return max(1, int(token_budget / statistics.mean_tokens))
    prompt = statistics.prompt_tokens
    following = max(1.0, statistics.mean_tokens - prompt)
    whole, left = divmod(token_budget, prompt + samples * following)
    more = max(0, int((left - prompt) / following))
    return max(1, int(whole) * samples + min(samples - 1, more))


def packed_waiting(
    statistics: LengthStatistics, token_budget: int, ranks: int, samples: int = 1
) -> float:
    """Return how much more tokens than the mean the fullest of `ranks` packed micro-batches has, as a fraction.

    Where the budget holds only one sequence, micro-batches differ as much as sequences do; where it holds many, all
    are nearly full.

    Args:
        samples: Of a prompt, whose tokens count once for them.
    """
    if ranks == 1:
        return 0.0
    tokens = _packed_tokens(statistics, token_budget, samples)
    most, _ = longest_of(tokens, ranks)
    return most / float(tokens.mean()) - 1


@lru_cache(maxsize=1024)
def fullest_tokens(statistics: LengthStatistics, sequences: int) -> int:
    """Return the tokens of the fullest packed micro-batch of a run, with this number of sequences in each.

    It is a quantile of the sum of that many lengths, which one micro-batch of the run is expected to exceed. The
    sum's distribution is that of one length convolved with itself (by `numpy.fft`). Responses are taken to grow
    (`RESPONSES_GROW`). Where micro-batches are of one kind each, it is that of the kind with most.
    """
    if statistics.kinds:
        return max(fullest_tokens(kind, sequences) for _, kind in statistics.kinds)
    longest_tokens = statistics.longest_tokens
    if sequences == 1:
        share = 1 - 1 / (RUN_STEPS * statistics.workload.sequences)
        return min(longest_tokens, math.ceil(quantile_of(_grown(statistics), share)))
    passes = RUN_STEPS * -(-statistics.workload.sequences // sequences)
    return min(sequences * longest_tokens, _sum_quantile(statistics, sequences, passes))


def _sum_quantile(statistics: LengthStatistics, sequences: int, passes: int) -> int:
    """Return the sum of so many lengths that one of `passes` sums is expected to pass."""
    lengths = _grown(statistics)
    if sequences > MOST_CONVOLVED:
        spread = largest_normal(passes) * math.sqrt(sequences) * float(lengths.std())
        return math.ceil(sequences * float(lengths.mean()) + spread)
    width = max(1.0, float(lengths.max()) / LENGTH_BINS)
    if lengths[0] == lengths[-1]:  # sums are as alike as they are: the bin behind theirs is beyond
        return math.ceil(float(sequences * round(float(lengths[0]) / width) + 1) * width)
    counts = np.bincount(np.rint(lengths / width).astype(np.int64))
    # Sums beyond `reach` have a chance of `WRAPPED` at most (Hoeffding 1963): where they are counted as small ones changes nothing.
    spread = (len(counts) - 1) * math.sqrt(sequences * math.log(1 / WRAPPED) / 2)
    reach = sequences * float(counts @ np.arange(len(counts))) / len(lengths) + spread
    size = 1 << math.ceil(math.log2(min(reach + 1, sequences * len(counts))))
    one = np.fft.rfft(counts / len(lengths), size)
    sums = np.clip(np.fft.irfft(to_the_power(one, sequences), size), 0.0, None)
    beyond = np.cumsum(sums[::-1])[::-1]
    return math.ceil(float(np.argmax(beyond <= 1 / passes)) * width)


def to_the_power(values: Complexes, power: int) -> Complexes:
    """Return values to a whole power, by squaring: numpy takes logarithms of powers from 100 on. Shape as `values`."""
    found: Complexes | None = None
    while power:
        if power % 2:
            found = values if found is None else found * values
        values, power = values * values, power // 2
    assert found is not None, "the power is one at least"
    return found


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
def _packed_tokens(statistics: LengthStatistics, token_budget: int, samples: int = 1) -> Floats:
    """Return the tokens of micro-batches, in order, that a usual batch is packed into. Shape (micro-batches,).

    By first fit, longest sequences first (Johnson 1973, "Near-Optimal Bin Packing Algorithms"), as
    frameworks' packers do. The one begun last is left out where there are others: it is not full only because
    nothing comes after it.

    Args:
        samples: Of a prompt, whose tokens count once for those in one micro-batch.
    """
    if samples > 1:
        held = _held_with_prompts(statistics, token_budget, samples)
    else:
        ordered = statistics.ordered("whole")
        places = (np.arange(PACKED_SEQUENCES) + 0.5) * len(ordered) / PACKED_SEQUENCES
        held = np.zeros(PACKED_SEQUENCES)
        for tokens in ordered[places.astype(np.int64)][::-1]:
            fits = held + tokens <= token_budget
            place = np.argmax(fits) if fits.any() else np.argmin(held)
            held[place] += tokens
    begun = held[held > 0]
    return np.sort(begun[: max(1, len(begun) - 1)])


def _held_with_prompts(statistics: LengthStatistics, token_budget: int, samples: int) -> Floats:
    """Return the tokens of micro-batches, those not begun included, where a prompt counts once in each.

    A sample goes to the first micro-batch that has room for what it adds, as frameworks' packers of trees do. Shape
    (sequences,).
    """
    work = statistics.workload
    trees = -(-PACKED_SEQUENCES // samples)
    generator = np.random.default_rng(PAIR_SEED)
    following = generator.permutation(evenly(work.response_tokens, trees * samples))
    if work.environments:
        following = following + generator.choice(_observed(work), size=len(following))
    prompts = evenly(work.prompt_tokens, trees)
    beyond = work.longest_sequence_tokens - np.repeat(prompts, samples)
    rows = np.sort(np.minimum(following, beyond).reshape(trees, samples), axis=1)[:, ::-1]
    held = np.zeros(trees * samples)
    for tree in np.argsort(-(prompts + rows.sum(axis=1)), kind="stable"):
        missing = np.full(len(held), prompts[tree])
        for tokens in rows[tree]:
            fits = held + missing + tokens <= token_budget
            place = np.argmax(fits) if fits.any() else np.argmin(held)
            held[place] += missing[place] + tokens
            missing[place] = 0.0
    return held


def held_by(
    workload: Workload, model: ModelArchitecture
) -> tuple[tuple[Held, PromptImages | PromptSounds], ...]:
    """Return what prompts hold that a tower of the model computes: images, clips of sound."""
    found: list[tuple[Held, PromptImages | PromptSounds]] = []
    if workload.images is not None and model.tower is not None:
        found.append(("images", workload.images))
    if workload.sounds is not None and model.sound is not None:
        found.append(("sounds", workload.sounds))
    return tuple(found)


def writing_of(task: Task, job: Job, replicas: int) -> int:
    """Return how many of a task's replicas share its sequences: of an engine's, without those that read prompts for others.

    Raises:
        MissingFactError: None is left that writes.
    """
    apart = job.prefill if task.generates else None
    if apart is None:
        return replicas
    if apart.replicas >= replicas:
        raise MissingFactError(
            f"prefill.replicas: {apart.replicas} of {replicas} replicas read prompts, and none is left to write: "
            "fewer of them, or a layout of generation with more replicas"
        )
    return replicas - apart.replicas
