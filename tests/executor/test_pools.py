"""The private Ray of a run."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import ray
import torch
from ray._private.authentication.authentication_utils import is_token_auth_enabled

from rlplan.errors import RlplanError, WorkerLostError
from rlplan.executor.control.start import START, _clear, join_all, within
from rlplan.executor.workers.calls import HostSetup
from rlplan.executor.workers.host_worker import HostWorker
from rlplan.executor.workers.pools import KeptWorkers, fetched, start_group
from rlplan.executor.workers.processes.process_state import forget_peak, peak_bytes
from rlplan.executor.workers.processes.ray_session import (
    DEVICE,
    HOST,
    IGNORES_LOST_ANSWERS,
    _init_ray,
    _processes_of,
    termination_as_interrupt,
    watched,
)
from rlplan.executor.workers.protocols import registered
from tests.executor.harness import ReusedWorker, WorkerPool
from tests.executor.plans import make_job
from tests.house.tree import ROOT

pytestmark = pytest.mark.ray


def test_nobody_outside_this_machine_reaches_the_cluster(ray_slots):
    assert ray.util.get_node_ip_address() == "127.0.0.1"
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}


@pytest.mark.full
def test_a_worker_that_dies_ends_the_wait_with_an_error(ray_slots):
    group = start_group(HostWorker, 2, HOST)
    group.call("peak")
    ray.kill(group._actors[1])  # which Ray does in its own time
    with pytest.raises(RlplanError, match="a worker died"):
        call_on(group)
    group.stop()


def call_on(group):
    while True:
        fetched(group.start("peak"))


def test_a_ray_that_does_not_start_is_one_message(monkeypatch, tmp_path):
    def late(**_):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(RlplanError, match=r"Ray did not start: .*timed out.* less to do"):
        _init_ray(str(tmp_path), devices=2, hosts=1)


def test_calls_carry_a_token_that_only_this_runs_processes_know(ray_slots, worker_pool):
    assert is_token_auth_enabled()
    tokens = worker_pool.on_ranks(2, lambda *_: os.environ["RAY_AUTH_TOKEN"])
    assert set(tokens) == {os.environ["RAY_AUTH_TOKEN"]}
    assert len(tokens[0]) == 64


class Failing:
    def fail(self):
        raise ValueError("said to nobody")


@pytest.mark.full
@pytest.mark.parametrize("is_told", [False, True])
def test_ray_prints_nothing_of_an_answer_that_nobody_waits_for_any_more(
    ray_slots, monkeypatch, is_told
):
    """As those of the neighbours of a worker that has ended: pages of them would hide the one line that says so."""
    printed, (name,) = [], IGNORES_LOST_ANSWERS
    monkeypatch.setattr("ray._private.worker._unhandled_error_handler", printed.append)
    monkeypatch.delenv(name) if is_told else monkeypatch.setenv(name, os.environ[name])
    actor: Any = ray.remote(Failing).options(num_cpus=0).remote()
    answer = actor.fail.remote()
    ray.get(actor.__ray_ready__.remote())  # behind it
    del answer
    limit = time.monotonic() + 5.0
    while is_told and not printed and time.monotonic() < limit:
        time.sleep(0.02)
    assert bool(printed) == is_told
    ray.kill(actor)


@pytest.mark.full
def test_shared_workers_of_which_one_is_lost_and_one_waits_for_it_are_renewed(ray_slots):
    pool = WorkerPool()
    with pytest.raises(RlplanError, match="a worker died"):
        pool.on_ranks(2, lost_or_waiting)
    pool.renew()
    assert pool.on_ranks(2, lambda rank, ranks: (rank, ranks)) == [(0, 2), (1, 2)]
    pool.stop()


def lost_or_waiting(rank, _):
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


def test_all_processes_of_a_run_listen_on_the_loopback_interface_only(ray_slots, worker_pool):
    worker_pool.on_ranks(2, lambda *_: torch.distributed.barrier())
    heard = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # Ray ends idle workers when it likes
            listening = [
                at for at in process.net_connections("tcp") if at.status == psutil.CONN_LISTEN
            ]
            # IPv4 as IPv6 writes it
            ips = {at.laddr.ip.removeprefix("::ffff:") for at in listening}
            heard |= {(process.name(), ip) for ip in ips}
    assert heard
    assert {(name, ip) for name, ip in heard if ip not in ("127.0.0.1", "::1")} == set()


def test_a_server_of_ray_that_ends_interrupts_what_waits_for_it():
    words = "Ray's sleep ended: killed"
    with Popen(["sleep", "600"]) as server, pytest.raises(WorkerLostError, match=words):
        wait_without(server)


def wait_without(server):
    with termination_as_interrupt(), watched([server]):
        server.kill()
        while True:  # the signal may come before a single wait begins
            time.sleep(0.1)


def imported_half(wait):
    """Drop an interruption, as an import that catches what it meets does, and fail for want of what is missing."""
    with suppress(KeyboardInterrupt):
        wait()
    raise AttributeError("partially initialized module")


def test_a_server_that_ended_is_named_where_a_library_dropped_the_signal():
    with Popen(["sleep", "600"]) as server, pytest.raises(WorkerLostError, match="sleep ended"):
        import_without(server)


def import_without(server):
    with termination_as_interrupt(), watched([server]):
        server.kill()
        imported_half(lambda: time.sleep(60))


def test_a_signal_that_a_library_dropped_interrupts_when_it_fails():
    with pytest.raises(KeyboardInterrupt) as interruption:
        import_after_a_signal()
    assert interruption.value.args == (signal.SIGTERM,)


def import_after_a_signal():
    with termination_as_interrupt():
        imported_half(lambda: signal.raise_signal(signal.SIGTERM))


class SignalsAsItGoes:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_whose_exception_a_finalizer_drops_interrupts_all_the_same():
    with pytest.raises(KeyboardInterrupt) as interruption:
        wait_after_a_lost_signal()
    assert interruption.value.args == (signal.SIGTERM,)


def wait_after_a_lost_signal():
    with termination_as_interrupt():
        SignalsAsItGoes()
        time.sleep(60)


def test_processes_of_a_session_are_found_without_their_parent():
    orphan = "sleep 600 & echo $!"
    with Popen(["sh", "-c", orphan], stdout=PIPE, start_new_session=True) as shell:
        number = int(shell.stdout.readline())
    (found,) = _processes_of([shell.pid])
    assert found.pid == number
    found.kill()


BESIDE = """
from subprocess import Popen
from rlplan.executor.workers.processes.ray_session import running_ray

