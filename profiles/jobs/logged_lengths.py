"""Lengths as a log prints them, after the cut at the maximum, as the distribution that they are cut from.

Lengths are lognormal. Of a lognormal X with log mean m and log standard deviation s, cut at M, a log prints

    mean         E[min(X, M)]   = exp(m + s^2/2) F(c - s) + M (1 - F(c)),    c = (ln M - m) / s
    std          E[min(X, M)^2] = exp(2m + 2s^2) F(c - 2s) + M^2 (1 - F(c))
    clip ratio   P(X >= M)      = 1 - F(c)

with F the normal distribution function. Where only the mean is printed, s is that of published runs
(`profiles/fits/lengths.yaml`), and one response of hundreds reaches M at least. A clip ratio below what it gives
narrows s; one above means that some responses never end: they are a share of their own at M, and the others are
spread as published.
"""

import math
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from statistics import fmean
from typing import Literal

from rlplan.files.kept_sheets import read_sheet
from rlplan.profiles.analytic.efficiencies import FITS_FOLDER, LENGTHS_FILE, Constant
from rlplan.profiles.analytic.normal import normal_quantile, zero_between
from rlplan.profiles.jobs.checks import JobPlace
from rlplan.workload import (
    Empirical,
    Lengths,
    Logged,
    Lognormal,
    Workload,
    cut_mean,
    log_moments,
    mean_in_training,
    mean_length,
    normal_share,
)

Field = Literal["prompt_tokens", "response_tokens"]

# Log standard deviations between which a spread is looked for: equal lengths, and tokens by the factor of 400.
LEAST_LOG_STD, MOST_LOG_STD = 1e-3, 6.0
# Beyond so many standard deviations nothing of a normal distribution is left.
ALL_STDS = 40.0
ROUNDING = 1e-9
# Samples of a step from which on one response is taken to reach the limit. Of 28 published runs and steps that say what
# share was cut, 26 cut some: 12 of 13 of benchmarks/published_lengths.csv, and 14 of 15 lines of verl's logs. Some do where
# the usual spread leaves less than one: 0.2 to 1.4 % of 4,600 to 9,800 tokens at a limit of 28,672 in ten of eleven steps of
# an agent, 0.8 % of 72 tokens at 5,120, 0.95 % of 2,070 at 10,353, and 14 % of 4,120 at 16,384 from a base model.
# Not in all: steps of 8,192 samples of Qwen2.5-Math-7B on 128 H20 end before one can be cut at 28,672 (evals/reproductions/verl_fully_async.py).
ENDLESS = 256
ENDLESS_WORDS = "one response of a step reaches"
# Largest share of the mean that such a response may make up; otherwise the mean shows that there is none.
ENDLESS_TOKENS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSpreads:
    """Hold the spread of published lengths: the standard deviation of their logarithms.

    Attributes:
        prompt_log_std: Of the prompts of a data set.
        response_log_std: Of the responses of a step, before they are cut (`benchmarks/fit_lengths.py`).
        between_runs: How far that of a run is from it: standard deviation of its own logarithm.
    """

    prompt_log_std: Constant
    response_log_std: Constant
    between_runs: Constant


# Returns the spread of lengths where a job gives only their mean.
load_length_spreads = cache(
    partial(read_sheet, LengthSpreads, FITS_FOLDER / f"{LENGTHS_FILE}.yaml")
)


def with_logged_lengths(work: Workload, place: JobPlace) -> Workload:
    """Return the workload with distributions for what logs print, cut where `max_total_tokens` cuts.

    Raises:
        FileError: There are no lengths of which a log prints such figures; the field is named.
    """
    prompts = _resolved("prompt_tokens", work.prompt_tokens, None, work, place)
    room = None
    if work.max_total_tokens is not None:
        others = mean_length(prompts) + work.mean_observations_tokens
        # The mean of a distribution that was fitted is off in its last digits, and may be above a whole number that was said.
        room = work.max_total_tokens - math.ceil(others * (1 - ROUNDING))
        if room < 1:
            beside = "the mean prompt and observations" if work.environments else "the mean prompt"
            raise place.error(
                "workload.max_total_tokens",
                f"leaves no room for a response beside {beside}",
                value=work.max_total_tokens,
                allowed=f"more than {others:,.0f}",
            )
    responses = _resolved("response_tokens", work.response_tokens, room, work, place)
    return replace(work, prompt_tokens=prompts, response_tokens=responses)


def other_spreads(lengths: Lengths) -> tuple[Lognormal, ...]:
    """Return lengths of the same mean that are spread less and more widely, by as much as runs differ.

    Of the narrower ones no response reaches the limit that is only taken to do so. None where the spread is not assumed.
    """
    if not isinstance(lengths, Lognormal) or lengths.assumed is None:
        return ()
    apart = load_length_spreads().between_runs.value
    return _times_as_wide(lengths, math.exp(-apart)), _times_as_wide(lengths, math.exp(apart))


