"""Spans out of what ranks report: a call's time on its pool, from inputs there to outputs there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from executor.workers.calls import CallReport
from rlplan.trace import Activity, Span

PoolRank = tuple[str, int]
"""A pool's name and a rank in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """Hold what the ranks of one call reported.

    Attributes:
        pool: Pool on which the span is noted.
        reports: By pool and rank; a transition between pools has ranks of both.
        sent_seconds: When sending began, on the host's clock as in reports.
        free_seconds: By pool and rank, when its call before this one ended; of any iteration.
        parents: Calls whose outputs it waited for, by name.
    """

    name: str
    pool: str
    activity: Activity
    reports: Mapping[PoolRank, CallReport]
    sent_seconds: float
    free_seconds: Mapping[PoolRank, float] = field(default_factory=dict)
    parents: tuple[str, ...] = ()

    def free_from(self, pool_rank: PoolRank) -> float:
        """Return when a rank was free for this call, in the clock's seconds."""
        return max(self.sent_seconds, self.free_seconds.get(pool_rank, self.sent_seconds))


def measured_spans(
    calls: Sequence[Reported], iteration: int, origin_seconds: float
) -> tuple[Span, ...]:
    """Return the spans of an iteration's calls, which are given in the order in which they were sent.

    A rank starts when its call before is done, this one was sent and the inputs made on its own pool
    are there: handing the call over is part of its time. Where it waits longer for another pool, it
    starts when it has what that pool made. The span is from the last rank's start to the last rank's
    end: a rank that started earlier worked while its pool was still busy with the task before.

    Args:
        origin_seconds: What span times count from, on the host's clock as in reports.
    """
    ends: dict[str, Reported] = {}
    spans = []
    for call in calls:
        parents = [ends[name] for name in call.parents if name in ends]
        starts = [
            _rank_start(pool_rank, report, call.free_from(pool_rank), parents)
            for pool_rank, report in call.reports.items()
        ]
        between_pools = len({pool for pool, _ in call.reports}) > 1
        if between_pools:
            # What sends may have been ready while the pool that receives still worked.
            receiving = [pool_rank for pool_rank in call.reports if pool_rank[0] == call.pool]
            start = max(min(starts), *map(call.free_from, receiving))
        else:
            start = max(starts)
        spans.append(
            Span(
                name=call.name,
                pool=call.pool,
                iteration=iteration,
                start_seconds=start - origin_seconds,
                end_seconds=_end(call) - origin_seconds,
                activity=call.activity,
            )
        )
        ends[call.name] = call
    return tuple(spans)


def _rank_start(
    pool_rank: PoolRank, report: CallReport, free_seconds: float, parents: Sequence[Reported]
) -> float:
    """Return when a rank started, in the clock's seconds."""
    here = [_end(parent) for parent in parents if parent.pool == pool_rank[0]]
    elsewhere = [_end(parent) for parent in parents if parent.pool != pool_rank[0]]
    ready = max([free_seconds, *here])
    if max(elsewhere, default=ready) > ready:
        return report.start_seconds
    # Clocks of one host agree, but a report never begins later than its own work.
    return min(ready, report.start_seconds)


def _end(call: Reported) -> float:
    return max(report.end_seconds for report in call.reports.values())
