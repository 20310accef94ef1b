"""Iterations that overlap: how they wait for each other, and how long one takes in the long run.

One step off (generate i+1 while training i): generation runs one iteration ahead on a pool of its own.
The weights of update i-1 go over before the generation of i+1 begins, as soon as both pools are free,
ahead of the training pool's next tasks; so samples are trained on that were generated with weights one
update old. Preparation and updates go on one iteration at a time, as a controller's loop has them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rlplan.dataflow import Task
from rlplan.simulator.timeline.engine import Work
from rlplan.trace import IterationSpan, Trace

# Iterations are played until their lengths repeat. Those of a cyclic schedule do after few: a first
# one that fills the pools, and then cycles no longer than there are pools that hold each other up.
LONGEST_CYCLE = 4
ITERATIONS_PLAYED = 4 * LONGEST_CYCLE
# The last ones have nothing behind them to share the pools with, and are played but not counted.
EMPTYING_ITERATIONS = 2
ROUNDING = 1e-9


def one_step_off(works: Iterable[Work], tasks: Sequence[Task], transition: str) -> list[Work]:
    """Return the works of an iteration with what they wait for of earlier ones.

    Args:
        tasks: The algorithm's tasks; works of other keys are transitions and transfers.
        transition: Key of the transition before generation.
    """
    by_key = {task.name: task for task in tasks}
    trained = [task.name for task in tasks if task.kind == "train"]
    generating = {task.role for task in tasks if task.kind == "generate"}
    updates = tuple(
        (task.name, 2) for task in tasks if task.kind == "train" and task.role in generating
    )
    generated = tuple((task.name, 1) for task in tasks if task.kind == "generate")
    before = tuple((name, 1) for name in trained)
    found = []
    for work in works:
        task = by_key.get(work.key)
        if work.key == transition:
            found.append(replace(work, earlier=(*updates, *generated), ahead=2))
        elif task is not None and task.kind == "generate":
            found.append(replace(work, earlier=updates))
        elif task is not None:
            found.append(replace(work, earlier=before))
        else:
            found.append(work)
    return found


def cycle_of(trace: Trace) -> int:
    """Return after how many iterations their lengths repeat; half of those played if they never do."""
    seconds = [each.seconds for each in trace.iterations]
    for length in range(1, LONGEST_CYCLE + 1):
        last, before = seconds[-length:], seconds[-2 * length : -length]
        if len(before) == length and all(map(_close, last, before)):
            return length
    return max(1, len(seconds) // 2)


def window_of(iterations: Sequence[IterationSpan]) -> IterationSpan:
    """Return iterations that follow each other as one span, under the last one's number."""
    return replace(iterations[-1], start_seconds=iterations[0].start_seconds)


def shown(trace: Trace, cycle: int, iterations: int) -> Trace:
    """Return the trace's first iterations: until their lengths repeat, and `iterations` of these.

    Spans that later iterations begin in that time are shown as well.
    """
    seconds = [each.seconds for each in trace.iterations]
    settled = len(seconds) - cycle
    while settled > 0 and _close(seconds[settled - 1], seconds[settled - 1 + cycle]):
        settled -= 1
    kept = trace.iterations[: min(len(seconds), settled + max(cycle, iterations))]
    end = kept[-1].end_seconds
    return replace(
        trace,
        spans=tuple(span for span in trace.spans if span.start_seconds < end),
        iterations=kept,
    )


def first_of(trace: Trace, iterations: int) -> Trace:
    """Return the trace's first iterations."""
    return replace(
        trace,
        spans=tuple(span for span in trace.spans if span.iteration < iterations),
        iterations=trace.iterations[:iterations],
    )


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= ROUNDING * max(one, other)
