"""Ray for one run: its start, and an end that leaves no process and no file."""

import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from types import FrameType, ModuleType
from typing import Any

import psutil
import ray
from ray import _raylet
from ray._private import ray_constants, services, utils, worker

from rlplan.errors import RlplanError, UserError, WorkerLostError
from rlplan.executor.workers.processes.reaper import Reaper
from rlplan.units import KIB, MIB

DEVICE = "rlplan_device"
HOST = "rlplan_host"

OBJECT_STORE_BYTES = 200 * MIB
LOG_BYTES = 16 * MIB

# Larger results go from worker to worker through shared memory; smaller ones (reports) to the caller.
INLINE_BYTES = 100 * KIB

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

# Of Ray, read where it starts. Who sets them decides: a token of a cluster's own, or `disabled`.
TOKEN_MODE, TOKEN, TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"

# Whoever waits for an answer raises what comes in its place. Of answers that nobody waits for any more, when a neighbour has
# ended, Ray would print pages.
IGNORES_LOST_ANSWERS = {"RAY_IGNORE_UNHANDLED_ERRORS": "1"}

ENVIRONMENT = {
    **IGNORES_LOST_ANSWERS,
    # Ray's servers listen on the loopback interface only: nobody else may reach a cluster without
    # authentication. Ray's own switch for it, named after the systems that need it most.
    ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0",
    # Nor other users of this machine: every call carries a token that only this run's processes know.
    TOKEN_MODE: "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    # Its server would keep a record of every call of the last 100,000, for a dashboard that there is not.
    "RAY_task_events_report_interval_ms": "0",
    # Its servers write down how they are every minute: up to 512 MiB a file, six files, if nobody says less.
    "RAY_ROTATION_MAX_BYTES": str(LOG_BYTES),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_worker_niceness": "0",  # a device is as important as the controller beside it
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "GLOO_SOCKET_IFNAME": LOOPBACK,
    "NCCL_SOCKET_IFNAME": LOOPBACK,
    # glibc asks Linux for huge pages: what workers compute walks through megabytes of weights and
    # keys, and finds their addresses faster. Passes take a few per cent less time.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # Freed memory is kept: by default glibc's malloc (mallopt(3)) returns it, and page faults of the next task took a
    # seventh of short tasks' time. 32 MiB is the largest mmap threshold that it accepts.
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_MMAP_THRESHOLD_": str(32 * MIB),
    "TOKENIZERS_PARALLELISM": "false",
}

_log = logging.getLogger(__name__)

_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
_Handler = Callable[[int, FrameType | None], Any] | signal.Handlers

# Without these of Ray's servers nothing is answered; the agents take the raylet with them.
NEEDED = ("gcs_server", "raylet")
WATCH_SECONDS = 0.2
# How Ray names the processes of our actors; its own agents must live, which take the raylet along.
# An idle one may be on its way to becoming one of ours.
ACTORS = ("ray::Worker", "ray::HostWorker", "ray::Storage", "ray::LocalHost", "ray::IDLE")
# Ray ends a process that has waited a minute for a server, at once and without clearing up.
UNWINDING_SECONDS = 20.0
# What drops an exception (a finalizer, a hook around a fork) has returned by then.
AGAIN_SECONDS = 0.05
# How long processes of Ray may take to end by themselves.
PATIENCE_SECONDS = 3.0


@contextmanager
def running_ray(devices: int, hosts: int = 0) -> Iterator[None]:
    """Start a private Ray with that many device and host slots; leave nothing of it behind.

    A Ray that the caller runs already is used and left alone, if it has the slots.
    """
    if ray.is_initialized():
        yield
        return
    with _own_environment(), termination_as_interrupt() as answer:
        folder = tempfile.mkdtemp(prefix="rlplan-ray-")
        servers: list[Popen[bytes]] = []
        others = psutil.Process().children(recursive=True)  # the caller's own
        with Reaper(folder) as reaper:

            def clear_up() -> None:
                _clear_up(folder, [each.pid for each in servers])
                reaper.dismiss()

            try:
                with _in_sessions_of_their_own(servers, reaper), signals_answered_by(answer):
                    _init_ray(folder, devices, hosts)
                needed = [each for each in servers if _name(each) in NEEDED]
                with watched(needed, clear_up):
                    yield
            finally:
                spared = {reaper.pid, *(other.pid for other in others)}
                stop_ray(folder, [each.pid for each in servers], spared=spared)


