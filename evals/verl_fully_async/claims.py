"""Claims of verl's fully asynchronous experiments, marked."""

from collections.abc import Iterator, Sequence

from evals.settings.published_points import ordered, stated
from evals.verl_fully_async.runs import (
    APART,
    APART_30B,
    COLOCATED,
    COLOCATED_30B,
    LARGEST,
    REQUIRED,
    STALENESS,
    USUAL_REQUIRED,
    USUAL_STALENESS,
)
from rlplan.results.reproduced import Claim, Point

# Steps within 25 %, speed-ups within 20 %.
STEP_WITHIN, SPEED_UP_WITHIN = 0.25, 0.20
SIZES, STALE, BATCHES, LARGER = "7B by GPUs", "7B by staleness", "7B by require_batches", "30B-A3B"
# Rows of other tables that are the run on most GPUs again.
REPEATED = (f"staleness {USUAL_STALENESS:g}", f"require_batches {USUAL_REQUIRED}")
SERIES_30B = ("colocated, 128", "apart, 96 + 32")


def claims_of(points: Sequence[Point]) -> Iterator[Claim]:
    """Yield every claim, marked."""
    seconds = {(each.figure, each.series): each.forecast or 0.0 for each in points}
    together = {gpus: seconds[SIZES, f"colocated, {gpus}"] for gpus in COLOCATED}
    split = {each: seconds[SIZES, f"apart, {each} + {each}"] for each in APART}
    stale = {each: seconds[STALE, f"staleness {each:g}"] for each in STALENESS}
    batches = {each: seconds[BATCHES, f"require_batches {each}"] for each in REQUIRED}
    speed_ups = {each: together[2 * each] / split[each] for each in APART}
    yield _all_steps(points)
    for training, found in speed_ups.items():
        published = COLOCATED[2 * training] / APART[training]
        yield _speed_up(SIZES, f"{training} + {training} GPUs", found, published)
    gains = list(speed_ups.values())
    yield ordered(SIZES, "More GPUs apart, shorter steps", list(split.values()))
    yield ordered(SIZES, "More GPUs, more gain", gains[::-1])
    published = COLOCATED[2 * LARGEST] / STALENESS[0.0]
    found = together[2 * LARGEST] / stale[0.0]
    yield _speed_up(STALE, f"{LARGEST} + {LARGEST} GPUs, streaming alone", found, published)
    yield ordered(STALE, "More staleness never lengthens a step", list(stale.values()))
    shortest = min(batches, key=batches.__getitem__)
    yield Claim(
        where=BATCHES,
        text="Four mini-batches at once make the shortest steps",
        holds=shortest == max(REQUIRED),
        evidence=", ".join(f"{each}: {step:.3g} s" for each, step in batches.items()),
    )
    sooner, later = (seconds[LARGER, series] for series in SERIES_30B)
    yield _speed_up(LARGER, "96 + 32 GPUs", sooner / later, COLOCATED_30B / APART_30B)


def _all_steps(points: Sequence[Point]) -> Claim:
    errors = {
        each.series: each.error_fraction or 0.0
        for each in points
        if each.series not in REPEATED and not each.series.startswith("colocated")
    }
    within = sum(abs(error) <= STEP_WITHIN for error in errors.values())
    worst = max(errors, key=lambda series: abs(errors[series]))
    return Claim(
        where="all tables",
        text="Every asynchronous step is forecast within 25 %",
        holds=within == len(errors),
        evidence=f"{within} of {len(errors)}; {worst}: {100 * errors[worst]:+.0f} %",
    )


def _speed_up(where: str, what: str, found: float, published: float) -> Claim:
    text = f"{what}: {published:.2f} times as fast as colocated"
    return stated(where, text, found, published, SPEED_UP_WITHIN)
