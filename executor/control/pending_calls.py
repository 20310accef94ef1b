"""Calls under way: in what order they are sent, and spans and metrics out of what ranks report of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from rlplan.dataflow import Task, parents_of
from rlplan.executor.parallel.positions import RankPositions
from rlplan.executor.workers.calls import CallReport
from rlplan.executor.workers.pools import fetched
from rlplan.executor.workers.protocols import PROTOCOLS
from rlplan.plan import Plan
from rlplan.trace import Activity, Span

# What is the same, or held again, each time that a task runs in an iteration.
HELD = ("redundant_bytes_max", "buffer_bytes_max", "learning_rate_max")

PoolRank = tuple[str, int]
"""A pool's name and a rank in it."""


# Spans out of what ranks report: when a pool worked on a call.
#
# Where all ranks of a pool work on one call at a time, a span reaches from its last rank's start to its last rank's
# end (`measured_spans`). Where replicas of a pool work on different calls, it begins with the first of them
# (`joined_spans`).


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """Hold a call that was sent: where it runs, and by pool and rank the reference of its report.

    Attributes:
        before: By pool and rank, idle ranks of its pools included, the reference of the report of the
            call before it, of whatever iteration.
    """

    name: str
    pool: str
    activity: Activity
    positions: RankPositions
    reports: Mapping[PoolRank, Any]
    before: Mapping[PoolRank, Any]


class CallLog:
    """Note the calls that are sent, in their order on every rank."""

    def __init__(self) -> None:
        self._last: dict[PoolRank, Any] = {}

    def note(
        self,
        name: str,
        pool: str,
        activity: Activity,
        positions: RankPositions,
        reports: Mapping[PoolRank, Any],
    ) -> PendingCall:
        """Return a call that was just sent."""
        pools = {pool for pool, _ in reports}
        before = {rank: last for rank, last in self._last.items() if rank[0] in pools}
        self._last |= reports
        return PendingCall(
            name=name,
            pool=pool,
            activity=activity,
            positions=positions,
            reports=reports,
            before=before,
        )


def reported_by(calls: Sequence[PendingCall]) -> list[Reported]:
    """Wait for calls and return what their ranks reported.

    What was before them on their ranks has ended by then, since a rank works in the order of sending;
    a rank that a call leaves idle may still work on what was sent to it before.
    """
    references = {
        (index, pool_rank, held): reference
        for index, call in enumerate(calls)
        for held, by_rank in (("own", call.reports), ("before", call.before))
        for pool_rank, reference in by_rank.items()
    }
    reports: Mapping[tuple[int, PoolRank, str], CallReport] = fetched(references)
    return [
        Reported(
            name=call.name,
            pool=call.pool,
            activity=call.activity,
            reports={pool_rank: reports[index, pool_rank, "own"] for pool_rank in call.reports},
            free_seconds={
                pool_rank: reports[index, pool_rank, "before"].end_seconds
                for pool_rank in call.before
            },
        )
        for index, call in enumerate(calls)
    ]


def metrics_by_task(
    calls: Sequence[PendingCall], reported: Sequence[Reported]
) -> dict[str, dict[str, float]]:
    """Return the metrics of each task, and of the transition of weights, by name.

    Those of what ran several times are added up, but what was held at a time.
    """
    found: dict[str, dict[str, float]] = {}
    for call, done in zip(calls, reported, strict=True):
        total = found.setdefault(call.name, {})
        measured = (
            _metrics(call, done.reports)
            if call.activity == "task"
            else reduce_metrics([report.metrics for report in done.reports.values()])
        )
        for name, value in measured.items():
            before = total.get(name, 0.0)
            total[name] = max(before, value) if name in HELD else before + value
    return found


def mean_metrics_by_task(
    calls: Sequence[PendingCall], reported: Sequence[Reported]
) -> dict[str, dict[str, float]]:
    """Return the metrics of each task, which was sent in several calls: sums added up, means averaged over the calls."""
    counts = Counter(call.name for call in calls)
    return {
        task: {
            name: value if name.endswith(("_sum", "_max")) else value / counts[task]
            for name, value in values.items()
        }
        for task, values in metrics_by_task(calls, reported).items()
    }


def _metrics(call: PendingCall, reports: Mapping[PoolRank, CallReport]) -> dict[str, float]:
    """Return a task's metrics over its data-parallel groups."""
    metrics = {rank: report.metrics for (_, rank), report in reports.items()}
    if len(metrics) < call.positions.ranks:  # idle rule workers
        return reduce_metrics([metrics[rank] for rank in sorted(metrics)])
    reduced: dict[str, float] = PROTOCOLS.load("dp-metric").collect(
        call.positions, metrics, reduce_metrics
    )
    return reduced


def sending_order(plan: Plan, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Return all tasks after their parents, and by the plan's order where tasks wait for one pool.

    The order is a priority: a task that is ready does not wait for one that comes earlier in the
    order but whose inputs are not made yet.
    """
    rank = {name: position for order in plan.order.values() for position, name in enumerate(order)}
    waiting, sent = list(tasks), dict[str, Task]()
    while waiting:
        ready = [t for t in waiting if all(p.name in sent for p in parents_of(t, tasks))]
        assert ready, "a dataflow has no cycles"
        pool = plan.tasks[ready[0].name].pool
        task = min(
            (t for t in ready if plan.tasks[t.name].pool == pool), key=lambda t: rank[t.name]
        )
        waiting.remove(task)
        sent[task.name] = task
    return tuple(sent.values())


def reduce_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Join metrics of data-parallel groups (DP_METRIC): by the last word of their names.

    `..._max` keeps the largest, `..._mean` the mean; everything else is summed.
    """
    names = list(dict.fromkeys(name for part in parts for name in part))
    return {name: _reduced(name, [part[name] for part in parts if name in part]) for name in names}


def _reduced(name: str, values: list[float]) -> float:
    if name.endswith("_max"):
        return max(values)
    return sum(values) / len(values) if name.endswith("_mean") else sum(values)
