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
        free_seconds: By pool and rank, idle ranks of its pools included, when the call before this one
            ended there; of any iteration.
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

    @property
    def pool_free_seconds(self) -> float:
        """Return when all ranks of its pool were free, in the clock's seconds."""
        ranks = self.reports.keys() | self.free_seconds.keys()
        return max(self.free_from(rank) for rank in ranks if rank[0] == self.pool)

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

    A rank starts when its call before is done, this one was sent and the inputs made on its own pool
    are there: handing the call over is part of its time. Where it waits longer for another pool, it
    starts when it has what that pool made. The span is from the last rank's start to the last rank's
    end. It never begins before its whole pool is free, so spans of a pool never overlap: a rank that
    started earlier worked while its pool was still busy with the call before.

    Args:
        origin_seconds: What span times count from, on the host's clock as in reports.
    """
    done: dict[str, Reported] = {}
    spans = []
    for call in calls:
        parents = [done[name] for name in call.parents if name in done]
        starts = [
            _rank_start(pool_rank, report, call.free_from(pool_rank), parents)
            for pool_rank, report in call.reports.items()
        ]
        # Between pools, the first rank that sends may begin while others of its pool still work.
        between_pools = len({pool for pool, _ in call.reports}) > 1
        start = max(min(starts) if between_pools else max(starts), call.pool_free_seconds)
        spans.append(
            Span(
                name=call.name,
                pool=call.pool,
                iteration=iteration,
                start_seconds=start - origin_seconds,
                end_seconds=max(start, call.end_seconds) - origin_seconds,
                activity=call.activity,
            )
        )
        done[call.name] = call
    return tuple(spans)


def _rank_start(
    pool_rank: PoolRank, report: CallReport, free_seconds: float, parents: Sequence[Reported]
) -> float:
    """Return when a rank started, in the clock's seconds."""
    here = [parent.end_seconds for parent in parents if parent.pool == pool_rank[0]]
    elsewhere = [parent.end_seconds for parent in parents if parent.pool != pool_rank[0]]
    ready = max([free_seconds, *here])
    if max(elsewhere, default=ready) > ready:
        return report.start_seconds
    # Clocks of one host agree, but a report never begins later than its own work.
    return min(ready, report.start_seconds)
