"""Spans: what ranks report becomes time on pools, literally."""

from executor.calls import CallReport
from executor.spans import Reported, measured_spans


def reported(name, times, *, pool="p0", parents=(), activity="task"):
    """Return a call whose seats worked at the given (start, end)."""
    reports = {
        seat if isinstance(seat, tuple) else (pool, seat): CallReport(
            start_seconds=a, end_seconds=b
        )
        for seat, (a, b) in times.items()
    }
    return Reported(name=name, pool=pool, activity=activity, reports=reports, parents=parents)


def trace(*calls, begin=100.0):
    spans = measured_spans(calls, 0, begin, 100.0)
    return [(span.name, span.pool, span.start_seconds, span.end_seconds) for span in spans]


def test_handing_a_call_over_belongs_to_its_time():
    assert trace(
        reported("make", {0: (101, 103)}),
        reported("use", {0: (104, 106)}, parents=("make",)),
    ) == [("make", "p0", 0, 3), ("use", "p0", 3, 6)]


def test_a_span_begins_with_the_turn_of_the_last_rank():
    assert trace(
        reported("make", {0: (101, 103), 1: (101, 105)}),
        reported("other", {0: (103, 107), 1: (105, 106)}),
    ) == [("make", "p0", 0, 5), ("other", "p0", 5, 7)]


def test_waiting_for_another_pool_does_not_belong_to_a_task():
    assert trace(
        reported("make", {0: (101, 103)}),
        reported("score", {0: (104, 108)}, pool="p1", parents=("make",)),
        reported("use", {0: (109, 110)}, parents=("score",)),
    ) == [("make", "p0", 0, 3), ("score", "p1", 4, 8), ("use", "p0", 9, 10)]


def test_what_another_pool_made_while_the_own_was_busy_costs_no_wait():
    assert trace(
        reported("make", {0: (101, 103)}),
        reported("score", {0: (103, 104)}, pool="p1", parents=("make",)),
        reported("long", {0: (103, 109)}, parents=("make",)),
        reported("use", {0: (110, 112)}, parents=("score", "long")),
    )[-1] == ("use", "p0", 9, 12)


def test_a_transition_between_pools_lasts_from_the_first_that_sends_to_the_last_that_receives():
    times = {("p0", 0): (101, 102), ("p1", 0): (102, 105)}
    assert trace(
        reported("transition", times, pool="p1", activity="transition"),
        reported("make", {0: (106, 108)}, pool="p1"),
    ) == [("transition", "p1", 0, 5), ("make", "p1", 5, 8)]
