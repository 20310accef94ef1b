"""Where an iteration's time goes: its critical path, and what idle pools wait for meanwhile."""

from collections.abc import Iterable, Mapping, Sequence

from rlplan.trace import IterationSpan, Span
from simulator.engine import Work

Interval = tuple[float, float]


def work_of(span: Span, works: Sequence[Work]) -> Work:
    """Return the work that a span shows."""
    return next(work for work in works if (work.name, work.pool) == (span.name, span.pool))


def critical_path(spans: Sequence[Span], works: Sequence[Work]) -> tuple[Span, ...]:
    """Return the chain of spans that decided when an iteration ended, first one first.

    Walks back from the last span to end: a work starts at the instant in which its last parent
    ended (that one is taken first) or in which one of its resources was given back.

    Args:
        spans: Of one iteration of a simulated trace.
    """
    path: list[Span] = []
    here = max(spans, key=lambda span: (span.end_seconds, span.seconds), default=None)
    while here is not None:
        path.append(here)
        before = [
            span for span in spans if span.end_seconds == here.start_seconds and span not in path
        ]
        here = _cause(work_of(here, works), before, works)
    return tuple(reversed(path))


def _cause(work: Work, before: Sequence[Span], works: Sequence[Work]) -> Span | None:
    owners = [(span, work_of(span, works)) for span in before]
    parents = [span for span, owner in owners if owner.key in work.after]
    holders = [span for span, owner in owners if set(owner.holds) & set(work.holds)]
    return next(iter((*parents, *holders)), None)


def idle_seconds(
    pools: Iterable[str],
    iteration: IterationSpan,
    spans: Sequence[Span],
    works: Sequence[Work],
    path: Sequence[tuple[Interval, str]],
) -> dict[str, float]:
    """Return pool-seconds of an iteration in which pools stand idle, by cause.

    `waiting in STAGE`: the pool has work left, and the critical path is in that stage;
    `no work left in STAGE`: the pool is done while the critical path is still in that stage.

    Args:
        path: Intervals of the critical path with the stage that each belongs to.
    """
    causes: dict[str, float] = {}
    for pool in pools:
        busy = busy_intervals(pool, spans, works)
        last = max((end for _, end in busy), default=iteration.start_seconds)
        for gap in _gaps(busy, iteration):
            reason = "waiting" if gap[1] <= last else "no work left"
            for interval, stage in path:
                overlap = min(gap[1], interval[1]) - max(gap[0], interval[0])
                if overlap > 0:
                    cause = f"{reason} in {stage}"
                    causes[cause] = causes.get(cause, 0.0) + overlap
    return causes


def busy_intervals(pool: str, spans: Sequence[Span], works: Sequence[Work]) -> list[Interval]:
    """Return when a pool is held, by start, in seconds."""
    return sorted(
        (span.start_seconds, span.end_seconds)
        for span in spans
        if pool in work_of(span, works).holds
    )


def seconds_by_stage(
    path: Sequence[tuple[Interval, str]], stages: Sequence[str]
) -> Mapping[str, float]:
    """Return the seconds that each stage occupies on the critical path."""
    totals = dict.fromkeys(stages, 0.0)
    for (start, end), stage in path:
        totals[stage] += end - start
    return totals


def _gaps(busy: Sequence[Interval], iteration: IterationSpan) -> list[Interval]:
    edges = [iteration.start_seconds, *(edge for each in busy for edge in each)]
    edges.append(iteration.end_seconds)
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]
