"""How many replicas are wanted as responses grow: what they ask for within chance, an iteration ahead, and alike in a resumed run."""

from collections import deque
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.control import run as runs
from rlplan.executor.control.moving import PLAN_BEFORE
from rlplan.executor.workers.wanted import FEWEST, WantedByLength
from rlplan.files.frozen import FrozenDict
from rlplan.replicas import LengthRow, ReplicaTable

SECONDS = FrozenDict({1: 2.0, 2: 1.0, 3: 0.9})


def row(above, tokens, replicas):
    return LengthRow(above_tokens=above, tokens=tokens, replicas=replicas, seconds=SECONDS)


TABLE = ReplicaTable(
    rows=(row(0.0, 20.0, 1), row(40.0, 60.0, 2), row(100.0, 120.0, 3)), begins=30.0
)


def told(tokens, table=TABLE):
    """Return how many are wanted in each iteration of a run and the two behind it, with what was asked an iteration ahead."""
    wanted, ahead = WantedByLength(table), []
    for iteration, each in enumerate(tokens):
        ahead.append(wanted.at(iteration + 1))
        wanted.note(iteration, each)
    return [wanted.at(each) for each in range(len(tokens) + 2)], ahead


def test_more_are_wanted_once_the_last_ten_are_surely_longer():
    """Lengths of 30 ten times, then of 60.

    Of ten with six of 60 the mean is 48 and two standard errors are 9.8 (a deviation of 15.49): they may be 38 long, for which one is
    enough. With seven they are 51 and 9.2: more than 40. These ten end with iteration 16, and what follows from them begins two later.
    """
    tokens = [30.0] * 10 + [60.0] * 10
    wanted, ahead = told(tokens)
    assert wanted == [1] * 18 + [2] * 4
    assert ahead == wanted[1 : len(tokens) + 1]


def test_lengths_that_waver_around_a_border_change_nothing():
    wanted, _ = told([39.0, 42.0, 38.0, 43.0, 37.0, 41.0, 44.0, 40.0] * 4)
    assert set(wanted) == {1}


def test_why_says_the_lengths_and_what_each_number_takes():
    wanted = WantedByLength(TABLE)
    assert wanted.why(0)["response_tokens"] == 30.0
    for iteration in range(FEWEST):
        wanted.note(iteration, 50.0)
    assert wanted.why(FEWEST + 1) == {
        "response_tokens": 50.0,
        "forecast_tokens": 60.0,
        "forecast_seconds": {"1": 2.0, "2": 1.0, "3": 0.9},
    }


LENGTHS = st.lists(st.floats(1.0, 300.0), min_size=1, max_size=30)


@given(LENGTHS, st.data())
def test_a_run_that_goes_back_or_is_resumed_wants_what_one_that_went_on_wants(tokens, data):
    expected, _ = told(tokens)
    back = data.draw(st.integers(0, len(tokens) - 1))
    wanted = WantedByLength(TABLE)
    for iteration, each in enumerate(tokens):
        wanted.note(iteration, each + data.draw(st.sampled_from([0.0, 50.0])) * (iteration >= back))
        wanted.at(iteration + 2)
    for iteration, each in list(enumerate(tokens))[back:]:
        wanted.note(iteration, each)
    assert [wanted.at(each) for each in range(len(tokens) + 2)] == expected


@given(LENGTHS)
def test_only_numbers_of_the_table_are_wanted_and_what_is_asked_ahead_stays(tokens):
    wanted, ahead = told(tokens)
    assert {*wanted} <= {each.replicas for each in TABLE.rows}
    assert ahead == wanted[1 : len(tokens) + 1]


def test_a_run_that_goes_back_before_its_plans_beginning_wants_replicas_by_its_table_there(
    monkeypatch, tmp_path
):
    """The checkpoint of the move after six iterations is broken, and that after four is taken."""
    (tmp_path / PLAN_BEFORE.format(2)).touch()
    (tmp_path / PLAN_BEFORE.format(6)).touch()
    earlier: Any = SimpleNamespace(state=SimpleNamespace(iteration=4))
    monkeypatch.setattr(runs, "whole_checkpoint", lambda _: earlier)
    moved = WantedByLength(TABLE).by(FEWER, 6)
    run: Any = SimpleNamespace(
        checkpoint=object(),
        finished=deque(),
        _out=tmp_path,
        _folder=SimpleNamespace(),
        _evaluations=SimpleNamespace(best=None),
        _by_length=moved,
    )
    assert runs.Run._go_back(run) == 4
    assert run._by_length.at(4) == WantedByLength(FEWER, 2).at(4)


FEWER = ReplicaTable(rows=(row(0.0, 20.0, 1), row(90.0, 120.0, 2)), begins=30.0)


@given(LENGTHS, st.data())
def test_behind_a_move_the_other_plans_table_holds_and_a_resumed_run_wants_the_same(tokens, data):
    moved = data.draw(st.integers(0, len(tokens)))
    wanted = WantedByLength(TABLE)
    for iteration, each in enumerate(tokens[:moved]):
        wanted.note(iteration, each)
        wanted.at(iteration + 2)
    wanted, resumed = wanted.by(FEWER, moved), WantedByLength(FEWER, moved)
    for iteration, each in enumerate(tokens[moved:], moved):
        wanted.note(iteration, each)
        wanted.at(iteration + 2)
    for iteration, each in enumerate(tokens):
        resumed.note(iteration, each)
    found = [wanted.at(each) for each in range(moved, len(tokens) + 2)]
    assert found == [resumed.at(each) for each in range(moved, len(tokens) + 2)]
    assert {*found} <= {each.replicas for each in FEWER.rows}
    known = tokens[: max(0, moved - 1)][-10:]
    mean = fmean(known) if len(known) >= FEWEST else FEWER.begins
    assert found[0] == FEWER.row_of(mean).replicas
