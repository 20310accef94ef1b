from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.simulator.simulate import play
from rlplan.simulator.timeline.assemble import critical_path, idle_seconds, seconds_by_stage
from rlplan.simulator.timeline.engine import Work


def task(name, pool, *after):
    return Work(key=name, name=name, pool=pool, holds=(pool,), after=after)


WORKS = (
    task("generate", "p0"),
    task("values", "p1", "generate"),
    task("reward", "p1", "generate"),
    task("reference", "p0", "generate"),
    task("update", "p0", "values", "reward", "reference"),
)
SECONDS = {"generate": 10.0, "values": 2.0, "reward": 4.0, "reference": 3.0, "update": 5.0}
ORDER = {"p1": ["values", "reward"]}
STAGE = {
    "generate": "generation",
    "values": "preparation",
    "reward": "preparation",
    "reference": "preparation",
    "update": "training",
}


def staged(path):
    return [((span.start_seconds, span.end_seconds), STAGE[span.name]) for span in path]


def test_the_path_goes_through_the_pool_that_was_waited_for():
    trace = play(WORKS, SECONDS, ORDER)
    path = critical_path(trace.spans, WORKS)
    assert [span.name for span in path] == ["generate", "values", "reward", "update"]


def test_stage_seconds_are_those_of_the_path():
    path = critical_path(play(WORKS, SECONDS, ORDER).spans, WORKS)
    stages = ("generation", "preparation", "training", "transition")
    assert seconds_by_stage(staged(path), stages) == {
        "generation": 10,
        "preparation": 6,
        "training": 5,
        "transition": 0,
    }


def test_idle_pools_say_what_they_wait_for():
    trace = play(WORKS, SECONDS, ORDER)
    path = staged(critical_path(trace.spans, WORKS))
    idle = idle_seconds(["p0", "p1", "p2"], trace.iterations[0], trace.spans, WORKS, path)
    assert idle == {
        "waiting in preparation": 3,  # p0 from 13 to 16
        "waiting in generation": 10,  # p1
        "no work left in training": 5 + 5,  # p1, p2
        "no work left in generation": 10,  # p2 has no work at all
        "no work left in preparation": 6,
    }


@st.composite
def programs(draw):
    works = []
    for index in range(draw(st.integers(1, 8))):
        names = [work.name for work in works]
        parents = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
        works.append(task(f"t{index}", draw(st.sampled_from(["p0", "p1", "p2"])), *parents))
    return tuple(works), {work.key: float(draw(st.integers(1, 9))) for work in works}


@given(programs())
def test_the_path_has_no_hole_from_the_begin_to_the_end(program):
    works, seconds = program
    trace = play(works, seconds, {}, iterations=2)
    path = critical_path(trace.of_iteration(1), works)
    assert path[0].start_seconds == trace.iterations[1].start_seconds
    assert path[-1].end_seconds == trace.iterations[1].end_seconds
    assert all(before.end_seconds == after.start_seconds for before, after in pairwise(path))


@given(programs())
def test_busy_and_idle_fill_every_pool(program):
    works, seconds = program
    trace = play(works, seconds, {})
    path = [
        ((span.start_seconds, span.end_seconds), "work")
        for span in critical_path(trace.spans, works)
    ]
    pools = ["p0", "p1", "p2"]
    idle = idle_seconds(pools, trace.iterations[0], trace.spans, works, path)
    busy = Counter()
    for span in trace.spans:
        busy[span.pool] += span.seconds
    length = trace.iterations[0].seconds
    assert sum(idle.values()) + busy.total() == pytest.approx(len(pools) * length)