@contextmanager
def _own_environment() -> Iterator[None]:
    """Set what a private Ray reads where it starts; a cluster that is joined later finds the user's own."""
    set_here = [name for name in (*ENVIRONMENT, TOKEN) if name not in os.environ]
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _make_token()
    enabled = ray_constants.ENABLE_RAY_CLUSTER  # read from the environment when ray was imported
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled
        for name in set_here:
            os.environ.pop(name, None)
        _read_environment()


def _make_token() -> None:
    """Make a token that calls carry, where the user has given none; kept in no file."""
    if os.environ[TOKEN_MODE] == "token" and not {TOKEN, TOKEN_FILE} & set(os.environ):
        os.environ[TOKEN] = secrets.token_hex(32)
    _read_environment()


def _read_environment() -> None:
    raylet: Any = _raylet
    raylet.Config.initialize("")  # reads the environment, as it did when ray was imported
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _in_sessions_of_their_own(servers: list[Popen[bytes]], reaper: Reaper) -> Iterator[None]:
    """Let Ray's servers start apart from this process's group, each leading a session, and note them.

    A batch system, `timeout` and a terminal signal the whole group: servers that end at once would leave the
    controller waiting for answers that never come. Processes that a server starts stay in its session for as long as
    they live, even if their parent ends.
    """
    plain: Any = services.ConsolePopen

    def start(*arguments: Any, **options: Any) -> Any:
        servers.append(plain(*arguments, start_new_session=True, **options))
        reaper.note(servers[-1].pid)
        return servers[-1]

    with _replaced(services, ConsolePopen=start):
        yield


@contextmanager
def _replaced(module: ModuleType, **others: Any) -> Iterator[None]:
    """Put others in the place of a module's functions, by their names, for a while."""
    plain = {name: getattr(module, name) for name in others}
    for name, other in others.items():
        setattr(module, name, other)
    try:
        yield
    finally:
        for name, own in plain.items():
            setattr(module, name, own)


@contextmanager
def watched(
    servers: Sequence[Popen[bytes]], clear_up: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Let this thread know within a moment where one of these servers has ended.

    What waits for an answer of Ray would go on waiting, and be ended by Ray without clearing up.

    Args:
        clear_up: Called before this process ends, where this thread waits for Ray deaf to signals.

    Raises:
        WorkerLostError: Names the server, whatever else failed for want of it.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_SECONDS):
            if not _ended(servers):
                continue
            os.kill(os.getpid(), signal.SIGTERM)
            if not done.wait(UNWINDING_SECONDS):
                _log.error("Ray's %s ended: killed, out of memory or crashed", _ended(servers))
                clear_up()
                os._exit(RlplanError.exit_code)
            return

    if threading.current_thread() is threading.main_thread():
        threading.Thread(target=watch, name="rlplan-watch", daemon=True).start()
    try:
        yield
    # Any exception: a library whose import the signal interrupted may lack names that it defines later.
    except (KeyboardInterrupt, Exception) as error:
        done.set()
        ended = _ended(servers)
        if not ended or isinstance(error, UserError):
            raise
        raise WorkerLostError(f"Ray's {ended} ended: killed, out of memory or crashed") from error
    finally:
        done.set()


def _ended(servers: Sequence[Popen[bytes]]) -> str:
    return " and ".join(_name(each) for each in servers if each.poll() is not None)


def _name(server: Popen[bytes]) -> str:
    command = server.args
    return Path(str(command[0] if isinstance(command, list) else command)).name


@contextmanager
def signals_answered_by(handler: _Handler) -> Iterator[None]:
    """Keep a handler while Ray starts, which sets its own: they exit before anything is cleared up.

    What Ray sets from C++ while it connects aborts the process; until that is undone, signals wait.
    """
    plain = worker.connect

    def connect(*arguments: Any, **options: Any) -> Any:
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS)
        try:
            return plain(*arguments, **options)
        finally:
            _on_signals(_INTERRUPTIONS, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTIONS)

    with (
        _replaced(utils, set_sigterm_handler=lambda _: None),
        # Ray's listener would print pages of a server's log when the server ends, in addition to the message.
        _replaced(worker, connect=connect, listen_error_messages=lambda *_: None),
    ):
        yield


