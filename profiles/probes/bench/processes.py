"""One process per device, all doing the same at the same time, so that neighbours are busy.

The processes come from a fork server that has torch loaded. All hold the reading end of one
pipe, whose writing end is here: closing it, or the end of this process however it comes, ends them
at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rlplan.errors import RlplanError, UserError
from rlplan.profiles.probes.bench.contract import DeviceKind, DeviceProbe, Keys
from rlplan.profiles.probes.bench.groups import join_groups

if TYPE_CHECKING:
    from rlplan.profiles.probes.bench.clock import TorchBench

_STOPS_WITHIN_SECONDS: Final = 2.0
# A process of a busy machine may need this long to load torch and find the others.
_STARTS_WITHIN_SECONDS: Final = 120.0


class ProbeError(RlplanError):
    """Say which probe failed in its process, and why."""


def fork_server() -> ForkServerContext:
    """Return the context whose processes start with torch loaded; the server runs from here on.

    It starts with Ctrl-C blocked, which its processes inherit: they are ended by this process, and
    none dies with a complaint of its own while torch loads.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    resource_tracker.ensure_running()  # first, since its start unblocks Ctrl-C
    allowed = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, allowed)
    return context


class DeviceProcesses:
    """Hold the device processes; use it in a `with` statement, which ends them in any case."""

    def __init__(self, kind: DeviceKind, devices: int) -> None:
        self._kind, self._devices = kind, devices
        self._processes: list[ForkServerProcess] = []
        self._lines: list[Connection] = []
        self._parent_pipe: Connection | None = None

    def __enter__(self) -> Self:
        """Start the processes, and wait until all are ready.

        Raises:
            ProbeError: A process cannot start.
            UserError: The machine has fewer GPUs than are asked for.
        """
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def measure(self, probe: DeviceProbe, keys: Keys, repeats: int) -> tuple[float, ...]:
        """Return the seconds of each repeat: rank 0's, or of a collective the slowest rank's.

        Raises:
            ProbeError: The probe fails, or a process is lost.
        """
        for line in self._lines:
            line.send((probe.name, dict(keys), repeats))
        return counted(probe, self._answers(self._lines, f"{probe.name} {dict(keys)}"))

    def close(self) -> None:
        """End all processes, also one whose start was interrupted half-way."""
        for connection in (*self._lines, *([self._parent_pipe] if self._parent_pipe else [])):
            with contextlib.suppress(OSError):
                connection.close()
        for process in self._processes:
            if process.pid is None:
                continue  # it never started, or sees the end of the pipe
            process.join(_STOPS_WITHIN_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
        self._lines, self._processes, self._parent_pipe = [], [], None

    def _start(self) -> None:
        context = fork_server()
        held_by_all, self._parent_pipe = context.Pipe(duplex=False)
        for rank in range(self._devices):
            ours, theirs = context.Pipe()
            self._lines.append(ours)
            process = context.Process(
                target=serve,
                args=(theirs, held_by_all, self._kind, rank, self._devices),
                name=f"rlplan-device-{rank}",
                daemon=True,
            )
            self._processes.append(process)
            process.start()
            theirs.close()
        held_by_all.close()
        what = "the start of the device processes"
        if self._devices > 1:
            [(port,)] = self._answers(self._lines[:1], what, _STARTS_WITHIN_SECONDS)
            for line in self._lines[1:]:
                line.send(int(port))
        self._answers(self._lines, what, _STARTS_WITHIN_SECONDS)

    def _answers(
        self, lines: list[Connection], what: str, timeout_seconds: float | None = None
    ) -> list[tuple[float, ...]]:
        """Return the answer of each line, in their order; a lost or failed process ends the wait."""
        answers: dict[int, tuple[float, ...]] = {}
        while len(answers) < len(lines):
            waiting = {line: rank for rank, line in enumerate(lines) if rank not in answers}
            ready = wait(list(waiting), timeout_seconds)
            if not ready:
                raise ProbeError(f"{what} did not end within {timeout_seconds:.0f} s")
            for line in ready:
                assert isinstance(line, Connection)
                answers[waiting[line]] = _answer_of(line, what)
        return [answers[rank] for rank in range(len(lines))]


def counted(probe: DeviceProbe, by_rank: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the seconds of each repeat that count: rank 0's, or of a collective the slowest rank's."""
    slowest = (max(repeat) for repeat in zip(*by_rank, strict=True))
    seconds = tuple(slowest) if probe.collective else by_rank[0]
    return tuple(each / probe.operations for each in seconds)


def _answer_of(line: Connection, what: str) -> tuple[float, ...]:
    try:
        outcome, answer = line.recv()
    except (EOFError, OSError):
        raise ProbeError(f"the process that measured {what} was lost") from None
    if outcome == "refused":
        raise UserError(answer)
    if outcome == "failed":
        raise ProbeError(f"cannot measure {what}: {answer}")
    return tuple(answer)


def serve(
    line: Connection, parent_pipe: Connection, kind: DeviceKind, rank: int, devices: int
) -> None:
    """Join the other processes, say so, and answer; the main function of a device process."""
    end_with(parent_pipe)
    bench = _bench(line, kind, rank, devices)
    if bench is None:
        return
    from rlplan.profiles.probes import load_probe

    line.send(("ready", ()))
    with contextlib.suppress(EOFError, OSError):
        while True:
            name, keys, repeats = line.recv()
            probe = load_probe(name)
            assert isinstance(probe, DeviceProbe), name
            try:
                seconds = bench.measure(probe.prepare(bench, keys), repeats)
            except (RuntimeError, MemoryError, ValueError) as error:
                line.send(("failed", f"{type(error).__name__}: {error}"))
            else:
                line.send(("seconds", seconds))


def end_with(parent_pipe: Connection) -> None:
    """End this process as soon as its parent closes the pipe, whatever it does then."""

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            parent_pipe.recv_bytes()
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


def _bench(line: Connection, kind: DeviceKind, rank: int, devices: int) -> TorchBench | None:
    """Return what is measured with, or None when this machine has too few devices."""
    import torch

    from rlplan.profiles.probes.bench.clock import TorchBench

    # One CPU device is one core.
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if kind == "gpu":
        if torch.cuda.device_count() < devices:
            found = f"torch finds {torch.cuda.device_count()} here"
            line.send(("refused", f"GPUs asked for: {devices}; {found}"))
            return None
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    groups = join_groups(line, kind, rank, devices) if devices > 1 else {}
    return TorchBench(device=device, rank=rank, groups=groups)
