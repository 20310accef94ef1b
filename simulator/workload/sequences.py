"""How the sequences of an iteration are shared out, and how many tokens a micro-batch has.

Both ends of uneven lengths are modelled: padding to the longest of a micro-batch, and the data-
parallel rank that draws more than its share while all others wait.
"""

import math
from collections import OrderedDict
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from rlplan.estimate import largest_normal
from rlplan.models.operators import Batch
from rlplan.profiles.jobs.logged_lengths import other_spreads
from rlplan.simulator.workload.episodes import usual_episodes
from rlplan.simulator.workload.usual import Floats, evenly
from rlplan.workload.lengths import longest
from rlplan.workload.work import Workload

# Enough that the longest of a thousand is known within a few per cent.
DESCRIBED_SEQUENCES = 16384
REMEMBERED_WORKLOADS = 64
# Pairs prompts with responses, which have nothing to do with each other.
PAIR_SEED = 2

# Means of equal whole numbers come out a rounding error above them.
ROUNDING = 1e-6

Padding = Literal["none", "micro_batch", "batch", "limits"]


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
        following_tokens: Mean of what follows a prompt: the response and what environments add.
        following_std_tokens: Its standard deviation.
        longest_tokens: Longest sequence that can occur: what buffers are sized for.
        longest_prompt_tokens: Longest prompt that can occur.
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
            self._longest[key] = longest_of(self._ordered[what], count)
        return self._longest[key]


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


def micro_batch_of(statistics: LengthStatistics, sequences: int, padding: Padding) -> Batch:
    """Return the average micro-batch of so many sequences, with the padding that is computed."""
    if padding == "none":
        tokens = round(sequences * statistics.mean_tokens)
        each = round(statistics.rms_tokens)
    else:
        each = padded_tokens(statistics, sequences, padding)
        tokens = sequences * each
    return Batch(sequences=sequences, tokens=tokens, sequence_tokens=each, head_tokens=tokens)


def padded_tokens(statistics: LengthStatistics, sequences: int, padding: Padding) -> int:
    """Return the expected width in tokens of a micro-batch.

    Padded to the batch, it has room for the longest prompt and the longest response of all; to the limits, for
    the longest that there may be.
    """
    if padding == "limits":
        return statistics.longest_tokens
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
    have the same work.
    """
    if ranks == 1 or padding in {"batch", "limits"}:
        return 0.0
    if padding == "none":
        mean, deviation, draws = statistics.mean_tokens, statistics.std_tokens, sequences
    else:
        mean, deviation = statistics.longest_of(min(micro_batch, sequences))
        draws = -(-sequences // micro_batch)
    return largest_normal(ranks) * deviation / (mean * math.sqrt(draws))
