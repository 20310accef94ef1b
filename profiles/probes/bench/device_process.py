"""The process of one device: it answers measuring requests until its parent's pipe ends."""

from __future__ import annotations

import contextlib
import os
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from rlplan.profiles.probes.bench.contract import DeviceKind, DeviceProbe
from rlplan.profiles.probes.bench.groups import join_groups

if TYPE_CHECKING:
    from rlplan.profiles.probes.bench.clock import TorchBench


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
