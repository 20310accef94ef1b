from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.simulator.simulate import play
from rlplan.simulator.timeline.engine import Engine, ListScheduling, Queueing, Work, WorkRun


def task(name, pool, *after):
    return Work(key=name, name=name, pool=pool, holds=(pool,), after=after)


def literal(trace):
    return [(span.name, span.start_seconds, span.end_seconds) for span in trace.spans]


def makespan(trace):
    return trace.iterations[-1].end_seconds


PPO = (
    task("generate", "p0"),
    task("values", "p1", "generate"),
    task("reference", "p0", "generate"),
    task("reward", "p1", "generate"),
    task("actor update", "p0", "values", "reference", "reward"),
    task("critic update", "p1", "values", "reference", "reward"),
)
SECONDS = {
    "generate": 10.0,
    "values": 2.0,
    "reference": 3.0,
    "reward": 4.0,
    "actor update": 5.0,
    "critic update": 1.0,
}


def test_a_split_ppo_iteration_is_played_to_the_letter():
    trace = play(PPO, SECONDS, {"p1": ["reward", "values", "critic update"]})
    assert literal(trace) == [
        ("generate", 0, 10),
        ("reference", 10, 13),
        ("reward", 10, 14),
        ("values", 14, 16),
        ("actor update", 16, 21),
        ("critic update", 16, 17),
    ]


def test_the_order_decides_who_goes_first_on_a_pool():
    trace = play(PPO, SECONDS, {"p1": ["values", "reward", "critic update"]})
    assert literal(trace)[1:4] == [("reference", 10, 13), ("values", 10, 12), ("reward", 12, 16)]


def test_a_pool_freed_and_a_child_ready_at_one_instant_follow_the_order():
    works = (task("a", "p0"), task("late", "p0"), task("child", "p0", "a"))
    trace = play(works, {"a": 1.0, "late": 1.0, "child": 1.0}, {"p0": ["a", "child", "late"]})
    assert literal(trace) == [("a", 0, 1), ("child", 1, 2), ("late", 2, 3)]


def test_the_next_iteration_begins_when_all_tasks_of_the_last_ended():
    trace = play(PPO, SECONDS, {}, iterations=2)
    assert [(each.start_seconds, each.end_seconds) for each in trace.iterations] == [
        (0, 21),
        (21, 42),
    ]
    assert [span.start_seconds for span in trace.of_iteration(1) if span.name == "generate"] == [21]


def test_a_work_that_holds_two_pools_waits_for_both():
    both = Work(key="both", name="both", pool="p0", holds=("p0", "p1"), activity="transition")
    works = (task("long", "p1"), both, task("after", "p0", "both"))
    trace = play(works, {"long": 4.0, "both": 1.0, "after": 2.0}, {"p1": ["long"]})
    assert literal(trace) == [("both", 0, 1), ("after", 1, 3), ("long", 1, 5)]
    assert trace.spans[0].activity == "transition"


def test_transfers_of_one_link_go_one_after_another():
    works = (
        task("make", "p0"),
        *(
            Work(
                key=name,
                name=f"transfer:{name}",
                pool="p1",
                holds=("p0 out", "p1 in"),
                after=("make",),
                activity="transfer",
            )
            for name in ("x", "y")
        ),
        task("use", "p1", "x", "y"),
    )
    trace = play(works, {"make": 1.0, "x": 2.0, "y": 3.0, "use": 1.0}, {})
    assert literal(trace) == [
        ("make", 0, 1),
        ("transfer:x", 1, 3),
        ("transfer:y", 3, 6),
        ("use", 6, 7),
    ]


def test_a_faster_task_can_lengthen_an_iteration():
    """Graham's anomaly: x comes first on p1, but only takes y's turn if it is ready in time."""
    works = (
        task("u", "p0"),
        task("v", "p1"),
        task("x", "p1", "u"),
        task("y", "p1", "v"),
        task("z", "p2", "y"),
    )
    order = {"p1": ["v", "x", "y"]}
    seconds = {"v": 2.0, "x": 4.0, "y": 1.0, "z": 6.0}
    slow, fast = play(works, seconds | {"u": 3.0}, order), play(works, seconds | {"u": 2.0}, order)
    assert literal(slow) == [("u", 0, 3), ("v", 0, 2), ("y", 2, 3), ("x", 3, 7), ("z", 3, 9)]
    assert literal(fast) == [("u", 0, 2), ("v", 0, 2), ("x", 2, 6), ("y", 6, 7), ("z", 7, 13)]


def test_works_that_wait_for_each_other_are_our_own_mistake():
    with pytest.raises(AssertionError, match="circle"):
        play((task("a", "p0", "b"), task("b", "p0", "a")), {"a": 1.0, "b": 1.0}, {})


def run(name, holds, seconds, rank=(), **changes):
    work = Work(key=name, name=name, pool=holds[0], holds=holds)
    return WorkRun(work=work, iteration=0, seconds=seconds, rank=rank, **changes)


def started(rule, *runs, **options):
    """Return the spans of works that are all started at once."""
    engine = Engine(rule, **options)
    ended = engine.start(runs)

    def until():
        yield engine.environment.all_of(ended.values())

    return literal(engine.run(until()))


