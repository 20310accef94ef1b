"""Lengths of prompts and responses, in tokens: a number, a distribution, or a trace file."""

import math
import random
from dataclasses import dataclass
from typing import Annotated, Literal

from rlplan.files.limits import AtLeastOne, Positive
from rlplan.files.tags import Tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """Draw lengths whose logarithm is normal, cut off at `max`.

    Attributes:
        mean: Mean of the lengths before the cut.
        std: Standard deviation of the lengths before the cut.
        max: Longest length; longer draws become this long, as `max_new_tokens` makes them.
    """

    distribution: Literal["lognormal"] = "lognormal"
    mean: Positive
    std: Positive
    max: AtLeastOne


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Draw lengths evenly between `low` and `high`, both included."""

    distribution: Literal["uniform"] = "uniform"
    low: AtLeastOne
    high: AtLeastOne


@dataclass(frozen=True, slots=True, kw_only=True)
class Empirical:
    """Draw lengths from a list of observed ones, all equally likely."""

    distribution: Literal["empirical"] = "empirical"
    values: tuple[AtLeastOne, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """Name a CSV or JSONL file of observed lengths; it becomes `Empirical` when a job is resolved.

    Attributes:
        trace: Path, relative to the job's file.
        column: Column (CSV) or key (JSONL) that holds the lengths.
    """

    distribution: Literal["trace"] = "trace"
    trace: str
    column: str
    max: AtLeastOne | None = None


Distribution = Annotated[Lognormal | Uniform | Empirical | TraceFile, Tag("distribution")]
Lengths = AtLeastOne | Distribution


def sample_lengths(lengths: Lengths, count: int, seed: int) -> tuple[int, ...]:
    """Draw `count` lengths in tokens; the same seed gives the same lengths on any machine.

    Both readers of a plan draw from here, so the simulator and the executor mean the same workload.
    """
    if isinstance(lengths, int):
        return (lengths,) * count
    generator = random.Random(seed)
    if isinstance(lengths, Uniform):
        return tuple(generator.randint(lengths.low, lengths.high) for _ in range(count))
    if isinstance(lengths, Empirical):
        return tuple(generator.choices(lengths.values, k=count))
    if isinstance(lengths, Lognormal):
        variance = math.log1p((lengths.std / lengths.mean) ** 2)
        centre, width = math.log(lengths.mean) - variance / 2, math.sqrt(variance)
        draws = (generator.lognormvariate(centre, width) for _ in range(count))
        return tuple(min(max(round(draw), 1), lengths.max) for draw in draws)
    raise AssertionError(f"trace {lengths.trace} was not resolved before sampling")


def longest(lengths: Lengths) -> int:
    """Return the longest length in tokens that can occur: what buffers are sized for."""
    if isinstance(lengths, int):
        return lengths
    if isinstance(lengths, Uniform):
        return lengths.high
    if isinstance(lengths, Empirical):
        return max(lengths.values)
    if isinstance(lengths, Lognormal):
        return lengths.max
    raise AssertionError(f"trace {lengths.trace} was not resolved before use")


def mean_length(lengths: Lengths) -> float:
    """Return the expected length in tokens, the cut at the maximum included."""
    if isinstance(lengths, int):
        return float(lengths)
    if isinstance(lengths, Uniform):
        return (lengths.low + lengths.high) / 2
    if isinstance(lengths, Empirical):
        return sum(lengths.values) / len(lengths.values)
    if isinstance(lengths, Lognormal):
        return _mean_of_cut_lognormal(lengths)
    raise AssertionError(f"trace {lengths.trace} was not resolved before use")


def _mean_of_cut_lognormal(lengths: Lognormal) -> float:
    """Return E[min(X, max)] of a lognormal X, in closed form."""
    variance = math.log1p((lengths.std / lengths.mean) ** 2)
    width = math.sqrt(variance)
    centre = math.log(lengths.mean) - variance / 2
    cut = (math.log(lengths.max) - centre) / width
    below = lengths.mean * _normal_below(cut - width)
    return below + lengths.max * (1 - _normal_below(cut))


def _normal_below(quantile: float) -> float:
    return 0.5 * (1 + math.erf(quantile / math.sqrt(2)))
