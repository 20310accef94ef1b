"""Claims of verl's fully asynchronous experiments."""

from collections.abc import Callable, Sequence

from rlplan.evals.claims import ALL, FALLS, NONE, Measured, Stated, figure, near, order
from rlplan.evals.verl_fully_async.runs import (
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
from rlplan.results.accuracy import Point

# Steps within 25 %, speed-ups within 20 %.
STEP_WITHIN, SPEED_UP_WITHIN = 0.25, 0.20
SIZES, STALE, BATCHES, LARGER = "7B by GPUs", "7B by staleness", "7B by require_batches", "30B-A3B"
# Rows of other tables that are the run on most GPUs again.
REPEATED = (f"staleness {USUAL_STALENESS:g}", f"require_batches {USUAL_REQUIRED}")
SERIES_30B = ("colocated, 128", "apart, 96 + 32")


class Steps:
    """Hold the forecast seconds of every run by what tells it apart."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points
        seconds = {(each.figure, each.series): each.forecast or 0.0 for each in points}
        self.together = {gpus: seconds[SIZES, f"colocated, {gpus}"] for gpus in COLOCATED}
        self.apart = {each: seconds[SIZES, f"apart, {each} + {each}"] for each in APART}
        self.stale = {each: seconds[STALE, f"staleness {each:g}"] for each in STALENESS}
        self.batches = {each: seconds[BATCHES, f"require_batches {each}"] for each in REQUIRED}
        self.larger = tuple(seconds[LARGER, series] for series in SERIES_30B)

    def speed_up(self, training: int) -> float:
        """Return how many times as fast runs apart are as colocated ones."""
        return self.together[2 * training] / self.apart[training]


def _all_steps(steps: Steps) -> Measured:
    """Return the asynchronous steps that are off by more, and say which is off most."""
    errors = {
        each.series: each.error_fraction or 0.0
        for each in steps.points
        if each.series not in REPEATED and not each.series.startswith("colocated")
    }
    within = sum(abs(error) <= STEP_WITHIN for error in errors.values())
    worst = max(errors, key=lambda series: abs(errors[series]))
    evidence = f"{within} of {len(errors)}; {worst}: {100 * errors[worst]:+.0f} %"
    return Measured(figures=(len(errors) - within,), evidence=evidence)


def _shortest_batches(steps: Steps) -> Measured:
    """Return whether most mini-batches at once make the shortest steps, as 1 or 0."""
    shortest = min(steps.batches, key=steps.batches.__getitem__)
    shown = ", ".join(f"{each}: {step:.3g} s" for each, step in steps.batches.items())
    return Measured(figures=(shortest == max(REQUIRED),), evidence=shown)


def _speed_up(
    where: str, what: str, published: float, of: Callable[[Steps], float]
) -> Stated[Steps]:
    return Stated(
        where=where,
        text=f"{what}: {published:.2f} times as fast as colocated",
        bounds=(near(published, SPEED_UP_WITHIN),),
        measure=lambda steps: figure(of(steps)),
    )


def _of_size(training: int) -> Stated[Steps]:
    published = COLOCATED[2 * training] / APART[training]
    what = f"{training} + {training} GPUs"
    return _speed_up(SIZES, what, published, lambda steps: steps.speed_up(training))


CLAIMS: tuple[Stated[Steps], ...] = (
    Stated(
        where="all tables",
        text="Every asynchronous step is forecast within 25 %",
        bounds=(NONE,),
        measure=_all_steps,
    ),
    *map(_of_size, APART),
    Stated(
        where=SIZES,
        text="More GPUs apart, shorter steps",
        bounds=(FALLS,),
        measure=lambda steps: order([*steps.apart.values()]),
    ),
    Stated(
        where=SIZES,
        text="More GPUs, more gain",
        bounds=(FALLS,),
        measure=lambda steps: order([steps.speed_up(each) for each in APART][::-1]),
    ),
    _speed_up(
        STALE,
        f"{LARGEST} + {LARGEST} GPUs, streaming alone",
        COLOCATED[2 * LARGEST] / STALENESS[0.0],
        lambda steps: steps.together[2 * LARGEST] / steps.stale[0.0],
    ),
    Stated(
        where=STALE,
        text="More staleness never lengthens a step",
        bounds=(FALLS,),
        measure=lambda steps: order([*steps.stale.values()]),
    ),
    Stated(
        where=BATCHES,
        text="Four mini-batches at once make the shortest steps",
        bounds=(ALL,),
        measure=_shortest_batches,
    ),
    _speed_up(
        LARGER,
        "96 + 32 GPUs",
        COLOCATED_30B / APART_30B,
        lambda steps: steps.larger[0] / steps.larger[1],
    ),
)
