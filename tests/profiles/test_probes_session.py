"""A session keeps every point at once, goes on where it stopped, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import FileError, UnknownNameError, UserError
from rlplan.files.frozen import FrozenDict
from rlplan.fingerprint import fingerprint_digest, matches, read_fingerprint, usable_cores
from rlplan.job import Job, NodeGroup
from rlplan.probing import ModelPass
from rlplan.profiles.probes import load_probe
from rlplan.profiles.probes.bench.clock import MOST_ROUND_REPEATS, ROUNDS
from rlplan.profiles.probes.bench.contract import HostBench, HostProbe
from rlplan.profiles.probes.bench.session import (
    Session,
    context_bytes,
    is_measured,
    open_profile,
    profile_machine,
    settings_of,
)
from rlplan.profiles.sheets import load_model
from rlplan.profiles.tables.table import TABLES, model_pass_keys, read_profile
from rlplan.workload import Workload
from tests.cases import only

ROOT = Path(__file__).resolve().parents[2]
TINY = load_model("tiny")
JOB = Job(
    algorithm="grpo",
    models=FrozenDict({"actor": TINY, "reference": TINY}),
    workload=Workload(prompts=2, prompt_tokens=4, response_tokens=4),
    cluster=(NodeGroup(gpu="cpu", gpus_per_node=1, inter_node_gbps=200.0),),
)


class CountingRunner:
    """Takes a microsecond a token, and counts how often it is asked."""

    def __init__(self):
        self.asked = 0

    def run(self, model_pass, repeats):
        self.asked += 1
        return (1e-6 * model_pass.sequences * model_pass.tokens,) * repeats

    def held_bytes(self):
        return 12345678

    def loop_flops_per_second(self):
        return 3e10


def measure(out, **changes):
    options = {"name": "here", "device": "cpu", "job": JOB, "runner": None, "devices": 1}
    return profile_machine(**{**options, "out": out, "quick": True, **changes})


def stop_after(points):
    def progress(done, total, label):
        if done >= points:
            raise KeyboardInterrupt

    return progress


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Stop a session after ten points, look at what it left, and let another one finish it."""
    out = tmp_path_factory.mktemp("session") / "profile"
    with pytest.raises(KeyboardInterrupt):
        measure(out, progress=stop_after(10))
    left = read_profile(out)
    steps = []
    runner = CountingRunner()
    finished = measure(out, runner=runner, progress=lambda *step: steps.append(step))
    return out, left, finished, steps, runner


@pytest.mark.full
def test_an_interrupted_session_leaves_a_readable_profile(session):
    _, left, *_ = session
    assert len(left) == 10
    assert not left.complete
    assert left.header.device == "cpu"
    assert left.header.machine["cores"] == str(usable_cores())
    assert left.header.software["torch"]


@pytest.mark.full
def test_a_resumed_session_keeps_the_points_that_were_measured(session):
    _, left, finished, *_ = session
    assert finished.complete
    assert len(finished) > 10
    for table in TABLES:
        for key, point in left.points(table).items():
            assert finished.points(table)[key] == point


def test_progress_counts_from_what_is_there_to_all_points(session):
    _, _, finished, steps, _ = session
    assert steps[0][:2] == (10, len(finished))
    assert steps[-1] == (len(finished), len(finished), "done")
    assert [step[0] for step in steps] == sorted(step[0] for step in steps)


def test_what_a_session_returns_is_what_lies_in_the_folder(session):
    out, _, finished, *_ = session
    again = read_profile(out)
    assert again.complete
    assert all(again.points(table) == finished.points(table) for table in TABLES)


def test_the_runners_seconds_are_in_the_profile(session):
    *_, finished, _, runner = session
    assert runner.asked > 0
    seconds = {
        (key[0], key[-2], key[-1]): point.seconds_median
        for key, point in finished.points("model_pass").items()
    }
    assert seconds["infer", 2, 8] == pytest.approx(16e-6)
    assert seconds["prefill", 2, 4] == pytest.approx(8e-6)


def test_what_a_worker_holds_without_a_model_is_measured_once_there_is_a_runner(session):
    out, left, finished, *_ = session
    assert left.header.context_bytes == 0
    assert finished.header.loop_flops_per_second == (3e10, 3e10)
    assert finished.header.context_bytes == read_profile(out).header.context_bytes == 12345678


def test_a_finished_profile_is_not_measured_again(session):
    out, *_ = session
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    runner = CountingRunner()
    measure(out, runner=runner)
    assert runner.asked == 0
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before


