import json
from collections import defaultdict
from itertools import pairwise

import jsonschema

from rlplan.simulator.timeline.perfetto import trace_events
from rlplan.trace import IterationSpan, Span, Trace, sorted_spans
from tests.simulator.plans import split_plan

# What Perfetto's importer of the Chrome JSON format asks of complete and metadata events.
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "ph", "pid", "tid"],
                "properties": {
                    "name": {"type": "string"},
                    "pid": {"type": "integer"},
                    "tid": {"type": "integer"},
                },
                "oneOf": [
                    {
                        "required": ["ts", "dur", "cat"],
                        "properties": {
                            "ph": {"const": "X"},
                            "ts": {"type": "number", "minimum": 0},
                            "dur": {"type": "number", "minimum": 0},
                        },
                    },
                    {
                        "required": ["args"],
                        "properties": {
                            "ph": {"const": "M"},
                            "name": {"enum": ["process_name", "thread_name"]},
                            "args": {"type": "object", "required": ["name"]},
                        },
                    },
                ],
            },
        },
    },
}


def span(name, pool, start, end, activity="task"):
    return Span(
        name=name,
        pool=pool,
        iteration=0,
        start_seconds=start,
        end_seconds=end,
        activity=activity,
    )


def trace(*spans):
    whole = IterationSpan(iteration=0, start_seconds=0.0, end_seconds=4.0)
    return Trace(origin="simulated", spans=sorted_spans(list(spans)), iterations=(whole,))


TRACE = trace(
    span("actor.generate", "p0", 0.0, 1.5),
    span("transfer:sequences", "p1", 1.5, 1.75, "transfer"),
    span("reference.compute_log_prob", "p0", 1.5, 2.0),
    span("critic.compute_values", "p1", 1.75, 4.0),
)


def test_the_trace_keeps_the_chrome_format_after_a_round_through_json():
    jsonschema.validate(json.loads(json.dumps(trace_events(TRACE, split_plan()))), SCHEMA)


def test_spans_become_slices_in_microseconds_on_their_pools_process():
    events = trace_events(TRACE, split_plan())["traceEvents"]
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    values = slices["critic.compute_values"]
    assert (values["ts"], values["dur"], values["pid"], values["tid"]) == (1750000, 2250000, 2, 0)
    assert slices["transfer:sequences"]["tid"] == 1
    assert slices["iteration 0"] == {
        "name": "iteration 0",
        "cat": "iteration",
        "ph": "X",
        "ts": 0,
        "dur": 4000000,
        "pid": 0,
        "tid": 0,
        "args": {"iteration": 0},
    }


def test_processes_bear_the_names_of_pools_and_their_devices():
    events = trace_events(TRACE, split_plan())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["iterations (simulated)", "p0 (2 x a100-80gb-sxm)", "p1 (2 x a100-80gb-sxm)"]


def test_spans_that_overlap_get_threads_of_their_own():
    crossing = trace(
        span("a", "p0", 0.0, 2.0), span("b", "p0", 1.0, 3.0), span("c", "controller", 0.0, 1.0)
    )
    events = trace_events(crossing, split_plan())["traceEvents"]
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(lanes) == 4
    for lane in lanes.values():
        assert all(before[1] <= after[0] for before, after in pairwise(lane))
