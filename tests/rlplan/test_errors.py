"""Errors: what a worker process raises arrives whole."""

import pickle

import pytest

from rlplan.errors import FileError, PlanError, UnknownNameError

ERRORS = [
    FileError("job.yaml", "must be at least 1", field="updates", value=0, nearest="1"),
    UnknownNameError("model", "lama", ["llama"]),
    PlanError("tp does not divide the heads"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_crosses_a_process_border_whole(error):
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
    assert arrived.exit_code == 2