def _init_ray(folder: str, devices: int, hosts: int) -> None:
    try:
        ray.init(
            address="local",  # whatever RAY_ADDRESS says
            num_cpus=1,
            resources={DEVICE: max(1, devices), HOST: max(1, hosts)},
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
            _system_config={"max_direct_call_object_size": INLINE_BYTES},
        )
    # Ray's own waits end in a plain exception, as they do where a machine is overloaded.
    except Exception as error:
        raise RlplanError(
            f"Ray did not start: {error} Try again when this machine has less to do."
        ) from error


def stop_ray(folder: str, sessions: Sequence[int], *, spared: Collection[int]) -> None:
    """Shut this process's Ray down, wait for its processes, and remove its folder.

    Args:
        sessions: Whose processes are Ray's as well, beside this process's children.
        spared: Children that are not.
    """
    with signals_ignored():
        try:
            ray.shutdown()
        finally:
            children = psutil.Process().children(recursive=True)
            started = {*children, *_processes_of(sessions)}
            started = {process for process in started if process.pid not in spared}
            _, alive = psutil.wait_procs(started, timeout=PATIENCE_SECONDS)
            for process in alive:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            _clear_up(folder, sessions)


def end_workers() -> None:
    """Kill the processes of this run's workers, those that are stopped or hang in a call included."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].startswith(ACTORS):
                process.kill()


def _clear_up(folder: str, sessions: Sequence[int]) -> None:
    for process in _processes_of(sessions):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def _processes_of(sessions: Sequence[int]) -> list[psutil.Process]:
    """Return the processes of sessions, those that lost their parent included."""
    found = []
    for number in psutil.pids():
        with suppress(psutil.NoSuchProcess, OSError):
            if os.getsid(number) in sessions:
                found.append(psutil.Process(number))
    return found


@contextmanager
def termination_as_interrupt() -> Iterator[_Handler]:
    """Let SIGTERM and Ctrl-C unwind so that what was started is ended; those that follow are ignored.

    Yields the handler that does it.

    Raises:
        KeyboardInterrupt: With the number of the signal, whoever raised it anew on its way.
    """
    came: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        # `timeout` signals its child, then the child's group: unwinding is not begun twice.
        _on_signals(_INTERRUPTIONS, signal.SIG_IGN)
        came.append(number)
        raise KeyboardInterrupt(number)

    with _handled(_INTERRUPTIONS, interrupt), _sent_again_where_lost(interrupt):
        try:
            yield interrupt
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(*came[:1] or error.args) from None
        except RlplanError:
            raise
        except Exception as error:  # of a library that dropped the interruption and went on without
            if came:
                raise KeyboardInterrupt(*came[:1]) from error
            raise


@contextmanager
def _sent_again_where_lost(handler: _Handler) -> Iterator[None]:
    """Send a signal again whose exception Python dropped: it came in a finalizer or around a fork.

    What is raised in there goes to `sys.unraisablehook` and nowhere else: the run would go on, deaf.
    """
    plain, over = sys.unraisablehook, threading.Event()

    def send_again(number: int) -> None:
        if not over.wait(AGAIN_SECONDS):
            os.kill(os.getpid(), number)

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        lost = dropped.exc_value
        if not (isinstance(lost, KeyboardInterrupt) and lost.args):
            plain(dropped)
            return
        _on_signals(_INTERRUPTIONS, handler)
        threading.Thread(target=send_again, args=lost.args, daemon=True).start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        over.set()
        sys.unraisablehook = plain


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM for the seconds that clearing up takes."""
    with _handled(_INTERRUPTIONS, signal.SIG_IGN):
        yield


@contextmanager
def _handled(numbers: Sequence[signal.Signals], handler: _Handler) -> Iterator[None]:
    """Set a handler for a while; other threads than the main one may not, and get no signals."""
    before = _on_signals(numbers, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)


def _on_signals(numbers: Sequence[signal.Signals], handler: _Handler) -> dict[signal.Signals, Any]:
    """Set a handler; return by signal the one before, nothing in other threads than the main one."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number in numbers}
