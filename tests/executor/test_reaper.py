"""What a process leaves that ends without a chance to clear up is cleared up behind it."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rlplan.executor.workers.processes.reaper import MESSAGE
from tests.house.tree import ROOT

ALONE = """
import os, subprocess, sys
from rlplan.executor.workers.processes.reaper import Reaper

reaper = Reaper(sys.argv[1])
other = subprocess.Popen(["sleep", "600"], start_new_session=True, stderr=subprocess.DEVNULL)
reaper.note(other.pid)
print(other.pid, flush=True)
if sys.argv[2] == "dismissed":
    other.kill()
    other.wait()
    reaper.dismiss()
    reaper.dismiss()
os._exit(7)
"""
WITH_RAY = """
import signal
from rlplan.executor.workers.processes.ray_session import running_ray

with running_ray(1):
    print("up", flush=True)
    signal.pause()
"""


def program(text, *arguments, folder):
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("end", ["dismissed", "without a word"])
def test_what_ends_without_a_word_is_cleared_up_behind(tmp_path, end):
    held = tmp_path / "held"
    (held / "inner").mkdir(parents=True)
    run = program(ALONE, held, end, folder=tmp_path)
    printed, said = run.communicate(timeout=120)  # what clears up holds the stream until it is done
    assert run.returncode == 7
    assert said.strip() == ("" if end == "dismissed" else MESSAGE)
    assert held.exists() == (end == "dismissed")
    assert is_over(int(printed))


def is_over(number):
    """Tell whether a process has ended, waited for or not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_killed_driver_leaves_no_process_of_ray_and_no_folder(short_folder):
    run = program(WITH_RAY, folder=short_folder)
    assert run.stdout is not None
    assert run.stdout.readline().strip() == "up"
    (folder,) = short_folder.glob("rlplan-ray-*")
    run.send_signal(signal.SIGKILL)
    _, said = run.communicate(timeout=120)
    assert said.strip().endswith(MESSAGE)
    assert not folder.exists()
    assert [each for each in commands() if str(folder) in each] == []


@pytest.fixture
def short_folder():
    """Return a folder for Ray's sockets, whose paths have to be short."""
    with tempfile.TemporaryDirectory(prefix="rlplan-") as name:
        yield Path(name)


def commands():
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield each.read_bytes().decode(errors="replace")
        except OSError:
            continue
