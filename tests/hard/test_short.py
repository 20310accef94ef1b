"""A few of the thousands of wrong inputs that `make test-hard` tries."""

import json
import os
import subprocess
import sys

import pytest

from tests.cases import draws
from tests.hard.__main__ import merged
from tests.hard.page import page_of
from tests.hard.soak import LARGEST_LOG, LOGS, grown, grows
from tests.house.tree import ROOT

# Beyond those that `make test-hard` begins with.
FIRST = 100_000
PROGRAM = "import json, sys; from tests.hard.fuzzing import fuzz; print(json.dumps(fuzz({cases}, first={first})))"


@pytest.mark.full
def test_mutated_files_of_every_kind_get_one_message_and_change_nothing():
    cases = draws(5, 200)
    program = PROGRAM.format(cases=cases, first=FIRST)
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False,
        env={
            **os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1",
            "RLPLAN_HARD_SLOWNESS": "6",
        },
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-2000:]
    found = json.loads(answer.stdout)
    assert found["failures"] == []
    assert found["cases"] == cases
    assert len(found["subjects"]) >= 3
    both = merged([found, found])
    assert both["cases"] == 2 * cases
    assert f"| fuzz | {2 * cases} | 0 | 3 |" in page_of({"fuzz": both | {"seconds": 3.2}})


def test_a_soak_tells_what_grows_from_logs_that_are_rotated():
    samples = [
        {"driver, MiB": 400.0 + 0.1 * place, LOGS: 0.01 * place, LARGEST_LOG: 0.05 * place}
        for place in range(400)
    ]
    found = grown(samples)
    assert grows("driver, MiB", found["driver, MiB"])
    assert not grows(LOGS, found[LOGS])
    assert grows(LARGEST_LOG, found[LARGEST_LOG])
    assert not grows(LARGEST_LOG, grown(samples[:300])[LARGEST_LOG])
    assert not grows("driver, MiB", grown([{"driver, MiB": 400.0}] * 9)["driver, MiB"])
