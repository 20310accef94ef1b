"""Process groups of neighbouring devices, of every size that a plan can ask for."""

from __future__ import annotations

import os
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from profiles.probes.bench.contract import DeviceKind

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed import ProcessGroup

# Longer than any point takes; a collective that hangs ends with an error instead of never.
_HANGS_AFTER: Final = timedelta(seconds=60)
_HOST: Final = "127.0.0.1"


def group_sizes(devices: int) -> tuple[int, ...]:
    """Return 2, 4, 8, ... below the devices, and all devices; none for a lone device."""
    powers = [2**power for power in range(1, devices.bit_length()) if 2**power < devices]
    return (*powers, devices) if devices > 1 else ()


def join_groups(
    line: Connection, kind: DeviceKind, rank: int, devices: int
) -> dict[int, ProcessGroup]:
    """Join the processes of all devices, and return this one's group of every size.

    Devices are cut into as many groups of a size as fit, all busy at once as in a job; those left
    over have none of that size.

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
    groups: dict[int, ProcessGroup] = {}
    for size in group_sizes(devices):
        for first in range(0, devices - size + 1, size):
            # Every process takes part in the making of every group.
            group = dist.new_group(list(range(first, first + size)))
            if first <= rank < first + size:
                groups[size] = group
    return groups


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
