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
from datetime import timedelta
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rlplan.errors import RlplanError, UserError
from rlplan.profiles.probes.bench.contract import DeviceKind, DeviceProbe, Keys

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed import ProcessGroup

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


# Longer than any point takes; a collective that hangs ends with an error instead of never.
_HANGS_AFTER: Final = timedelta(seconds=60)
_HOST: Final = "127.0.0.1"

Layout = tuple[int, int]
"""Ranks of a group, and how many of them share a node."""


def group_sizes(devices: int) -> tuple[int, ...]:
    """Return 2, 4, 8, ... below the devices, and all devices; none for a lone device."""
    powers = [2**power for power in range(1, devices.bit_length()) if 2**power < devices]
    return (*powers, devices) if devices > 1 else ()


def layouts(devices: int, nodes: int = 1) -> tuple[Layout, ...]:
    """Return the groups to measure as (ranks, ranks of them on one node).

    Of one node, every size; of several, every number of nodes with every number of devices of each.

    Args:
        devices: Of each node.
    """
    if nodes == 1:
        return tuple((size, size) for size in group_sizes(devices))
    inside = (1, *group_sizes(devices))
    return tuple((count * each, each) for count in group_sizes(nodes) for each in inside)


def members(layout: Layout, devices: int, nodes: int = 1) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each group of a layout, where ranks are counted node by node.

    As many groups as fit, all busy at once as in a job; ranks that are left over are in none.
    """
    ranks, inside = layout
    count = ranks // inside
    return tuple(
        tuple(
            node * devices + place
            for node in range(first_node, first_node + count)
            for place in range(first, first + inside)
        )
        for first_node in range(0, nodes - count + 1, count)
        for first in range(0, devices - inside + 1, inside)
    )


def groups_of(rank: int, devices: int, nodes: int = 1) -> dict[Layout, ProcessGroup]:
    """Return this process's group of every layout, where all processes have met."""
    import torch.distributed as dist

    groups: dict[Layout, ProcessGroup] = {}
    for layout in layouts(devices, nodes):
        for ranks in members(layout, devices, nodes):
            # Every process takes part in the making of every group.
            group = dist.new_group(list(ranks))
            if rank in ranks:
                groups[layout] = group
    return groups


def join_groups(
    line: Connection, kind: DeviceKind, rank: int, devices: int
) -> dict[Layout, ProcessGroup]:
    """Join the processes of all devices of this machine, and return this one's groups.

    Args:
        line: Tells the parent the port at which rank 0 waits for the others, or learns it.
    """
    import torch.distributed as dist

    if kind == "cpu" and Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo" if kind == "cpu" else "nccl",
        store=_meet(line, rank, devices),
        rank=rank,
        world_size=devices,
        timeout=_HANGS_AFTER,
    )
    return groups_of(rank, devices)


def _meet(line: Connection, rank: int, devices: int) -> TCPStore:
    """Return the store through which the processes find each other, at a port that is free."""
    # Torch's stubs do not say that it exports the store.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if rank == 0:
        store: TCPStore = TCPStore(
            _HOST, 0, devices, is_master=True, timeout=_HANGS_AFTER, wait_for_workers=False
        )
        line.send(("port", (store.port,)))
        return store
    port = line.recv()
    return TCPStore(_HOST, port, devices, timeout=_HANGS_AFTER, wait_for_workers=False)