ASKING = (
    run("first", ("p",), 1.0, (3,)),
    run("second", ("p",), 1.0, (2,)),
    run("third", ("p",), 1.0, (1,)),
)


def test_the_best_ranked_of_an_instant_is_the_first_where_works_are_listed():
    assert started(ListScheduling, *ASKING) == [("third", 0, 1), ("second", 1, 2), ("first", 2, 3)]


def test_a_free_pool_goes_to_who_asks_first_where_works_queue_and_then_by_rank():
    assert started(Queueing, *ASKING) == [("first", 0, 1), ("third", 1, 2), ("second", 2, 3)]


HOLDING = (
    run("long", ("x",), 4.0),
    run("both", ("a", "x"), 1.0),
    run("short", ("a",), 1.0),
)


def test_listed_works_keep_nothing_from_others_while_they_wait_for_more():
    assert started(ListScheduling, *HOLDING) == [("short", 0, 1), ("long", 0, 4), ("both", 4, 5)]


def test_queueing_works_keep_what_they_have_while_they_wait_for_more():
    assert started(Queueing, *HOLDING) == [("long", 0, 4), ("both", 4, 5), ("short", 5, 6)]


@pytest.mark.parametrize("rule", [ListScheduling, Queueing])
def test_calls_before_a_work_do_not_hold_its_pool(rule):
    runs = (run("called", ("p",), 1.0, (0,), call_seconds=0.5), run("other", ("p",), 2.0, (1,)))
    assert started(rule, *runs) == [("other", 0, 2), ("called", 2, 3)]


@pytest.mark.parametrize("rule", [ListScheduling, Queueing])
def test_a_run_with_nothing_to_do_ends_when_it_is_started(rule):
    begun = []
    runs = (
        run("nothing", ("p",), None, begins=lambda: begun.append("nothing")),
        run("next", ("p",), 1.0, after=("nothing",), begins=lambda: begun.append("next")),
    )
    assert started(rule, *runs) == [("next", 0, 1)]
    assert begun == ["nothing", "next"]


def test_whoever_watches_hears_when_works_begin_and_end():
    heard = []
    runs = (run("one", ("p",), 1.0), run("two", ("p",), 2.0))
    started(Queueing, *runs, watch=lambda now, work, change: heard.append((now, work.key, change)))
    assert heard == [(0, "one", 1), (1, "one", -1), (1, "two", 1), (3, "two", -1)]


def test_works_share_the_cores_of_a_host():
    runs = (run("one", ("p",), 1.0), run("two", ("q",), 1.0))
    assert started(ListScheduling, *runs, cores=1) == [("one", 0, 2), ("two", 0, 2)]


@st.composite
def programs(draw):
    """Draw a dataflow on up to three pools with whole seconds and a random order."""
    works = []
    for index in range(draw(st.integers(1, 8))):
        names = [work.name for work in works]
        parents = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
        works.append(task(f"t{index}", draw(st.sampled_from(["p0", "p1", "p2"])), *parents))
    seconds = {work.key: float(draw(st.integers(0, 9))) for work in works}
    listed = draw(st.permutations([work.name for work in works]))
    order = {pool: list(listed) for pool in ("p0", "p1", "p2")}
    return tuple(works), seconds, order


@given(programs(), st.integers(1, 3))
def test_no_pool_does_two_things_at_once(program, iterations):
    spans = defaultdict(list)
    for span in play(*program, iterations=iterations).spans:
        spans[span.pool].append((span.start_seconds, span.end_seconds))
    for pool in spans.values():
        ordered = sorted(pool)
        assert all(before[1] <= after[0] for before, after in pairwise(ordered))


@given(programs())
def test_no_task_starts_before_its_parents_end(program):
    spans = {span.name: span for span in play(*program).spans}
    for work in program[0]:
        for parent in work.after:
            assert spans[work.name].start_seconds >= spans[parent].end_seconds


@given(programs())
def test_the_same_plan_gives_the_same_trace(program):
    assert play(*program, iterations=2) == play(*program, iterations=2)


@given(programs())
def test_all_seconds_doubled_double_the_makespan(program):
    works, seconds, order = program
    doubled = {key: 2 * value for key, value in seconds.items()}
    assert makespan(play(works, doubled, order)) == 2 * makespan(play(works, seconds, order))


@given(programs())
def test_the_makespan_lies_between_its_bounds(program):
    works, seconds, _ = program
    finish, load = {}, defaultdict(float)
    for work in works:
        ready = max((finish[parent] for parent in work.after), default=0.0)
        finish[work.key] = ready + seconds[work.key]
        load[work.pool] += seconds[work.key]
    length = makespan(play(*program))
    assert max(*finish.values(), *load.values()) <= length <= sum(seconds.values())


@given(programs())
def test_every_task_runs_once_for_as_long_as_it_takes(program):
    works, seconds, _ = program
    spans = play(*program).spans
    assert sorted(span.name for span in spans) == sorted(work.name for work in works)
    assert {span.name: span.seconds for span in spans} == seconds
