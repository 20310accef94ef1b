"""Schedules of replicas that come and go: what a command line says, and what is wanted when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.replicas import ReplicaRange, ReplicaSchedule, read_replicas, read_schedule


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
