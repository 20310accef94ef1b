"""What older samples do to learning: pairs of runs as published and as run here, the fit on them, and how it does on others.

The model: with samples that are `age` iterations old on average, `1 + slope * age` iterations get as far as one of fresh
samples. A slope comes from one pair of runs. The fit (`profiles/fits/sample_ages.yaml`) is the median of all slopes, where
groups, each of which publishes its own recipes, weigh the same, however many rows they have; and as its p90 the largest slope
of a run that did not collapse. Its p10 is no slope at all: several runs on older samples got further than fresh ones.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, Literal

from rlplan.files.decoding import read_yaml
from rlplan.results.progress import Correction
from rlplan.simulator.timeline.progress import needed_iterations

PAIRS: Final = Path(__file__).parent / "held" / "sample_ages.yaml"
# A run that gained less than 1 / 10 of the fresh run's gain has collapsed, and gives no slope.
COLLAPSED_FROM: Final = 10.0
# Standard errors from a mean to p10 and to p90 of a normal distribution.
TENTH: Final = 1.2816


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleRun:
    """Hold one run on older samples.

    Attributes:
        age: Of its samples, in iterations.
        age_is: Whether that is their mean, or the most that was allowed.
        stale: What it reached, or the iterations that it took.
        start: Its score at first; None where it is that of the fresh run.
    """

    correction: Correction
    age: float
    age_is: Literal["mean", "bound"]
    stale: float
    start: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPairs:
    """Hold a run on fresh samples and those on older ones that are like it in all else.

    Attributes:
        kind: Whether figures are iterations to a score, or scores after equally many.
        fresh: Of the run on fresh samples.
        start: The score before; None where it is not published, or figures are iterations.
        full: The largest score that can be.
        answers: That a score is the mean of, each right or wrong; None where figures are iterations.
    """

    group: str
    setting: str
    source: str
    kind: Literal["updates", "score"]
    fresh: float
    rows: tuple[StaleRun, ...]
    start: float | None = None
    full: float | None = None
    answers: int | None = None

    @property
    def is_fitted(self) -> bool:
        """Tell whether its rows say how many iterations get as far as one of fresh samples."""
        return self.kind == "updates" or self.start is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Hold what a pair of runs says: iterations that get as far as one of fresh samples.

    Attributes:
        needed: Infinite where the run got no further than it was at first.
        interval: (p10, p90), by how far scores of so many answers are off; both `needed` where figures are iterations.
    """

    group: str
    setting: str
    run: StaleRun
    needed: float
    interval: tuple[float, float]
    is_fitted: bool

    @property
    def slope(self) -> float:
        """Return how many iterations more are needed for each that samples are old; none below 0."""
        return max(0.0, self.needed - 1) / self.run.age

    @property
    def is_collapsed(self) -> bool:
        """Tell whether the run learnt next to nothing."""
        return self.needed > COLLAPSED_FROM


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Hold a pair of runs beside a fit that has not seen it.

    Attributes:
        needed: (p10, median, p90) of the fit; None where no other group has such a pair.
    """

    observed: Observed
    needed: tuple[float, float, float] | None

    @property
    def is_within(self) -> bool:
        """Tell whether p10 to p90 of the fit meet what the pair says, as far as its scores are sharp."""
        if self.needed is None:
            return False
        low, high = self.observed.interval
        return self.needed[0] <= high and low <= self.needed[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPairs:
    """Hold all pairs of a file."""

    pairs: tuple[RunPairs, ...]


@cache
def load_pairs() -> tuple[RunPairs, ...]:
    """Return all pairs that the project holds."""
    return read_yaml(HeldPairs, PAIRS).pairs


def observed_pairs() -> tuple[Observed, ...]:
    """Return what every pair says, in the order of the file."""
    return tuple(_observed(pairs, run) for pairs in load_pairs() for run in pairs.rows)


def slopes(pairs: Iterable[Observed]) -> tuple[float, float]:
    """Return (median, most) of the slopes: each group with the same weight in the median, runs that collapsed in it alone."""
    some = [each for each in pairs if each.is_fitted and each.run.age > 0]
    groups = [each.group for each in some]
    weighed = sorted((each.slope, 1 / groups.count(each.group)) for each in some)
    half, below = sum(weight for _, weight in weighed) / 2, 0.0
    most = max(each.slope for each in some if not each.is_collapsed)
    for slope, weight in weighed:
        below += weight
        if below >= half * (1 - 1e-9):
            return slope, most
    raise AssertionError("weights add up to more than half of their sum")


def judged_pairs() -> tuple[Judged, ...]:
    """Return every pair beside a fit on the other groups' pairs with the same correction.

    Pairs whose score at first is not published are in no fit: they stand beside the one on all the others.
    """
    every = observed_pairs()
    return tuple(Judged(observed=each, needed=_unseen(each, every)) for each in every)


def _unseen(pair: Observed, every: Sequence[Observed]) -> tuple[float, float, float] | None:
    others = [
        each
        for each in every
        if each.is_fitted
        and each.run.correction == pair.run.correction
        and (each.group != pair.group or not pair.is_fitted)
    ]
    if not others:
        return None
    middle, most = (needed_iterations(pair.run.age, slope) for slope in slopes(others))
    return 1.0, middle, most


def _observed(pairs: RunPairs, run: StaleRun) -> Observed:
    needed = _needed(pairs, run)
    interval = (needed, needed)
    if pairs.kind == "score":
        error = TENTH * math.hypot(_error(pairs, run.stale), _error(pairs, pairs.fresh))
        better, worse = (replace(run, stale=run.stale + sign * error) for sign in (1, -1))
        interval = (_needed(pairs, better), _needed(pairs, worse))
    return Observed(
        group=pairs.group,
        setting=pairs.setting,
        run=run,
        needed=needed,
        interval=interval,
        is_fitted=pairs.is_fitted,
    )


def _needed(pairs: RunPairs, run: StaleRun) -> float:
    """Return the iterations that get as far as one of the fresh run.

    Of scores, the gain beside that of the fresh run, as if scores grew evenly. They grow ever more slowly, so that this is
    the least that it can be. A score at first that is not published is taken as 0: a smaller gain makes the same
    difference look like less of it.
    """
    if pairs.kind == "updates":
        return run.stale / pairs.fresh
    start = pairs.start or 0.0
    gained = run.stale - (start if run.start is None else run.start)
    return (pairs.fresh - start) / gained if gained > 0 else math.inf


def _error(pairs: RunPairs, score: float) -> float:
    """Return the standard error of a score that is a mean of right and wrong answers."""
    assert pairs.full is not None, "of a score"
    assert pairs.answers is not None, "of a score"
    share = score / pairs.full
    return pairs.full * math.sqrt(share * (1 - share) / pairs.answers)
