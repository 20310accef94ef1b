"""Process groups of neighbouring devices, of every size that a plan can ask for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Longer than any point takes; a collective that hangs ends with an error instead of never.
_HANGS_AFTER_SECONDS: Final = 60.0


def group_sizes(devices: int) -> tuple[int, ...]:
    """Return 2, 4, 8, ... below the devices, and all devices; none for a lone device."""
    powers = [2**power for power in range(1, devices.bit_length()) if 2**power < devices]
    return (*powers, devices) if devices > 1 else ()


def join_groups(kind: str, rank: int, devices: int, meeting_file: Path) -> dict[int, ProcessGroup]:
    """Join the processes of all devices, and return this one's group of every size.

    Devices are cut into as many groups of a size as fit, all busy at once as in a job; those left
    over have none of that size.
    """
    if devices == 1:
        return {}
    from datetime import timedelta

    import torch.distributed as dist

    if kind == "cpu" and Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo" if kind == "cpu" else "nccl",
        init_method=f"file://{meeting_file}",
        rank=rank,
        world_size=devices,
        timeout=timedelta(seconds=_HANGS_AFTER_SECONDS),
    )
    groups: dict[int, ProcessGroup] = {}
    for size in group_sizes(devices):
        for first in range(0, devices - size + 1, size):
            # Every process takes part in the making of every group.
            group = dist.new_group(list(range(first, first + size)))
            if first <= rank < first + size:
                groups[size] = group
    return groups
