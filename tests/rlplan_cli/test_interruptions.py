"""Interruptions: one line, the signal's exit code, and nothing half-written."""

import signal
import subprocess
import sys
import time

import pytest
import yaml

from rlplan_cli.main import run
from tests.house.tree import ROOT

# The command line, with a mark on stderr at the moment when the search looks at its first placement.
PROGRAM = """
import sys
import rlplan_cli.terminal as terminal
from contextlib import contextmanager

@contextmanager
def marked(what):
    yield lambda done, total, label: print("working", file=sys.stderr, flush=True)

terminal.progress_bar = marked
from rlplan_cli.main import main
main()
"""


@pytest.fixture
def large_job(project):
    """Write a job whose search takes much longer than a test waits."""
    # Four models on two kinds of GPU: of one kind all placements of a thousand GPUs are looked through in a third of a second.
    job = yaml.safe_load((ROOT / "examples" / "ppo-13b-h100-l40s.yaml").read_text())
    (project / "large.yaml").write_text(yaml.safe_dump(job))
    return project


MOMENTS = [(signal.SIGTERM, 143, 0.3)]
OTHERS = [(signal.SIGINT, 130, 0.0), (signal.SIGINT, 130, 0.3), (signal.SIGTERM, 143, 0.0)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "code", "seconds"),
    MOMENTS + OTHERS,
    ids=lambda value: value.name if isinstance(value, signal.Signals) else None,
)
def test_an_interrupted_search_says_so_in_one_line_and_writes_nothing(
    large_job, number, code, seconds
):
    command = [sys.executable, "-c", PROGRAM, "search", "large.yaml", "--out", "best.yaml"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "working\n"
        time.sleep(seconds)
        process.send_signal(number)
        said = process.stderr.read()
        assert process.wait(timeout=60) == code
    assert said.replace("working\n", "") == "rlplan: interrupted\n"
    assert not (large_job / "best.yaml").exists()
    assert not list(large_job.glob(".best*"))


@pytest.mark.full
@pytest.mark.parametrize("command", ["simulate", "validate", "report", "init", "schema", "search"])
def test_an_interruption_while_rooms_are_imported_is_one_line_too(project, command):
    program = (
        "import builtins, signal, sys\n"
        "from rlplan_cli.main import main\n"
        # Whom a shell has started in the background ignores it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "plain = builtins.__import__\n"
        "def importing(name, *rest):\n"
        "    if name.startswith(('rlplan.planner', 'rlplan.simulator', 'rlplan.files.decoding', 'pydantic')):\n"
        "        builtins.__import__ = plain\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    return plain(name, *rest)\n"
        "builtins.__import__ = importing\n"
        "main()\n"
    )
    argument = {"schema": "job", "search": "job.yaml", "init": "new.yaml"}.get(command, "run")
    answer = subprocess.run(
        [sys.executable, "-c", program, command, argument],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (130, "rlplan: interrupted\n")


def test_a_closed_pipe_is_no_failure(monkeypatch):
    def closed(_arguments):
        raise BrokenPipeError

    monkeypatch.setattr("rlplan_cli.application.call", closed)
    monkeypatch.setattr("rlplan_cli.main.os.dup2", lambda *_: None)
    assert run(["check", "job.yaml"]) == 0
