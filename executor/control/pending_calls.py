"""Pending calls: in what order they are sent, and the metrics in their reports."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlplan.dataflow import Task, parents_of
from rlplan.executor.control.spans import PoolRank, Reported
from rlplan.executor.parallel.positions import RankPositions
from rlplan.executor.workers.calls import CallReport
from rlplan.executor.workers.pools import fetched
from rlplan.executor.workers.protocols import PROTOCOLS
from rlplan.plan import Plan
from rlplan.trace import Activity

# What is the same, or held again, each time that a task runs in an iteration.
HELD = ("redundant_bytes_max", "buffer_bytes_max", "learning_rate_max")


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
