"""Process groups of neighbouring devices, of every size that a plan can ask for, on one node or several."""

from __future__ import annotations

import os
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlplan.profiles.probes.bench.contract import DeviceKind

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed import ProcessGroup

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