@pytest.mark.parametrize(
    ("seconds", "repeats"),
    [
        # In its first round, when nobody knows how long it takes, twice.
        (0.001, 2 + (ROUNDS - 1) * MOST_ROUND_REPEATS),
        (0.1, 2 + (ROUNDS - 1) * 2),
        (0.2, 2 + ROUNDS // 2 - 1),
        (3.0, 2 + ROUNDS // 2 - 1),
    ],
)
def test_a_long_pass_is_measured_once_in_half_of_the_rounds(tmp_path, seconds, repeats):
    profile = open_profile(tmp_path, "here", "cpu", 1)
    keys = model_pass_keys(
        ModelPass(name="infer", model=TINY, head="lm", precision="fp32", sequences=1, tokens=8)
    )
    measured = load_probe("model_pass")
    assert isinstance(measured, HostProbe)
    probe = replace(measured, measure=lambda *asked: (seconds,) * asked[-1])
    assert not is_measured(profile, probe, keys)
    session = Session(profile, tmp_path, lambda *_: None, total=1)
    session.run([(probe, keys)], HostBench(job=JOB, settings=settings_of("cpu", JOB, 1)))
    assert profile.get("model_pass", keys).repeats == repeats
    assert is_measured(profile, probe, keys)


@pytest.mark.parametrize(
    ("field", "old", "new"),
    [
        ("machine.fingerprint", "cpu: ", "cpu: another "),
        ("device", "device: cpu", "device: h100"),
        ("machine.devices", "devices: '1'", "devices: '4'"),
        ("software.torch", "torch: ", "torch: 0."),
    ],
)
def test_a_profile_of_something_else_is_refused_and_left_as_it_is(
    session, tmp_path, field, old, new
):
    header = (session[0] / "profile.yaml").read_text().replace(f"{old}", new, 1)
    (tmp_path / "profile.yaml").write_text(header)
    with pytest.raises(FileError, match="is left as it is") as caught:
        measure(tmp_path)
    assert caught.value.field == field
    assert (tmp_path / "profile.yaml").read_text() == header


def test_mistakes_are_told_before_anything_is_measured(tmp_path):
    with pytest.raises(UnknownNameError, match="device"):
        measure(tmp_path, device="cpuu")
    with pytest.raises(UserError, match="at least one device"):
        measure(tmp_path, devices=0)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(FileError, match="a profile is a folder"):
        measure(file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


ENDLESS = """
import sys
from pathlib import Path
from rlplan.profiles.probes.bench.session import profile_machine

if __name__ == "__main__":
    profile_machine(name="x", device="cpu", job=None, runner=None, out=Path(sys.argv[1]), devices=2)
"""


def processes_of(group):
    """Return the living processes of a group; the dead that nobody has buried do not count."""
    listing = subprocess.run(
        ["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split(maxsplit=2) for line in listing.splitlines())
    return [row for row in rows if int(row[0]) == group and not row[1].startswith("Z")]


@pytest.mark.parametrize("signal_name", only([], ["SIGTERM", "SIGINT", "SIGKILL"]))
def test_no_process_outlives_a_session_that_is_stopped(tmp_path, signal_name):
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    out = tmp_path / "profile"
    parent = subprocess.Popen(
        [sys.executable, str(script), str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: list(out.glob("*.csv")), 60)
    assert len(processes_of(parent.pid)) >= 4, "parent, fork server and two devices"
    if signal_name == "SIGINT":
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does
    else:
        parent.send_signal(signal.Signals[signal_name])
    assert parent.wait(20) != 0
    wait_until(lambda: not processes_of(parent.pid), 10)
    assert len(read_profile(out)) > 0
    assert not list(out.glob(".*")), "no half-written file"


def wait_until(condition, timeout_seconds):
    end_seconds = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < end_seconds, "it never came true"
        time.sleep(0.05)


def test_the_fingerprint_is_the_same_every_time_and_knows_the_machine():
    fingerprint = read_fingerprint()
    assert fingerprint == read_fingerprint()
    assert int(fingerprint["cores"]) == usable_cores() >= 1
    assert int(fingerprint["memory_bytes"]) > 2**28
    assert all(fingerprint.values())
    assert len(fingerprint_digest(fingerprint)) == 12


def test_machines_match_by_hardware_and_not_by_their_systems_release():
    here = FrozenDict(
        {
            "system": "Linux",
            "release": "6.1",
            "cpu": "a core",
            "cores": "2",
            "memory_bytes": str(8 * 2**30),
            "gpus": "none",
            "python": "3.11.7",
        }
    )
    assert matches(here, here.with_item("release", "6.2").with_item("python", "3.12.0"))
    assert matches(here, here.with_item("memory_bytes", str(8 * 2**30 - 4096)))
    for key, value in [("cpu", "another"), ("cores", "4"), ("gpus", "A100"), ("memory_bytes", "9")]:
        other = here.with_item(key, value)
        assert not matches(here, other)
        assert fingerprint_digest(here) != fingerprint_digest(other)


class Asked:
    """Note the passes that are asked for."""

    def __init__(self):
        self.passes = []

    def run(self, model_pass, repeats):
        self.passes.append(model_pass)
        return (0.0,) * repeats

    def held_bytes(self):
        return 7

    def loop_flops_per_second(self):
        return 3e10


@pytest.mark.parametrize("devices", [1, 2])
def test_a_workers_context_is_what_it_holds_after_everything_was_done_once(devices):
    runner, settings = Asked(), replace(settings_of("cpu", None, devices), passes=True)
    assert context_bytes(runner, settings) == 7
    names = {each.name for each in runner.passes}
    assert {"infer", "train", "optimizer", "prefill", "decode", "call", "fetch"} <= names
    assert ("weight_sync" in names) == ("gradient_reduction" in names) == (devices == 2)
    assert max(each.tp * each.dp for each in runner.passes) == devices
    assert context_bytes(runner, replace(settings, kind="gpu")) == 0
