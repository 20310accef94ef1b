"""A trace in the Chrome trace format, which Perfetto (ui.perfetto.dev) opens.

Format: "Trace Event Format", Google, complete events (`ph: X`) with metadata (`ph: M`);
timestamps and durations in microseconds. A process is a pool, its threads are its tasks and its
transfers; iterations have a process of their own, above the pools.
"""

from collections.abc import Sequence
from typing import Any

from rlplan.plan import Plan
from rlplan.trace import IterationSpan, Span, Trace
from rlplan.units import microseconds_from_seconds

Event = dict[str, Any]
ITERATIONS_PROCESS = 0


def trace_events(trace: Trace, plan: Plan) -> dict[str, Any]:
    """Return a trace as Chrome trace JSON, timestamps in microseconds."""
    events = [
        _name("process_name", ITERATIONS_PROCESS, 0, f"iterations ({trace.origin})"),
        _name("thread_name", ITERATIONS_PROCESS, 0, "iterations"),
    ]
    for each in trace.iterations:
        name = f"iteration {each.iteration}"
        events.append(_slice(name, "iteration", each, ITERATIONS_PROCESS, 0))
    for process, (pool, title) in enumerate(_pools(trace, plan).items(), 1):
        events.append(_name("process_name", process, 0, title))
        spans = [span for span in trace.spans if span.pool == pool]
        work = [span for span in spans if span.activity != "transfer"]
        moves = [span for span in spans if span.activity == "transfer"]
        lanes = [("tasks", lane) for lane in _lanes(work)]
        lanes += [("transfers", lane) for lane in _lanes(moves)]
        for thread, (kind, lane) in enumerate(lanes):
            events.append(_name("thread_name", process, thread, f"{pool} {kind}"))
            events += [_slice(span.name, span.activity, span, process, thread) for span in lane]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _pools(trace: Trace, plan: Plan) -> dict[str, str]:
    """Return titles by pool: the plan's, then those that only the trace names."""
    titles = {pool.name: f"{pool.name} ({pool.gpus} x {pool.device})" for pool in plan.pools}
    others = dict.fromkeys(span.pool for span in trace.spans)
    return titles | {name: name for name in others if name not in titles}


def _lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """Spread spans over as few lanes as keep those of one lane apart, since slices must not cross."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda each: (each.start_seconds, each.name)):
        for lane in lanes:
            if lane[-1].end_seconds <= span.start_seconds:
                lane.append(span)
                break
        else:
            lanes.append([span])
    return lanes


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _slice(
    name: str, category: str, span: Span | IterationSpan, process: int, thread: int
) -> Event:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": microseconds_from_seconds(span.start_seconds),
        "dur": microseconds_from_seconds(span.seconds),
        "pid": process,
        "tid": thread,
        "args": {"iteration": span.iteration},
    }
