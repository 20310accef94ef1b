"""Lengths of prompts and responses, in tokens: a number, a distribution, a log's figures, or a trace file."""

import math
import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

from rlplan.files.limits import AtLeastOne, Positive, Share
from rlplan.files.tags import Tag
from rlplan.workload.lognormal import cut_mean, log_moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """Draw lengths whose logarithm is normal, cut off at `max`.

    Attributes:
        mean: Mean of the lengths before the cut.
        std: Standard deviation of the lengths before the cut.
        max: Longest length; longer draws become this long, as `max_new_tokens` makes them.
        at_max: Share of lengths that are `max` whatever else is drawn, as those of responses that never
            end; None for none.
        assumed: What of it the job did not say, and where that is from; None where all was said.
    """

    distribution: Literal["lognormal"] = "lognormal"
    mean: Positive
    std: Positive
    max: AtLeastOne
    at_max: Share | None = None
    assumed: str | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Give lengths as a framework's log prints them; they become `Lognormal` when a job is resolved.

    Attributes:
        mean: Mean as it is printed, of lengths that were cut at `max`.
        max: Longest length that the engine allows; None takes what the job's `max_total_tokens` leaves.
        clip_ratio: Share of the lengths that reach `max`, as verl prints it; None where it is not known.
        std: Standard deviation as it would be printed, of lengths that were cut; None where it is not
            known. Without either the spread is that of published runs.
        mean_at_end: Mean at the end of training where lengths grow, evenly, from `mean`.
        training_share: Of a training whose lengths grow, how much is done at the step that is meant;
            None means a step of the mean length over training.
    """

    distribution: Literal["logged"] = "logged"
    mean: Positive
    max: AtLeastOne | None = None
    clip_ratio: Share | None = None
    std: Positive | None = None
    mean_at_end: Positive | None = None
    training_share: Share | None = None


Distribution = Annotated[Lognormal | Uniform | Empirical | Logged | TraceFile, Tag("distribution")]
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
        centre, width = log_moments(lengths.mean, lengths.std)
        draws = [generator.lognormvariate(centre, width) for _ in range(count)]
        if lengths.at_max:
            draws = [math.inf if generator.random() < lengths.at_max else draw for draw in draws]
        return tuple(max(round(min(draw, lengths.max)), 1) for draw in draws)
    raise _unresolved(lengths)


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
    raise _unresolved(lengths)


def mean_length(lengths: Lengths) -> float:
    """Return the expected length in tokens, the cut at the maximum included."""
    if isinstance(lengths, int):
        return float(lengths)
    if isinstance(lengths, Uniform):
        return (lengths.low + lengths.high) / 2
    if isinstance(lengths, Empirical):
        return sum(lengths.values) / len(lengths.values)
    if isinstance(lengths, Lognormal):
        others = cut_mean(*log_moments(lengths.mean, lengths.std), lengths.max)
        return others + (lengths.at_max or 0.0) * (lengths.max - others)
    raise _unresolved(lengths)


def _unresolved(lengths: Logged | TraceFile) -> AssertionError:
    return AssertionError(f"the job was not resolved: {lengths}")


def with_mean(lengths: Lengths, mean: float) -> Lengths:
    """Return lengths of the same kind whose mean, after the cut at the maximum, is that many tokens.

    A mean beyond the maximum takes the maximum along.
    """
    if isinstance(lengths, int):
        return max(1, round(mean))
    factor = mean / mean_length(lengths)
    if isinstance(lengths, Uniform):
        low, high = max(1, round(lengths.low * factor)), max(1, round(lengths.high * factor))
        return replace(lengths, low=low, high=high)
    if isinstance(lengths, Empirical):
        values = tuple(max(1, round(each * factor)) for each in lengths.values)
        return replace(lengths, values=values)
    assert isinstance(lengths, Lognormal), "traces are resolved before"
    highest = max(lengths.max, math.ceil(mean))
    low_factor, high_factor = 0.0, 2.0
    scaled = partial(_scaled_lognormal, lengths, highest)
    while mean_length(scaled(high_factor)) < mean and high_factor < LARGEST_FACTOR:
        high_factor *= 2
    for _ in range(HALVINGS):
        middle = (low_factor + high_factor) / 2
        short = mean_length(scaled(middle)) < mean
        low_factor, high_factor = (middle, high_factor) if short else (low_factor, middle)
    return scaled(high_factor)


def stretched(lengths: Lengths, factor: int) -> Lengths:
    """Return lengths that are each so many times as long, the longest possible one too."""
    if isinstance(lengths, int):
        return lengths * factor
    if isinstance(lengths, Uniform):
        return replace(lengths, low=lengths.low * factor, high=lengths.high * factor)
    if isinstance(lengths, Empirical):
        return Empirical(values=tuple(each * factor for each in lengths.values))
    if isinstance(lengths, Lognormal):
        return _scaled_lognormal(lengths, lengths.max * factor, factor)
    raise _unresolved(lengths)


LARGEST_FACTOR, HALVINGS = 1e3, 60


def _scaled_lognormal(lengths: Lognormal, highest: int, factor: float) -> Lognormal:
    return replace(lengths, mean=lengths.mean * factor, std=lengths.std * factor, max=highest)
