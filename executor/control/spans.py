"""Spans out of what ranks report: when a pool worked on a call.

Where all ranks of a pool work on one call at a time, a span reaches from its last rank's start to its last rank's end
(`measured_spans`). Where replicas of a pool work on different calls, it begins with the first of them (`joined_spans`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from rlplan.executor.workers.calls import CallReport
from rlplan.trace import Activity, Span

PoolRank = tuple[str, int]
"""A pool's name and a rank in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """Hold what the ranks of one call reported.

    Attributes:
        pool: Pool on which the span is noted.
        reports: By pool and rank; a transition between pools has ranks of both.
        free_seconds: By pool and rank, idle ranks of its pools included, when the call before this one
            ended there, on the host's clock as in reports; of any iteration.
    """

    name: str
    pool: str
    activity: Activity
    reports: Mapping[PoolRank, CallReport]
    free_seconds: Mapping[PoolRank, float] = field(default_factory=dict)

    @property
    def start_seconds(self) -> float:
        """Return when its pool worked on nothing else and all ranks on it, in the clock's seconds.

        Between pools, the first rank that sends may begin while others of its pool still work.
        """
        starts = [report.start_seconds for report in self.reports.values()]
        is_between = len({pool for pool, _ in self.reports}) > 1
        own = [seconds for rank, seconds in self.free_seconds.items() if rank[0] == self.pool]
        return max([min(starts) if is_between else max(starts), *own])

    @property
    def end_seconds(self) -> float:
        """Return when the last rank of its pool had ended, in the clock's seconds.

        Ranks of another pool may end later: those that hold a second copy of the weights that others
        send have nothing to give, and nobody waits for them.
        """
        return max(
            report.end_seconds for rank, report in self.reports.items() if rank[0] == self.pool
        )


def measured_spans(
    calls: Sequence[Reported], iteration: int, origin_seconds: float
) -> tuple[Span, ...]:
    """Return the spans of an iteration's calls, which are given in the order in which they were sent.

    Handing a call over lies between spans. A span never begins before its whole pool is free, so spans of a
    pool never overlap: a rank that started earlier worked while its pool was still busy with the call before.

    Args:
        origin_seconds: What span times count from, on the host's clock as in reports.
    """
    return tuple(
        Span(
            name=call.name,
            pool=call.pool,
            iteration=iteration,
            start_seconds=call.start_seconds - origin_seconds,
            end_seconds=max(call.start_seconds, call.end_seconds) - origin_seconds,
            activity=call.activity,
        )
        for call in calls
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpan:
    """Hold when a pool worked on a call, on the host's clock."""

    name: str
    pool: str
    activity: Activity
    start_seconds: float
    end_seconds: float


def stretch_of(
    name: str, pool: str, activity: Activity, reports: Mapping[PoolRank, CallReport]
) -> CallSpan:
    """Return when the ranks of a pool worked on a call: from the first that began to the last that ended."""
    own = [report for (where, _), report in reports.items() if where == pool]
    return CallSpan(
        name=name,
        pool=pool,
        activity=activity,
        start_seconds=min(report.start_seconds for report in own),
        end_seconds=max(report.end_seconds for report in own),
    )


def joined_spans(
    stretches: Sequence[CallSpan], iteration: int, origin_seconds: float, generates: str
) -> tuple[Span, ...]:
    """Return the spans of an iteration; calls of one generation that follow each other are one span.

    Where replicas of a pool work on different things at a time, the later one's span begins when the
    other's ends.

    Args:
        generates: Name of the task that generates.
    """
    spans: list[Span] = []
    in_order = sorted(stretches, key=lambda each: (each.pool, each.start_seconds))
    for _, group in groupby(in_order, key=lambda each: each.pool):
        own: list[Span] = []
        for each in group:
            start = each.start_seconds - origin_seconds
            end = each.end_seconds - origin_seconds
            if own and each.name == own[-1].name == generates:
                own[-1] = replace(own[-1], end_seconds=max(own[-1].end_seconds, end))
                continue
            start = max(start, own[-1].end_seconds) if own else start
            own.append(
                Span(
                    name=each.name,
                    pool=each.pool,
                    iteration=iteration,
                    start_seconds=start,
                    end_seconds=max(start, end),
                    activity=each.activity,
                )
            )
        spans += own
    return tuple(spans)