def _times_as_wide(lengths: Lognormal, factor: float) -> Lognormal:
    _, usual = log_moments(lengths.mean, lengths.std)
    guessed = ENDLESS_WORDS in (lengths.assumed or "")
    at_max = None if guessed and factor < 1 else lengths.at_max
    others = mean_length(lengths if at_max is None else replace(lengths, at_max=None))
    return _lognormal(others, usual * factor, lengths.max, at_max, lengths.assumed)


def _lognormal(
    mean: float, log_std: float, most: int, at_max: float | None, assumed: str | None
) -> Lognormal:
    """Return lengths that have this mean once they are cut, beside those that never end."""
    before = math.exp(log_mean_of(mean, log_std, most) + log_std**2 / 2)
    std = before * math.sqrt(math.expm1(log_std**2))
    return Lognormal(mean=before, std=std, max=most, at_max=at_max, assumed=assumed)


def _resolved(
    field: Field, lengths: Lengths, room: int | None, work: Workload, place: JobPlace
) -> Lengths:
    if isinstance(lengths, Logged):
        return _of_log(field, lengths, room, work, place)
    if room is None:
        return lengths
    if isinstance(lengths, Lognormal):
        return replace(lengths, max=min(lengths.max, room))
    if isinstance(lengths, Empirical):
        return Empirical(values=tuple(min(value, room) for value in lengths.values))
    return min(lengths, room) if isinstance(lengths, int) else lengths


def _of_log(
    field: Field, logged: Logged, room: int | None, work: Workload, place: JobPlace
) -> Lognormal:
    """Return the distribution of lengths whose log would print the same.

    Raises:
        FileError: There is none.
    """
    at = f"workload.{field}"
    if logged.max is None and room is None:
        both = " or give workload.max_total_tokens" if field == "response_tokens" else ""
        raise place.error(f"{at}.max", f"is missing: say where lengths are cut off{both}")
    most = min(most for most in (logged.max, room) if most is not None)
    mean, assumed = _mean(logged, at, place)
    if not 1 <= mean < most:
        raise place.error(
            f"{at}.mean",
            f"is no mean of lengths from 1 to {most:,}",
            value=logged.mean,
            allowed=f"from 1 to below {most:,}",
        )
    if logged.clip_ratio is not None and logged.std is not None:
        raise place.error(
            f"{at}.std", "the spread follows from clip_ratio already", value=logged.std,
            allowed="one of clip_ratio and std",
        )  # fmt: skip
    count = work.prompts if field == "prompt_tokens" else work.sequences
    spreads = load_length_spreads()
    known = spreads.prompt_log_std if field == "prompt_tokens" else spreads.response_log_std
    at_max = 0.0
    if logged.std is not None:
        log_std = _of_std(logged.std, mean, most, at, place)
    elif logged.clip_ratio is None:
        log_std = known.value
        if field == "response_tokens":
            at_max = _endless_share(count, known.value, mean, most)
    else:
        log_std, at_max = _of_clip_ratio(
            logged.clip_ratio, count, known.value, (mean, most), at, place
        )
    if log_std == known.value:
        source = f"log standard deviation {known.value:g} of published runs"
        guessed = at_max and logged.clip_ratio is None
        cut = f"{ENDLESS_WORDS} {most:,} tokens, as in most of them" if guessed else ""
        assumed = ", ".join(filter(None, (source, cut, assumed)))
    others = (mean - at_max * most) / (1 - at_max)
    lengths = _lognormal(others, log_std, most, at_max or None, assumed or None)
    means = _training_means(logged)
    return lengths if means is None else replace(lengths, training_means=means)


def _training_means(logged: Logged) -> tuple[float, ...] | None:
    """Return the means at evenly spaced moments of a training; None where lengths do not grow."""
    if logged.mean_at_end is None:
        return None
    return (logged.mean, *logged.means_between, logged.mean_at_end)


def _mean(logged: Logged, at: str, place: JobPlace) -> tuple[float, str]:
    """Return the mean at the step that is meant, and what is assumed about it."""
    means = _training_means(logged)
    if means is None:
        if logged.training_share is not None or logged.means_between:
            raise place.error(f"{at}.mean_at_end", "is missing: lengths of one mean do not grow")
        return logged.mean, ""
    if logged.training_share is None:
        mean = fmean(fmean(pair) for pair in pairwise(means))
    else:
        mean = mean_in_training(means, logged.training_share)
    grown = f"{mean:,.0f} tokens, the mean over a training that leads from {logged.mean:,g} to {logged.mean_at_end:,g}"
    return mean, grown if logged.training_share is None else ""