with Popen(["sleep", "600"]) as own:
    with running_ray(devices=1):
        pass
    print(own.poll())
    own.kill()
"""


@pytest.mark.full
@pytest.mark.slow
def test_what_the_caller_started_before_ray_outlives_it(temporary):
    answer = subprocess.run(
        [sys.executable, "-c", BESIDE],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": temporary},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert answer.stdout.split() == ["None"]


ROTATING = """
import time
from pathlib import Path
from tempfile import gettempdir
from rlplan.executor.workers.processes.ray_session import running_ray

with running_ray(devices=1):
    (logs,) = Path(gettempdir()).glob("rlplan-ray-*/session_[0-9]*/logs")
    end = time.monotonic() + 60
    while not (logs / "gcs_server.out.1").exists() and time.monotonic() < end:
        time.sleep(0.1)
    print(*sorted((each.stat().st_size, each.name) for each in logs.iterdir() if each.is_file())[-1])
"""


@pytest.mark.full
@pytest.mark.slow
def test_no_log_of_ray_gets_larger_than_it_may(temporary):
    """Servers that write down how they are twenty times a second, not once a minute, soon reach a small limit."""
    often = {"RAY_event_stats_print_interval_ms": "50", "RAY_ROTATION_MAX_BYTES": "20000"}
    answer = subprocess.run(
        [sys.executable, "-c", ROTATING],
        cwd=ROOT,
        env={**os.environ, **often, "TMPDIR": temporary},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    largest, name = answer.stdout.split()
    assert 10_000 < int(largest) <= 20_000, name


class Remembering(ReusedWorker):
    """Tell which process it is, and what of a plan it holds."""

    @registered("one-to-all")
    def state(self, _):
        torch.manual_seed(3)  # what a plan may do
        return os.getpid(), sorted(vars(self)), torch.initial_seed()

    @registered("one-to-all")
    def hold(self, many):
        """Hold so many blocks of a kilobyte, which malloc takes from its heap."""
        self._held = [bytearray(1000) for _ in range(many)]


def test_workers_that_a_plan_leaves_go_on_as_they_started_in_the_next(ray_slots):
    kept = KeptWorkers(Remembering, DEVICE)
    groups = [kept.start_group(1), kept.start_group(1)]
    kept.wait(make_job(), Path())
    assert kept.start_seconds > 0
    for group in groups:
        join_all({group: "cpu"})
    ((first, held, _),), ((second, *_),) = (group.call("state") for group in groups)
    kept.take_back(groups)
    kept.clear()
    pair = kept.start_group(2)
    join_all({pair: "cpu"})
    assert pair.call("apply", all_of_both) == [[0, 1]] * 2
    again = pair.call("state")
    assert [pid for pid, *_ in again] == [first, second]
    # A rank that listens for the others has a socket too.
    assert {*again[1][1]} == {*held} - {"_listener"}
    kept.end()
    assert kept._free == []


class Numbered(HostWorker):
    """Tell the process, and whether it was prepared anew."""

    @registered("one-to-all")
    def state(self, _):
        return os.getpid(), id(self._given)


def test_what_runs_rules_goes_on_as_it_is_under_the_next_plan(ray_slots):
    kept = KeptWorkers(Remembering, DEVICE, (Numbered, HOST))
    setup = HostSetup(job=make_job(), tasks=(), rows=[{"prompt": "a"}], folder=Path())
    group = kept.start_group(1, host=True)
    kept.wait(make_job(), Path())
    assert kept.start_seconds > 0
    group.call("prepare", setup)
    before = group.call("state")
    kept.take_back([group])
    kept.clear()
    again = kept.start_group(2, host=True)
    kept.wait(make_job(), Path())
    again.call("prepare", setup)
    after = again.call("state")
    assert after[0] == before[0]
    assert after[1][0] != before[0][0]
    again.call("prepare", replace(setup, rows=[{"prompt": "b"}]))
    assert again.call("state")[0] != before[0]
    kept.end()


class Timed(Remembering):
    """Note when code was loaded, and when plans were left."""

    times: ClassVar[list[float]] = []

    @registered("one-to-all")
    def load(self, given):
        super().load(given)
        Timed.times.append(time.monotonic())

    @registered("one-to-all")
    def leave(self, _):
        time.sleep(0.2)
        super().leave(None)
        Timed.times.append(time.monotonic())

    @registered("one-to-all")
    def noted(self, _):
        return Timed.times


def test_what_processes_that_stay_took_to_start_is_told_from_what_a_move_repeats(ray_slots):
    kept = KeptWorkers(Timed, DEVICE)
    group = kept.start_group(1)
    kept.wait(make_job(), Path())
    ((loaded, left),) = group.call("noted")
    assert loaded <= kept._begun_seconds + kept.start_seconds < left - 0.1
    join_all({group: "cpu"})
    kept.take_back([group])
    kept.clear()
    kept.start_group(1)
    kept.wait(make_job(), Path())  # for none that is new
    assert kept.start_seconds == 0
    assert len(group.call("noted")[0]) == 3
    kept.end()


class WorkerThatStays(ReusedWorker):
    """Leave no plan."""

    @registered("one-to-all")
    def leave(self, _):
        if self._begun is not None:
            time.sleep(3600)


def test_workers_that_do_not_leave_in_time_end_the_start_with_an_error(ray_slots, monkeypatch):
    kept = KeptWorkers(WorkerThatStays, DEVICE)
    group = kept.start_group(1)
    kept.wait(make_job(), Path())
    join_all({group: "cpu"})
    kept.take_back([group])
    end = lambda: ray.kill(group.actors[0])  # noqa: E731 -- and not the workers that tests share
    monkeypatch.setattr("rlplan.executor.control.start.end_workers", end)
    words = r"took longer than 0\.5 s \(--start-limit\): a worker hangs"
    with pytest.raises(WorkerLostError, match=words), within(0.5, START) as is_late:
        _clear(kept, is_late)
    kept.end()


def all_of_both(rank, ranks):
    told = [None] * ranks
    torch.distributed.all_gather_object(told, rank)
    return told


def test_random_numbers_after_a_plan_are_those_of_a_process_that_has_just_started(ray_slots):
    kept = KeptWorkers(Remembering, DEVICE)
    seen = []
    for _ in range(2):
        group = kept.start_group(1)
        join_all({group: "cpu"})
        seen.append(group.call("apply", drawn))
        group.call("state")  # sets a seed
        kept.take_back([group])
        kept.clear()
    assert seen[0] == seen[1]
    kept.end()


def drawn(*_):
    return float(torch.rand(())), float(np.random.random()), random.random()  # noqa: NPY002


@pytest.mark.skipif(sys.platform == "darwin", reason="malloc_trim(3) is glibc's")
def test_a_plan_that_is_left_takes_its_memory_along(ray_slots):
    kept = KeptWorkers(Remembering, DEVICE)
    peaks = []
    for many in (200_000, 0):
        group = kept.start_group(1)
        join_all({group: "cpu"})
        group.call("hold", many)
        peaks.append(group.call("peak")[0])
        kept.take_back([group])
        kept.clear()
    kept.end()
    assert peaks[1] < peaks[0] - 100_000_000


@pytest.mark.full
def test_where_a_worker_cannot_leave_all_are_ended_and_new_ones_started(ray_slots):
    kept = KeptWorkers(Remembering, DEVICE)
    group = kept.start_group(2)
    join_all({group: "cpu"})
    ray.kill(group.actors[1])  # which Ray does in its own time
    with pytest.raises(RlplanError, match="a worker died"):
        call_on(group)
    kept.take_back([group])
    kept.clear()
    new = kept.start_group(2)
    join_all({new: "cpu"})
    assert not {*new.actors} & {*group.actors}
    kept.end()


def test_the_peak_of_memory_is_forgotten():
    before = peak_bytes("cpu")
    held = np.ones(2**25)  # 256 MiB
    most = peak_bytes("cpu")
    assert most >= before + held.nbytes // 2
    del held
    forget_peak()
    assert peak_bytes("cpu") < most - 2**27
