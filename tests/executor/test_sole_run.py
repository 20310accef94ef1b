"""Two runs in one folder: the second is refused, and none where the first has ended or was killed."""

import os
import subprocess
import sys
from dataclasses import replace
from socket import gethostname

import pytest

from rlplan.errors import FileError
from rlplan.executor.control.sole_run import LOCK_FILE, sole_run
from rlplan.executor.execute import execute
from tests.executor.plans import ALL_ROLES, make_job, make_plan
from tests.house.tree import ROOT

HOLDER = """
import os, signal, sys
from pathlib import Path
from rlplan.executor.control.sole_run import sole_run
with sole_run(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_second_run_is_refused_and_one_after_it_is_not(tmp_path):
    out = tmp_path / "out"
    for _ in range(2):
        with sole_run(out):
            with (
                pytest.raises(FileError, match=rf"another run writes .*process {os.getpid()} on"),
                sole_run(out),
            ):
                pass
            assert (out / LOCK_FILE).exists()
        assert not out.exists()


def test_a_run_that_was_killed_keeps_nobody_out(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode < 0
    left = (tmp_path / LOCK_FILE).read_text()
    (tmp_path / LOCK_FILE).write_text(left.strip() + "-of-a-longer-name\n")
    with (
        sole_run(tmp_path),
        pytest.raises(FileError, match=rf"now \(process {os.getpid()} on {gethostname()}\)"),
        sole_run(tmp_path),
    ):
        pass


def test_a_file_that_a_run_has_removed_meanwhile_holds_nobody_in(tmp_path, monkeypatch):
    monkeypatch.setattr("rlplan.executor.control.sole_run._is_file", lambda *_: False)
    with pytest.raises(FileError, match="another run"), sole_run(tmp_path):
        pass


def test_a_folder_that_is_none_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be written"), sole_run(tmp_path / "file"):
        pass


def test_a_run_leaves_what_another_one_writes_as_it_is(tmp_path):
    plan = make_plan(replace(make_job(), name="other"), {"p0": (1, ALL_ROLES)})
    with sole_run(tmp_path):
        (tmp_path / "metrics.jsonl").write_text('{"iteration": 0}\n')
        with pytest.raises(FileError, match="another run writes into it"):
            execute(plan, tmp_path, iterations=1, seed=1)
        assert (tmp_path / "metrics.jsonl").read_text() == '{"iteration": 0}\n'
        assert not (tmp_path / "plan.yaml").exists()


def test_what_a_run_begins_with_is_chosen_while_no_other_one_may_write(tmp_path, monkeypatch):
    """A run that ends meanwhile has a later checkpoint; where nothing is to be gone on from no folder is left."""
    out, kept_out = tmp_path / "out", []

    def resumed(*_):
        kept_out.append((out / LOCK_FILE).exists())
        raise FileError("somewhere", "holds no checkpoint")

    monkeypatch.setattr("rlplan.executor.execute._resumed", resumed)
    with pytest.raises(FileError, match="no checkpoint"):
        execute(make_plan(make_job(), {"p0": (1, ALL_ROLES)}), out, iterations=1, seed=1)
    assert kept_out == [True]
    assert not out.exists()
