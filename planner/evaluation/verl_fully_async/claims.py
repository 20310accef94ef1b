"""Claims of verl's fully asynchronous experiments, marked."""

from collections.abc import Iterator, Mapping, Sequence

from planner.evaluation.settings.published_points import ordered, stated
from planner.evaluation.verl_fully_async.runs import (
    APART,
    APART_30B,
    COLOCATED,
    COLOCATED_30B,
    ENDLESS,
    LARGEST,
    REQUIRED,
    STALENESS,
    USUAL,
    USUAL_REQUIRED,
    USUAL_STALENESS,
)
from rlplan.results.reproduced import Claim, Point

# Steps within 25 %, speed-ups within 20 %.
STEP_WITHIN, SPEED_UP_WITHIN = 0.25, 0.20
SIZES, STALE, BATCHES, LARGER = "7B by GPUs", "7B by staleness", "7B by require_batches", "30B-A3B"
FIGURE_WORDS = {USUAL: "with the usual spread", ENDLESS: "where some never end"}
# Rows of other tables that are the run on most GPUs again.
REPEATED = (f"staleness {USUAL_STALENESS:g}", f"require_batches {USUAL_REQUIRED}")
SERIES_30B = ("colocated, 128", "apart, 96 + 32")


def figure_of(table: str, fit: str) -> str:
    """Return the figure of a table of published steps, forecast with lengths that were fitted in one way."""
    return f"{table} {FIGURE_WORDS[fit]}"


def claims_of(points: Sequence[Point]) -> Iterator[Claim]:
    """Yield every claim, marked by each way in which lengths were fitted."""
    seconds = {(each.figure, each.series): each.forecast or 0.0 for each in points}
    for fit in (USUAL, ENDLESS):
        yield from _claims_of_7b(fit, points, seconds)
    sooner, later = (seconds[figure_of(LARGER, USUAL), series] for series in SERIES_30B)
    yield _speed_up(LARGER, USUAL, "96 + 32 GPUs", sooner / later, COLOCATED_30B / APART_30B)


def _claims_of_7b(
    fit: str, points: Sequence[Point], seconds: Mapping[tuple[str, str], float]
) -> Iterator[Claim]:
    sizes, by_staleness, by_batches = (figure_of(each, fit) for each in (SIZES, STALE, BATCHES))
    together = {gpus: seconds[sizes, f"colocated, {gpus}"] for gpus in COLOCATED}
    split = {each: seconds[sizes, f"apart, {each} + {each}"] for each in APART}
    stale = {each: seconds[by_staleness, f"staleness {each:g}"] for each in STALENESS}
    batches = {each: seconds[by_batches, f"require_batches {each}"] for each in REQUIRED}
    speed_ups = {each: together[2 * each] / split[each] for each in APART}
    yield _all_steps(fit, points)
    for training, found in speed_ups.items():
        published = COLOCATED[2 * training] / APART[training]
        yield _speed_up(SIZES, fit, f"{training} + {training} GPUs", found, published)
    gains = list(speed_ups.values())
    yield ordered(SIZES, f"More GPUs apart, shorter steps ({fit})", list(split.values()))
    yield ordered(SIZES, f"More GPUs, more gain ({fit})", gains[::-1])
    published = COLOCATED[2 * LARGEST] / STALENESS[0.0]
    found = together[2 * LARGEST] / stale[0.0]
    yield _speed_up(STALE, fit, f"{LARGEST} + {LARGEST} GPUs, streaming alone", found, published)
    yield ordered(STALE, f"More staleness never lengthens a step ({fit})", list(stale.values()))
    largest = min(batches, key=batches.__getitem__)
    yield Claim(
        where=BATCHES,
        text=f"Four mini-batches at once make the shortest steps ({fit})",
        holds=largest == max(REQUIRED),
        evidence=", ".join(f"{each}: {step:.3g} s" for each, step in batches.items()),
    )


def _all_steps(fit: str, points: Sequence[Point]) -> Claim:
    figures = [figure_of(table, fit) for table in (SIZES, STALE, BATCHES)]
    errors = {
        each.series: each.error_fraction or 0.0
        for each in points
        if each.figure in figures
        and each.series not in REPEATED
        and not each.series.startswith("colocated")
    }
    within = sum(abs(error) <= STEP_WITHIN for error in errors.values())
    worst = max(errors, key=lambda series: abs(errors[series]))
    return Claim(
        where="all tables",
        text=f"Every asynchronous step is forecast within 25 % ({fit})",
        holds=within == len(errors),
        evidence=f"{within} of {len(errors)}; {worst}: {100 * errors[worst]:+.0f} %",
    )


def _speed_up(where: str, fit: str, what: str, found: float, published: float) -> Claim:
    text = f"{what}: {published:.2f} times as fast as colocated ({fit})"
    return stated(where, text, found, published, SPEED_UP_WITHIN)
