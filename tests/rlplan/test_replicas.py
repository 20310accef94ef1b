"""Schedules of replicas that come and go: what a command line says, and what is wanted when."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.replicas import (
    ReplicaChoice,
    ReplicaDevices,
    ReplicaRange,
    ReplicaSchedule,
    ReplicaTable,
    devices_of,
    read_replicas,
    read_schedule,
    replica_gpus,
)
from tests.executor.plans import make_job, make_plan


def test_a_number_alone_stays():
    schedule = read_schedule("2")
    assert [schedule.at(iteration) for iteration in (0, 1, 1000)] == [2, 2, 2]


def test_first_iterations_with_numbers_hold_until_the_next_one():
    schedule = read_schedule("0:1, 40:3,60:2")
    assert [schedule.at(iteration) for iteration in (0, 39, 40, 59, 60, 99)] == [1, 1, 3, 3, 2, 2]
    assert schedule.most == 3
    assert schedule.shares(100) == {1: 40, 3: 20, 2: 40}
    assert schedule.shares(50) == {1: 40, 3: 10}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "is no schedule"),
        ("two", "is no schedule"),
        ("0:1:2", "is no schedule"),
        ("0:-1", "is no schedule"),
        ("5:1", "at first"),
        ("0:1,5:2,5:3", "go forward"),
        ("0:1,2", "go forward"),
        ("0:1,5:0", "leaves nothing"),
    ],
)
def test_what_is_no_schedule_is_refused_with_its_form(words, said):
    with pytest.raises(FileError, match=said):
        read_schedule(words)


@given(
    st.lists(st.integers(1, 50), unique=True, max_size=5).map(sorted),
    st.lists(st.integers(1, 9), min_size=6, max_size=6),
    st.integers(0, 80),
)
def test_shares_count_every_iteration_once(firsts, counts, iterations):
    schedule = ReplicaSchedule(counts=tuple(zip([0, *firsts], counts, strict=False)))
    wanted = [schedule.at(iteration) for iteration in range(iterations)]
    assert schedule.shares(iterations) == {each: wanted.count(each) for each in set(wanted)}


def test_a_range_is_left_to_forecasts():
    assert read_replicas("1..4") == ReplicaRange(least=1, most=4)
    assert read_replicas(" 2 .. 2 ") == ReplicaRange(least=2, most=2)
    assert read_replicas("0:1,4:2") == read_schedule("0:1,4:2")


@pytest.mark.parametrize("words", ["0..2", "3..2"])
def test_a_range_that_has_no_numbers_is_refused(words):
    with pytest.raises(FileError, match="is no range of replicas"):
        read_replicas(words)


@pytest.mark.parametrize("words", ["1..", "..", "1..x", "nowhere.txt"])
def test_what_is_neither_range_nor_schedule_nor_file_is_refused(words):
    with pytest.raises(FileError, match="is no schedule of replicas"):
        read_replicas(words)


def test_a_schedule_may_stand_in_a_file_with_remarks(tmp_path):
    file = tmp_path / "evening.txt"
    file.write_text("# more nodes in the evening\n0:1\n40:3  # from eight on\n\n60:2\n")
    assert read_replicas(str(file)) == read_schedule("0:1,40:3,60:2")
    file.write_text("40:3\n")
    with pytest.raises(FileError, match=r"evening.txt.*at first"):
        read_replicas(str(file))
    file.write_text("")
    with pytest.raises(FileError, match=r"evening.txt.*is no schedule"):
        read_replicas(str(file))


def test_a_range_may_stand_in_a_file_alone(tmp_path):
    file = tmp_path / "nodes.txt"
    file.write_text("# as many as pay\n1..4  # of the evening's nodes\n")
    assert read_replicas(str(file)) == ReplicaRange(least=1, most=4)
    file.write_text("3..2\n")
    with pytest.raises(FileError, match=r"nodes.txt.*is no range of replicas"):
        read_replicas(str(file))


@pytest.mark.parametrize("words", ["0:1,40:1..4", "1..2,3..4", "0:1..2"])
def test_a_range_beside_other_numbers_is_refused_by_a_message_of_its_own(words, tmp_path):
    file = tmp_path / "nodes.txt"
    file.write_text(words.replace(",", "\n"))
    for given_words, where in ((words, "--replicas"), (str(file), "nodes.txt")):
        with pytest.raises(FileError, match=rf"{where}.*has a range.*a range alone \(1\.\.4\)"):
            read_replicas(given_words)


def test_a_schedule_is_one_whatever_files_are_called(tmp_path, monkeypatch):
    (tmp_path / "2").write_text("0:1\n")
    monkeypatch.chdir(tmp_path)
    assert read_replicas("2") == read_schedule("2")


def test_a_schedule_may_be_longer_than_a_name_of_a_file():
    words = ",".join(f"{first}:{1 + first % 3}" for first in range(100))
    assert len(read_replicas(words).counts) == 100
    with pytest.raises(FileError, match="is no schedule of replicas"):
        read_replicas("x" * 1000)


def generating(tp, dp):
    """Return a plan whose pool that generates has so many replicas of so many devices."""
    pools = {"p0": (1, ("actor", "reference")), "generator": (tp * dp, ("actor",))}
    plan = make_plan(make_job("grpo"), pools, transition="two-copies", tp_gen=tp)
    layout = plan.tasks["actor.generate"]
    return plan.with_layout("actor.generate", replace(layout, tp=tp, dp=dp))


schedules = st.builds(
    lambda firsts, counts: ReplicaSchedule(counts=tuple(zip([0, *firsts], counts, strict=False))),
    st.lists(st.integers(1, 50), unique=True, max_size=5).map(sorted),
    st.lists(st.integers(1, 4), min_size=6, max_size=6),
)


@given(schedules, st.integers(1, 3), st.integers(1, 3), st.integers(0, 60))
def test_no_plan_of_a_run_has_more_devices_than_its_schedule_says(schedule, before, after, done):
    devices = devices_of(schedule, generating(before, 4))
    plan = devices.filled_by(generating(after, 1))
    try:
        found = devices.schedule_of(plan, done)
    except FileError:
        assert devices.least(done, 1000) < after
        return
    for iteration in range(done, 70):
        taken = found.at(iteration) * replica_gpus(plan)
        assert taken <= devices.at(iteration) < taken + after


@given(schedules, st.integers(0, 60), st.integers(1, 60))
def test_stretches_between_two_iterations_have_every_one_once(schedule, first, count):
    devices = ReplicaDevices(schedule=schedule, gpus_each=2, gpus=8)
    spans = list(devices.spans(first, first + count))
    listed = [gpus for begin, end, gpus in spans for _ in range(begin, end)]
    assert listed == [devices.at(each) for each in range(first, first + count)]


def test_replicas_of_the_plan_that_a_schedule_was_written_for_are_those_that_it_says():
    schedule, plan = read_schedule("0:1,20:3"), generating(2, 4)
    assert devices_of(schedule, plan).schedule_of(plan) == schedule


def test_devices_that_hold_no_replica_of_a_plan_are_refused_but_for_iterations_that_are_done():
    devices = devices_of(read_schedule("0:1,20:3"), generating(1, 4))
    with pytest.raises(FileError, match="leaves 1 devices from iteration 0 on"):
        devices.schedule_of(generating(2, 2))
    assert devices.schedule_of(generating(2, 2), 20).at(20) == 1


def test_a_range_is_of_devices_and_asks_forecasts_once_a_plan():
    """Of eight replicas of a device two to five: of those that take two, one to two; of such that take four, one alone."""
    job, asked = make_job("grpo", samples_per_prompt=2), []

    def plan_of(size):
        pools = {"p0": (1, ("actor", "reference")), "generator": (8, ("actor",))}
        plan = make_plan(job, pools, tp_gen=size, transition="two-copies")
        generate = replace(plan.tasks["actor.generate"], dp=8 // size)
        return plan.with_layout("actor.generate", generate)

    def table_of(plan, each):
        asked.append(each)
        return ReplicaTable(rows=(), begins=float(plan.tasks["actor.generate"].tp))

    choice = ReplicaChoice(ReplicaRange(least=2, most=5), plan_of(1), table_of)
    assert choice.devices.gpus == 8
    for _ in range(2):
        assert [choice.table_of(plan_of(size)).begins for size in (1, 2, 4)] == [1, 2, 4]
    ends = [(each.least, each.most) for each in asked]
    assert ends == [(2, 5), (1, 2), (1, 1)]
    with pytest.raises(
        FileError, match="leaves 5 devices at most, and a replica of the plan takes"
    ):
        choice.range_of(plan_of(8))
