"""What a stream waits for: references, what is to be done once they are there, and what calls among them measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rlplan.executor.control.pending_calls import (
    CallSpan,
    PendingCall,
    PoolRank,
    Reported,
    joined_spans,
    mean_metrics_by_task,
    stretch_of,
)
from rlplan.executor.workers.calls import CallReport
from rlplan.executor.workers.pools import LOOK_SECONDS, fetched, raise_own
from rlplan.trace import Span

Then = Callable[[list[Any]], None]
Lost = Callable[[], None]


@dataclass(slots=True, eq=False)
class _Wait:
    references: Sequence[Any]
    then: Then
    lost: Lost | None
    lost_by: type[RayError] | tuple[type[RayError], ...]
    missing: int
    values: dict[Any, Any] = field(default_factory=dict)


class Events:
    """Call functions when references are there, one after another."""

    def __init__(self) -> None:
        self._waits: dict[Any, _Wait] = {}

    def when(
        self,
        references: Sequence[Any],
        then: Then,
        lost: Lost | None = None,
        lost_by: type[RayError] | tuple[type[RayError], ...] = RayActorError,
    ) -> None:
        """Call a function with the values of references, all of which are the caller's alone.

        Args:
            lost: Called once instead where the actor that some of them come from has ended; None: the wait
                fails.
            lost_by: What tells that; `RayError`: whatever fails there.
        """
        wait = _Wait(references, then, lost, lost_by, len(references))
        self._waits |= dict.fromkeys(references, wait)

    def wait(self) -> None:
        """Wait for something, and do what is to be done about all that is there.

        Raises:
            UserError: A worker met a mistake of the user's.
            RlplanError: A worker failed or died.
        """
        assert self._waits, "something is under way"
        known = list(self._waits)
        ready: list[Any] = []
        while not ready:
            ready, _ = ray.wait(known, num_returns=1, timeout=LOOK_SECONDS)
        ready, _ = ray.wait(known, num_returns=len(known), timeout=0)
        for reference in ready:
            wait = self._waits.pop(reference, None)
            if wait is not None:
                self._arrived(reference, wait)

    def _arrived(self, reference: Any, wait: _Wait) -> None:
        if wait.lost is None:
            wait.values |= fetched({reference: reference})
        else:
            try:
                wait.values[reference] = ray.get(reference)
            except wait.lost_by:
                for other in wait.references:
                    self._waits.pop(other, None)
                wait.lost()
                return
            except RayTaskError as error:
                raise_own(error)
        wait.missing -= 1
        if not wait.missing:
            wait.then([wait.values[each] for each in wait.references])


class MeasuredCalls:
    """Keep what calls report until an iteration ends.

    Args:
        generates: Name of the task that generates.
    """

    def __init__(self, generates: str) -> None:
        self._generates = generates
        self._stretches: list[CallSpan] = []
        self._calls: list[PendingCall] = []
        self._reported: list[Reported] = []

    def note(self, stretch: CallSpan) -> None:
        """Note when a pool worked."""
        self._stretches.append(stretch)

    def wait_for_those_left(
        self, call: PendingCall, events: Events, lost: Callable[[PoolRank], None]
    ) -> None:
        """Note a call when it is done on all ranks that have not ended meanwhile.

        Args:
            lost: Called for each rank that has.
        """
        found: dict[PoolRank, CallReport] = {}
        left = set(call.reports)

        def note(place: PoolRank) -> None:
            left.discard(place)
            if not left and any(pool == call.pool for pool, _ in found):
                self._note_call(call, found)

        def answered(place: PoolRank, values: Sequence[CallReport]) -> None:
            found[place] = values[0]
            note(place)

        def ended(place: PoolRank) -> None:
            lost(place)
            note(place)

        for place, reference in call.reports.items():
            events.when([reference], partial(answered, place), partial(ended, place))

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
                self._note_call(call, reports)
            then()

        if places:
            events.when([call.reports[place] for call, place in places], note_all)

    def taken(
        self, iteration: int, origin_seconds: float
    ) -> tuple[tuple[Span, ...], dict[str, dict[str, float]]]:
        """Return spans and metrics of what was noted since the last iteration ended, and forget it."""
        spans = joined_spans(self._stretches, iteration, origin_seconds, self._generates)
        metrics = mean_metrics_by_task(self._calls, self._reported)
        self._stretches, self._calls, self._reported = [], [], []
        return spans, metrics

    def _note_call(self, call: PendingCall, reports: Mapping[PoolRank, CallReport]) -> None:
        name, pool, activity = call.name, call.pool, call.activity
        self._calls.append(call)
        self._reported.append(Reported(name=name, pool=pool, activity=activity, reports=reports))
        self.note(stretch_of(name, pool, activity, reports))
