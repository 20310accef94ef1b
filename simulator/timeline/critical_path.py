"""Where an iteration's time goes: its critical path, and what idle pools wait for meanwhile."""

from collections.abc import Iterable, Mapping, Sequence

from rlplan.trace import IterationSpan, Span
from simulator.timeline.engine import Work

Interval = tuple[float, float]


def work_of(span: Span, works: Sequence[Work]) -> Work:
    """Return the work that a span shows."""
    return next(work for work in works if (work.name, work.pool) == (span.name, span.pool))


def critical_path(
    spans: Sequence[Span], works: Sequence[Work], begin_seconds: float = 0.0
) -> tuple[Span, ...]:
    """Return the chain of spans that decided when the last of them ended, first one first.

    Walks back from the last span to end: a work starts at the instant in which its last parent
    ended (that one is taken first) or in which one of its resources was given back.

    Args:
        spans: Of a simulated trace.
        begin_seconds: How far to walk back; the first span may have begun before.
    """
    path: list[Span] = []
    here = max(spans, key=lambda span: (span.end_seconds, span.seconds), default=None)
    while here is not None:
        path.append(here)
        if here.start_seconds < begin_seconds:
            break
        before = [
            span
            for span in spans
            if span.end_seconds == here.start_seconds
            and span.end_seconds >= begin_seconds
            and span not in path
        ]
        here = _cause(here, before, works)
    return tuple(reversed(path))


def _cause(here: Span, before: Sequence[Span], works: Sequence[Work]) -> Span | None:
    work = work_of(here, works)
    owners = [(span, work_of(span, works)) for span in before]
    waited_for = {(key, here.iteration) for key in work.after}
    waited_for |= {(key, here.iteration - lag) for key, lag in work.earlier}
    parents = [span for span, owner in owners if (owner.key, span.iteration) in waited_for]
    holders = [span for span, owner in owners if set(owner.holds) & set(work.holds)]
    return next(iter((*parents, *holders)), None)


def clipped(interval: Interval, window: IterationSpan) -> Interval:
    """Return the part of an interval that lies in a window, in seconds; empty if none does."""
    start = min(max(interval[0], window.start_seconds), window.end_seconds)
    return start, min(max(interval[1], start), window.end_seconds)


def idle_seconds(
    pools: Iterable[str],
    window: IterationSpan,
    spans: Sequence[Span],
    works: Sequence[Work],
    path: Sequence[tuple[Interval, str]],
) -> dict[str, float]:
    """Return pool-seconds of a window in which pools stand idle, by cause.

    `waiting in STAGE`: the pool has work left, and the critical path is in that stage;
    `no work left in STAGE`: the pool is done while the critical path is still in that stage.

    Args:
        window: An iteration, or several that overlap.
        path: Intervals of the critical path with the stage that each belongs to.
    """
    causes: dict[str, float] = {}
    for pool in pools:
        held = busy_intervals(pool, spans, works)
        last = max((end for _, end in held), default=window.start_seconds)
        busy = [part for each in held if (part := clipped(each, window))[0] < part[1]]
        for gap in _gaps(busy, window):
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


def _gaps(busy: Sequence[Interval], window: IterationSpan) -> list[Interval]:
    edges = [window.start_seconds, *(edge for each in busy for edge in each)]
    edges.append(window.end_seconds)
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]
