"""Spans: what ranks report becomes time on pools, literally."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.control.pending_calls import Reported, measured_spans
from rlplan.executor.workers.calls import CallReport


def reported(name, times, *, pool="p0", activity="task"):
    """Return a call whose seats worked at the given (start, end)."""
    reports = {
        seat if isinstance(seat, tuple) else (pool, seat): CallReport(
            start_seconds=a, end_seconds=b
        )
        for seat, (a, b) in times.items()
    }
    return Reported(name=name, pool=pool, activity=activity, reports=reports)


def trace(*calls):
    """Return the spans of calls that were sent one after another, as numbers."""
    spans = measured_spans(in_order(calls), 0, 100.0)
    return [(span.name, span.pool, span.start_seconds, span.end_seconds) for span in spans]


def in_order(calls):
    """Return calls that know when the calls before them ended on the seats of their pools."""
    free, following = {}, []
    for call in calls:
        pools = {pool for pool, _ in call.reports}
        before = {seat: end for seat, end in free.items() if seat[0] in pools}
        following.append(replace(call, free_seconds=before))
        free |= {seat: report.end_seconds for seat, report in call.reports.items()}
    return following


def test_handing_a_call_over_lies_between_spans():
    assert trace(
        reported("make", {0: (101, 103)}),
        reported("use", {0: (104, 106)}),
    ) == [("make", "p0", 1, 3), ("use", "p0", 4, 6)]


def test_a_span_begins_with_the_last_rank():
    assert trace(
        reported("make", {0: (101, 103), 1: (101, 105)}),
        reported("other", {0: (103, 107), 1: (106, 108)}),
    ) == [("make", "p0", 1, 5), ("other", "p0", 6, 8)]


def test_a_rank_that_is_ahead_works_while_its_pool_is_busy_with_the_call_before():
    assert trace(
        reported("make", {0: (101, 103), 1: (101, 105)}),
        reported("other", {0: (103, 107)}),
    ) == [("make", "p0", 1, 5), ("other", "p0", 5, 7)]


def test_waiting_for_another_pool_does_not_belong_to_a_task():
    assert trace(
        reported("make", {0: (101, 103)}),
        reported("score", {0: (104, 108)}, pool="p1"),
        reported("use", {0: (109, 110)}),
    ) == [("make", "p0", 1, 3), ("score", "p1", 4, 8), ("use", "p0", 9, 10)]


def test_a_transition_between_pools_lasts_from_the_first_that_sends_to_the_last_that_receives():
    times = {("p0", 0): (101, 102), ("p1", 0): (102, 105)}
    assert trace(
        reported("transition", times, pool="p1", activity="transition"),
        reported("make", {0: (106, 108)}, pool="p1"),
    ) == [("transition", "p1", 1, 5), ("make", "p1", 6, 8)]


def test_a_call_that_was_sent_ahead_begins_when_its_pool_was_free_of_the_iteration_before():
    ahead = replace(reported("make", {0: (104, 109)}), free_seconds={("p0", 0): 103.0})
    learning = replace(reported("learn", {0: (109, 112)}), free_seconds={("p0", 0): 109.0})
    spans = measured_spans([ahead, learning], 1, 100.0)
    assert [(span.start_seconds, span.end_seconds) for span in spans] == [(4, 9), (9, 12)]


def test_a_transition_begins_when_the_pool_that_receives_is_free():
    call = reported(
        "transition",
        {("p0", 0): (101, 102), ("p1", 0): (107, 109)},
        pool="p1",
        activity="transition",
    )
    (span,) = measured_spans([replace(call, free_seconds={("p1", 0): 106.0})], 1, 100.0)
    assert (span.start_seconds, span.end_seconds) == (6, 9)


def test_a_rank_that_sends_late_what_nobody_waits_for_does_not_lengthen_a_transition():
    # Seat 1 of p0 holds a second copy: its call has nothing to give and may come any time.
    times = {("p0", 0): (101, 102), ("p0", 1): (106, 107), ("p1", 0): (102, 105)}
    assert trace(
        reported("transition", times, pool="p1", activity="transition"),
        reported("make", {0: (105, 108)}, pool="p1"),
    ) == [("transition", "p1", 1, 5), ("make", "p1", 5, 8)]


def test_a_call_on_some_seats_of_a_pool_begins_when_all_are_free():
    assert trace(
        reported("long", {0: (101, 103), 1: (101, 105)}),
        reported("short", {0: (103, 104)}),
        reported("next", {0: (104, 106), 1: (105, 107)}),
    ) == [("long", "p0", 1, 5), ("short", "p0", 5, 5), ("next", "p0", 5, 7)]


SEATS = [("p0", 0), ("p0", 1), ("p1", 0), ("p1", 1)]
seats_of_calls = st.lists(
    st.lists(st.sampled_from(SEATS), min_size=1, unique=True), min_size=1, max_size=8
)


@given(seats_of_calls, st.data())
def test_spans_of_a_pool_never_overlap_whatever_ranks_report(seats_of_calls, data):
    ends, calls = dict.fromkeys(SEATS, 100), []
    for number, seats in enumerate(seats_of_calls):
        times = {}
        for seat in seats:
            start = ends[seat] + data.draw(st.integers(0, 4))
            ends[seat] = start + data.draw(st.integers(0, 4))
            times[seat] = (start, ends[seat])
        pool = data.draw(st.sampled_from(sorted({pool for pool, _ in seats})))
        calls.append(reported(str(number), times, pool=pool))
    spans = measured_spans(in_order(calls), 0, 100.0)
    for pool in ("p0", "p1"):
        there = [(span.start_seconds, span.end_seconds) for span in spans if span.pool == pool]
        assert all(start <= end for start, end in there)
        assert all(end <= start for (_, end), (start, _) in pairwise(there))
