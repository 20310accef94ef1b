"""Calls that were sent: in what order, and what their reports say."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor.control.calls import CallReport
from executor.control.spans import Reported, Seat
from executor.workers.pools import fetched
from executor.workers.protocols import DP_METRIC, RankPositions, reduce_metrics
from rlplan.dataflow import Task, parents_of
from rlplan.plan import Plan
from rlplan.trace import Activity

HELD = ("redundant_bytes_max", "buffer_bytes_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Hold a call that was sent: where it runs, and by seat the reference of its report.

    Attributes:
        sent_seconds: When sending its part of an iteration began, on the host's clock.
        before: By seat, the reference of the report of the call before it, of whatever iteration.
        parents: Calls whose outputs it waits for, by name.
    """

    name: str
    pool: str
    activity: Activity
    positions: RankPositions
    reports: Mapping[Seat, Any]
    sent_seconds: float
    before: Mapping[Seat, Any]
    parents: tuple[str, ...] = ()


class Outbox:
    """Note the calls that are sent, in their order on every seat."""

    def __init__(self) -> None:
        self._last: dict[Seat, Any] = {}
        self._sent_seconds = 0.0

    def begin(self) -> float:
        """Begin to send a part of an iteration; return when, on the host's clock."""
        self._sent_seconds = time.time()
        return self._sent_seconds

    def note(
        self,
        name: str,
        pool: str,
        activity: Activity,
        positions: RankPositions,
        reports: Mapping[Seat, Any],
        parents: tuple[str, ...] = (),
    ) -> Sent:
        """Return a call that was just sent."""
        before = {seat: self._last[seat] for seat in reports if seat in self._last}
        self._last |= reports
        return Sent(
            name=name,
            pool=pool,
            activity=activity,
            positions=positions,
            reports=reports,
            sent_seconds=self._sent_seconds,
            before=before,
            parents=parents,
        )


def reported_by(calls: Sequence[Sent]) -> list[Reported]:
    """Wait for calls and return what their ranks reported.

    What was before them on their seats has ended by then, since a seat works in the order of sending.
    """
    references = {
        (index, seat, held): reference
        for index, call in enumerate(calls)
        for held, by_seat in (("own", call.reports), ("before", call.before))
        for seat, reference in by_seat.items()
    }
    reports: Mapping[tuple[int, Seat, str], CallReport] = fetched(references)
    return [
        Reported(
            name=call.name,
            pool=call.pool,
            activity=call.activity,
            reports={seat: reports[index, seat, "own"] for seat in call.reports},
            sent_seconds=call.sent_seconds,
            free_seconds={seat: reports[index, seat, "before"].end_seconds for seat in call.before},
            parents=call.parents,
        )
        for index, call in enumerate(calls)
    ]


def metrics_by_task(
    calls: Sequence[Sent], reported: Sequence[Reported]
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


def _metrics(call: Sent, reports: Mapping[Seat, CallReport]) -> dict[str, float]:
    """Return a task's metrics over its data-parallel groups."""
    metrics = {rank: report.metrics for (_, rank), report in reports.items()}
    if len(metrics) < call.positions.ranks:  # idle rule workers
        return reduce_metrics([metrics[rank] for rank in sorted(metrics)])
    reduced: dict[str, float] = DP_METRIC.collect(call.positions, metrics, reduce_metrics)
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