def _of_clip_ratio(
    ratio: float, count: int, usual: float, known: tuple[float, int], at: str, place: JobPlace
) -> tuple[float, float]:
    """Return the log standard deviation and the share that never ends of lengths cut in this share.

    Where the log says that none of `count` was cut, less than one in twice as many is.

    Args:
        usual: Log standard deviation of published runs.
        known: Mean after the cut, and maximum.
    """
    mean, most = known
    if ratio >= 1 or ratio * most >= mean:
        raise place.error(
            f"{at}.clip_ratio",
            f"does not go with a mean of {mean:,.0f} and a maximum of {most:,}: those that are cut alone "
            f"are {ratio * most:,.0f} tokens of it",
            value=ratio,
            allowed=f"below {mean / most:.3g}",
        )
    if clip_ratio_of(log_mean_of(mean, usual, most), usual, most) > max(ratio, 0.5 / count):
        return log_std_of_clip_ratio(max(ratio, 0.5 / count), mean, most, usual), 0.0
    return usual, _share_at_max(ratio, usual, mean, most) if ratio else 0.0


def _endless_share(count: int, log_std: float, mean: float, most: int) -> float:
    """Return the share of responses that never end where a log does not say how many were cut.

    One of a step's `count`, where lengths of the usual spread leave less than one to the limit: in published steps of
    hundreds of samples some responses repeat themselves until they are cut, however far the limit is (`ENDLESS`).
    """
    ratio = 1 / count
    if count < ENDLESS or ratio * most > mean * ENDLESS_TOKENS:
        return 0.0
    if clip_ratio_of(log_mean_of(mean, log_std, most), log_std, most) >= ratio:
        return 0.0
    return _share_at_max(ratio, log_std, mean, most)


def _share_at_max(ratio: float, log_std: float, mean: float, most: int) -> float:
    """Return the share of lengths that are `most` beside those that lognormal ones are cut to it."""

    def share(log_mean: float) -> float:
        cut = clip_ratio_of(log_mean, log_std, most)
        return max(0.0, (ratio - cut) / (1 - cut))

    def beyond(log_mean: float) -> float:
        never = share(log_mean)
        return (1 - never) * cut_mean(log_mean, log_std, most) + never * most - mean

    highest = log_mean_of(mean, log_std, most)
    lowest = highest
    while beyond(lowest) > 0:
        lowest -= log_std
    return share(highest if lowest == highest else zero_between(beyond, lowest, highest))


def log_std_of_clip_ratio(
    ratio: float, mean: float, most: int, widest: float = MOST_LOG_STD
) -> float:
    """Return the log standard deviation with which lengths of a mean in tokens are cut in this share.

    Args:
        widest: It is below.

    Raises:
        ValueError: There is none.
    """
    place_of_cut = normal_quantile(1 - ratio)

    def beyond(log_std: float) -> float:
        return cut_mean(math.log(most) - place_of_cut * log_std, log_std, most) - mean

    return zero_between(beyond, LEAST_LOG_STD, widest)


def clip_ratio_of(log_mean: float, log_std: float, most: int) -> float:
    """Return the share of lengths with this log mean that reach `most` tokens."""
    return normal_share((log_mean - math.log(most)) / log_std)


def _of_std(std: float, mean: float, most: int, at: str, place: JobPlace) -> float:
    """Return the log standard deviation whose lengths have this standard deviation once cut."""

    def cut_std(log_std: float) -> float:
        return _cut_std(log_mean_of(mean, log_std, most), log_std, most)

    least, largest = cut_std(LEAST_LOG_STD), cut_std(MOST_LOG_STD)
    if not least < std < largest:
        raise place.error(
            f"{at}.std",
            f"no lengths up to {most:,} with a mean of {mean:,.0f} are spread so",
            value=std,
            allowed=f"above {least:.2g}, below {largest:,.0f}",
        )
    return zero_between(lambda log_std: cut_std(log_std) - std, LEAST_LOG_STD, MOST_LOG_STD)


def log_mean_of(mean: float, log_std: float, most: int) -> float:
    """Return the mean of the logarithms of lengths that have a mean in tokens once cut at `most`."""
    # Next to nothing below what lengths that are not cut have, so that rounding has no say.
    lowest = math.log(mean) - log_std**2 / 2 - ROUNDING
    highest = math.log(most) + ALL_STDS * log_std
    return zero_between(lambda at: cut_mean(at, log_std, most) - mean, lowest, highest)


def _cut_std(log_mean: float, log_std: float, most: int) -> float:
    cut = (math.log(most) - log_mean) / log_std
    square = math.exp(2 * (log_mean + log_std**2)) * normal_share(cut - 2 * log_std)
    mean = cut_mean(log_mean, log_std, most)
    return math.sqrt(max(0.0, square + most**2 * normal_share(-cut) - mean**2))
