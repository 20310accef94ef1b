"""One process per device, all doing the same at the same time, so that neighbours are busy.

The processes come from a fork server that has torch loaded. They are daemons, they leave when they
lose their parent, and they leave Ctrl-C to it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from profiles.probes.bench.contract import DeviceKind, DeviceProbe, Keys
from rlplan.errors import RlplanError, UserError

_STOPS_WITHIN_SECONDS: Final = 2.0
# A process of a busy machine may need this long to load torch and find the others.
_STARTS_WITHIN_SECONDS: Final = 120.0


class ProbeError(RlplanError):
    """Say which probe failed in its process, and why."""


def fork_server() -> ForkServerContext:
    """Return the context whose processes start with torch loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    return context


class Crew:
    """Hold the device processes; use it in a `with` statement, which ends them in any case."""

    def __init__(self, kind: DeviceKind, devices: int) -> None:
        self._kind, self._devices = kind, devices
        self._processes: list[ForkServerProcess] = []
        self._lines: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        """Start the processes, and wait until all are ready.

        Raises:
            ProbeError: A process cannot start.
            UserError: The machine has fewer GPUs than are asked for.
        """
        try:
            self._start()
        except BaseException:
            self.close(at_once=True)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(at_once=error is not None)

    def measure(self, probe: DeviceProbe, keys: Keys, repeats: int) -> tuple[float, ...]:
        """Return the seconds of each repeat: rank 0's, or of a collective the slowest rank's.

        Raises:
            ProbeError: The probe fails, or a process is lost.
        """
        for line in self._lines:
            line.send((probe.name, dict(keys), repeats))
        answers = self._answers(f"{probe.name} {dict(keys)}")
        slowest = (max(repeat) for repeat in zip(*answers, strict=True))
        seconds = tuple(slowest) if probe.collective else answers[0]
        return tuple(each / probe.times for each in seconds)

    def close(self, *, at_once: bool = False) -> None:
        """End all processes; by force if asked, or if they do not leave soon."""
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.close()
        for process in self._processes:
            if process.pid is None:
                continue  # it never started
            process.join(0 if at_once else _STOPS_WITHIN_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
        self._lines, self._processes = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        context = fork_server()
        self._folder = tempfile.TemporaryDirectory(prefix="rlplan-profile-")
        meeting_file = str(Path(self._folder.name) / "meeting")
        for rank in range(self._devices):
            ours, theirs = context.Pipe()
            self._lines.append(ours)
            process = context.Process(
                target=serve,
                args=(theirs, self._kind, rank, self._devices, meeting_file),
                name=f"rlplan-device-{rank}",
                daemon=True,
            )
            self._processes.append(process)
            process.start()
            theirs.close()
        self._answers("the start of the device processes", _STARTS_WITHIN_SECONDS)

    def _answers(self, what: str, timeout_seconds: float | None = None) -> list[tuple[float, ...]]:
        """Return every rank's answer, in rank order; a lost or failed rank ends the wait."""
        answers: dict[int, tuple[float, ...]] = {}
        while len(answers) < len(self._lines):
            waiting = {self._lines[rank]: rank for rank in range(len(self._lines))}
            for rank in answers:
                del waiting[self._lines[rank]]
            ready = wait(list(waiting), timeout_seconds)
            if not ready:
                raise ProbeError(f"{what} did not end within {timeout_seconds:.0f} s")
            for line in ready:
                assert isinstance(line, Connection)
                answers[waiting[line]] = _answer_of(line, what)
        return [answers[rank] for rank in range(len(self._lines))]


def _answer_of(line: Connection, what: str) -> tuple[float, ...]:
    try:
        outcome, answer = line.recv()
    except (EOFError, OSError):
        raise ProbeError(f"the process that measured {what} was lost") from None
    if outcome == "refused":
        raise UserError(answer)
    if outcome != "seconds":
        raise ProbeError(f"cannot measure {what}: {answer}")
    return tuple(answer)


def serve(line: Connection, kind: DeviceKind, rank: int, devices: int, meeting_file: str) -> None:
    """Answer measuring requests until the line is closed; the main function of a device process."""
    leave_with_parent()
    import torch
    import torch.distributed as dist

    from profiles.probes import load_probe
    from profiles.probes.bench.clock import TorchBench
    from profiles.probes.bench.groups import join_groups

    # One CPU device is one core.
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if kind == "gpu":
        if torch.cuda.device_count() < devices:
            found = f"torch finds {torch.cuda.device_count()} here"
            line.send(("refused", f"{devices} GPUs are asked for, and {found}"))
            return
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
    groups = join_groups(kind, rank, devices, Path(meeting_file))
    bench = TorchBench(device=device, rank=rank, groups=groups)
    line.send(("seconds", ()))
    with contextlib.suppress(EOFError, OSError):
        while True:
            name, keys, repeats = line.recv()
            probe = load_probe(name)
            assert isinstance(probe, DeviceProbe), name
            try:
                seconds = bench.measure(probe.prepare(bench, keys), repeats)
            except (RuntimeError, MemoryError, ValueError) as error:
                line.send(("error", f"{type(error).__name__}: {error}"))
            else:
                line.send(("seconds", seconds))
    if dist.is_initialized():
        dist.destroy_process_group()


def leave_with_parent() -> None:
    """Leave Ctrl-C to the parent, and end this process as soon as the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a child process only"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()
