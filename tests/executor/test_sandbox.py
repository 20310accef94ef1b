"""Reward functions within limits, and programs that models write."""

import multiprocessing
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rlplan.errors import FileError, UserError
from rlplan.executor.learning.rules import load_rule
from rlplan.executor.learning.rules.python_tests import passes
from rlplan.executor.workers.processes.sandbox import Limits, Sandbox
from rlplan.units import GIB, MIB
from tests.executor.plans import make_job, make_plan

RULES = """
import os, threading
def rule(prompt, response, row):
    if response == 'hang':
        threading.Event().wait()
    if response == 'eat':
        bytearray(2**31)
    if response == 'leave':
        os._exit(3)
    if response == 'exit':
        exit(3)
    if response == 'fork':
        import pathlib, time
        child = os.fork()
        if not child:
            time.sleep(3600)
        pathlib.Path(prompt).write_text(str(child))
    if response == 'fail':
        raise KeyError('x')
    return float(len(response))
"""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rules")
    (folder / "rules.py").write_text(RULES, encoding="utf-8")
    made = Sandbox("rules.py:rule", folder, Limits(seconds=0.5, num_bytes=256 * MIB))
    yield made
    made.stop()


@pytest.mark.full
def test_a_call_beyond_its_limits_is_worth_nothing_and_the_next_one_goes_on(sandbox):
    for wrong in ("hang", "eat", "leave", "exit"):
        before = sandbox.broken_off
        assert sandbox("p", wrong, {}) == 0.0
        assert sandbox.broken_off == before + 1
        assert sandbox("p", "four", {}) == 4.0


def test_a_rule_that_fails_is_the_users_mistake_as_without_limits(sandbox):
    with pytest.raises(UserError, match=r"rule rules\.py:rule: fails for prompt 'p': KeyError"):
        sandbox("p", "fail", {})


def test_a_stopped_sandbox_leaves_no_process(sandbox, tmp_path):
    (tmp_path / "rules.py").write_text(RULES, encoding="utf-8")
    before = set(multiprocessing.active_children())
    other = Sandbox("rules.py:rule", tmp_path, Limits(seconds=1.0, num_bytes=None))
    other.stop()
    assert set(multiprocessing.active_children()) == before


def test_what_a_rule_has_started_ends_with_its_process(tmp_path):
    """However that ends: as a worker's that Ray kills, the kernel ends it and nobody can tell its children."""
    (tmp_path / "rules.py").write_text(RULES, encoding="utf-8")
    child_file = tmp_path / "child"
    other = Sandbox("rules.py:rule", tmp_path, Limits(seconds=30.0, num_bytes=None))
    assert other(str(child_file), "fork", {}) == 4.0
    child = psutil.Process(int(child_file.read_text()))
    other._process.kill()
    with suppress(psutil.NoSuchProcess):
        child.wait(timeout=60)
    other.stop()


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("def double(x):\n    return 2 * x\n", 1.0),
        ("Here it is:\n```python\ndef double(x):\n    return x + x\n```\nDone.", 1.0),
        ("def double(x):\n    return x\n", 0.0),
        ("def double(x:\n", 0.0),
    ],
)
def test_a_program_is_worth_whether_it_passes_the_tests(response, reward):
    rule = load_rule("python_tests", Path())
    assert rule("p", response, {"tests": "assert double(21) == 42"}) == reward


def test_a_program_sees_neither_the_callers_variables_nor_much_memory(monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    assert not passes("import os; assert 'SECRET' in os.environ", 10.0)
    assert not passes("bytearray(2**32)", 10.0)
    assert passes("import os; assert os.listdir() == []", 10.0)


@pytest.mark.full
def test_a_program_that_does_not_end_is_ended_with_all_that_it_started(tmp_path):
    note = tmp_path / "pid"
    program = (
        "import os, subprocess, sys, threading\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "threading.Event().wait()\n"
    )
    assert not passes(program, 2.0)
    number = int(note.read_text(encoding="ascii"))
    assert number != os.getpid()
    # It was signalled before `passes` returned, and is gone or nobody's zombie when Linux comes to it.
    while is_there(number):
        time.sleep(0.01)


def is_there(number):
    try:
        return Path(f"/proc/{number}/stat").read_text(encoding="ascii").split()[2] != "Z"
    except OSError:
        return False


def test_a_row_without_tests_is_named():
    with pytest.raises(FileError, match="tests: is missing"):
        load_rule("python_tests", Path())("p", "pass", {})


@pytest.mark.full
@pytest.mark.ray
def test_limits_change_nothing_of_a_run_that_keeps_them(worker_pool):
    job = make_job("grpo", samples_per_prompt=2)
    free = make_plan(job, {"p0": (1, ("actor", "reference"))})
    limited = replace(job, rewards=replace(job.rewards, limit_seconds=60.0, limit_bytes=GIB))
    runs = [worker_pool.run(each) for each in (free, replace(free, job=limited))]
    one, other = ([each["mean_reward"] for each in run.metrics] for run in runs)
    assert one == other
