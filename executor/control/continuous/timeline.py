"""What calls of an iteration measured: spans that do not overlap on a pool, and metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rlplan.executor.control.continuous.events import Events
from rlplan.executor.control.pending_calls import PendingCall, metrics_by_task
from rlplan.executor.control.spans import PoolRank, Reported
from rlplan.executor.workers.calls import CallReport
from rlplan.trace import Activity, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpan:
    """Hold when a pool worked on a call, on the host's clock."""

    name: str
    pool: str
    activity: Activity
    start_seconds: float
    end_seconds: float


class Log:
    """Keep what calls report until an iteration ends.

    Args:
        generates: Name of the task that generates.
    """

    def __init__(self, generates: str) -> None:
        self._generates = generates
        self._stretches: list[CallSpan] = []
        self._calls: list[tuple[PendingCall, dict[PoolRank, CallReport]]] = []

    def note(self, stretch: CallSpan) -> None:
        """Note when a pool worked."""
        self._stretches.append(stretch)

    def wait_for(
        self, calls: Sequence[PendingCall], events: Events, then: Callable[[], None]
    ) -> None:
        """Note calls when they are done; call a function after the last of them."""
        places = [(call, place) for call in calls for place in call.reports]

        def note_all(values: list[CallReport]) -> None:
            for call in calls:
                reports = {
                    place: report
                    for (other, place), report in zip(places, values, strict=True)
                    if other is call
                }
                self._calls.append((call, reports))
                self.note(stretch_of(call.name, call.pool, call.activity, reports))
            then()

        if places:
            events.when([call.reports[place] for call, place in places], note_all)

    def taken(
        self, iteration: int, origin_seconds: float
    ) -> tuple[tuple[Span, ...], dict[str, dict[str, float]]]:
        """Return what was noted since the last iteration ended, and forget it."""
        spans = spans_of(self._stretches, iteration, origin_seconds, self._generates)
        metrics = joined_metrics(self._calls)
        self._stretches, self._calls = [], []
        return spans, metrics


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


def spans_of(
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


def joined_metrics(
    calls: Sequence[tuple[PendingCall, Mapping[PoolRank, CallReport]]],
) -> dict[str, dict[str, float]]:
    """Return by task the metrics of its calls: sums added up, means averaged over the calls."""
    reported = [
        Reported(
            name=call.name,
            pool=call.pool,
            activity=call.activity,
            reports=reports,
        )
        for call, reports in calls
    ]
    metrics = metrics_by_task([call for call, _ in calls], reported)
    counts: dict[str, int] = {}
    for call, _ in calls:
        counts[call.name] = counts.get(call.name, 0) + 1
    return {
        task: {
            name: value if name.endswith(("_sum", "_max")) else value / counts[task]
            for name, value in values.items()
        }
        for task, values in metrics.items()
    }
