from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.simulator.simulate import cycle_of, first_of, play, shown
from rlplan.simulator.timeline.agenda import batch_ahead
from rlplan.simulator.timeline.assemble import window_of
from rlplan.simulator.timeline.engine import Work
from rlplan.trace import Activity, IterationSpan, Trace

TASKS = tuple(
    task
    for task in load_algorithm("ppo").tasks
    if task.name in ("actor.generate", "critic.compute_values", "actor.update", "critic.update")
)


def work(key, *pools, after=()):
    activity: Activity = "transition" if key == "transition" else "task"
    return Work(key=key, name=key, pool=pools[0], holds=pools, after=after, activity=activity)


def works(critic="t"):
    """Return PPO's works: generation on g, the actor's training on t, the critic's on a pool."""
    return batch_ahead(
        [
            work("transition", "g", "t"),
            work("actor.generate", "g", after=("transition",)),
            work("critic.compute_values", critic, after=("actor.generate",)),
            work("actor.update", "t", after=("critic.compute_values",)),
            work("critic.update", critic, after=("critic.compute_values",)),
        ],
        TASKS,
    )


ORDER = {
    "t": ["critic.compute_values", "actor.update", "critic.update"],
    "c": ["critic.compute_values", "critic.update"],
}
NAMES = {
    "transition": "sync", "actor.generate": "generate", "critic.compute_values": "values",
    "actor.update": "actor", "critic.update": "critic",
}  # fmt: skip


def played(seconds, *, critic="t", iterations=3):
    lengths = dict(zip(NAMES, seconds, strict=True))
    trace = play(works(critic), lengths, ORDER, iterations=iterations + 2, overlapping=True)
    return first_of(trace, iterations)


def literal(trace):
    return [
        (f"{NAMES[span.name]} {span.iteration}", span.start_seconds, span.end_seconds)
        for span in trace.spans
    ]


def ends(trace):
    return [each.end_seconds for each in trace.iterations]


def test_with_long_generation_an_iteration_takes_generation_and_the_sync():
    trace = played([1.0, 10.0, 3.0, 4.0, 1.0])
    assert literal(trace) == [
        ("sync 0", 0, 1),
        ("generate 0", 1, 11),
        ("sync 1", 11, 12),
        ("generate 1", 12, 22),
        ("values 0", 12, 15),
        ("actor 0", 15, 19),
        ("critic 0", 19, 20),
        ("sync 2", 22, 23),
        ("generate 2", 23, 33),
        ("values 1", 23, 26),
        ("actor 1", 26, 30),
        ("critic 1", 30, 31),
        ("values 2", 34, 37),
        ("actor 2", 37, 41),
        ("critic 2", 41, 42),
    ]
    assert ends(trace) == [20, 31, 42]


def test_with_long_training_an_iteration_takes_all_of_training_and_the_sync():
    trace = played([1.0, 4.0, 3.0, 4.0, 1.0])
    assert literal(trace) == [
        ("sync 0", 0, 1),
        ("generate 0", 1, 5),
        ("sync 1", 5, 6),
        ("generate 1", 6, 10),
        ("values 0", 6, 9),
        ("actor 0", 9, 13),
        ("sync 2", 13, 14),
        ("generate 2", 14, 18),
        ("critic 0", 14, 15),
        ("values 1", 15, 18),
        ("actor 1", 18, 22),
        ("critic 1", 23, 24),
        ("values 2", 24, 27),
        ("actor 2", 27, 31),
        ("critic 2", 32, 33),
    ]
    assert ends(trace) == [15, 24, 33]


def test_a_critic_on_a_pool_of_its_own_overlaps_with_the_actor():
    trace = played([1.0, 4.0, 3.0, 4.0, 4.0], critic="c")
    assert literal(trace)[:9] == [
        ("sync 0", 0, 1),
        ("generate 0", 1, 5),
        ("values 0", 5, 8),
        ("sync 1", 5, 6),
        ("generate 1", 6, 10),
        ("critic 0", 8, 12),
        ("actor 0", 8, 12),
        ("values 1", 12, 15),
        ("sync 2", 12, 13),
    ]
    assert ends(trace) == [12, 19, 26]


@given(st.tuples(*[st.integers(1, 9).map(float) for _ in NAMES]), st.sampled_from(["t", "c", "g"]))
def test_samples_are_at_most_one_update_old_and_no_pool_beats_its_work(seconds, critic):
    trace = played(seconds, critic=critic, iterations=16)
    at = {(span.name, span.iteration): span for span in trace.spans}
    for i in range(2, 16):
        assert at["transition", i].start_seconds >= at["actor.update", i - 2].end_seconds
        assert (
            at["critic.compute_values", i].start_seconds >= at["critic.update", i - 1].end_seconds
        )
    held = defaultdict(list)
    pools = {each.key: each.holds for each in works(critic)}
    for span in trace.spans:
        for pool in pools[span.name]:
            held[pool].append((span.start_seconds, span.end_seconds))
    for spans in held.values():
        assert all(one[1] <= other[0] for one, other in pairwise(sorted(spans)))
    cycle = cycle_of(trace)
    length = window_of(trace.iterations[-cycle:]).seconds / cycle
    lengths = dict(zip(NAMES, seconds, strict=True))
    for pool in ("g", "t", "c"):
        assert length >= sum(lengths[key] for key, holds in pools.items() if pool in holds) - 1e-9
    chain = sum(seconds) - min(lengths["actor.update"], lengths["critic.update"])
    assert length >= chain / 2 - 1e-9 or critic == "g"


def trace_of(*lengths):
    spans, begin = [], 0.0
    for index, length in enumerate(lengths):
        spans.append(
            IterationSpan(iteration=index, start_seconds=begin, end_seconds=begin + length)
        )
        begin += length
    return Trace(origin="simulated", spans=(), iterations=tuple(spans))


@pytest.mark.parametrize(
    ("lengths", "cycle", "seconds", "kept"),
    [
        ((20, 11, 11, 11), 1, 11, 2),
        ((20, 9, 10, 8, 10, 8), 2, 9, 4),
        ((5, 5, 5, 5), 1, 5, 1),
        ((1, 2, 4, 8, 16, 32, 64, 128), 4, 60, 8),
    ],
)
def test_a_cycle_is_found_and_the_trace_is_cut_after_it(lengths, cycle, seconds, kept):
    trace = trace_of(*lengths)
    assert cycle_of(trace) == cycle
    assert window_of(trace.iterations[-cycle:]).seconds / cycle == seconds
    assert len(shown(trace, cycle, 1).iterations) == kept
