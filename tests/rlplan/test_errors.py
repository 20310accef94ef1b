"""Errors: what a worker process raises arrives whole; unknown names are answered with near ones."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import (
    FileError,
    PlanError,
    UnknownNameError,
    nearest_name,
    nearest_names,
    one_of,
)

ERRORS = [
    FileError("job.yaml", "must be at least 1", field="updates", value=0, nearest="1"),
    FileError("job.yaml", "is unknown", value="a", nearest="b", others=("c",)),
    UnknownNameError("model", "lama", ["llama"]),
    PlanError("tp does not divide the heads"),
]


@pytest.mark.parametrize("error", ERRORS, ids=str)
def test_an_error_crosses_a_process_border_whole(error):
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
    assert arrived.exit_code == 2


def test_a_short_list_of_known_names_is_shown_whole():
    told = str(UnknownNameError("engine", "vlm", ["vllm", "sglang"], hint="or none"))
    assert told == "unknown engine 'vlm'; known: sglang, vllm; did you mean 'vllm'?; or none"


def test_of_a_long_list_the_nearest_three_are_shown():
    names = [f"model-{number}" for number in range(10, 99)]
    told = str(UnknownNameError("model", "model-4", names))
    assert told == "unknown model 'model-4'; did you mean 'model-40', 'model-41' or 'model-42'?"
    assert str(UnknownNameError("model", "zzz", names)) == "unknown model 'zzz'"


def test_choices_are_joined_as_one_says_them():
    assert (one_of("a"), one_of("ab"), one_of("abc")) == ("'a'", "'a' or 'b'", "'a', 'b' or 'c'")


def test_what_begins_with_a_name_goes_before_what_is_like_it():
    assert nearest_names("ab", ["abcd", "b", "ac", "abc"], 3) == ("abc", "abcd", "b")


@given(st.text("abc-", max_size=6), st.lists(st.text("abc-", min_size=1, max_size=6), unique=True))
def test_the_nearest_names_are_known_ones_and_begin_with_the_nearest(name, known):
    near = nearest_names(name, known, 3)
    assert set(near) <= set(known)
    assert len(near) == len(set(near)) <= 3
    assert next(iter(near), None) == nearest_name(name, known)
