"""Collectives inside a node or between nodes: gloo between CPU devices, NCCL between GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlplan.job import Job
from rlplan.profiles.probes.bench.contract import DeviceProbe, Keys, Settings
from rlplan.profiles.probes.bench.processes import layouts
from rlplan.profiles.probes.bench.shapes import message_bytes

if TYPE_CHECKING:
    from rlplan.profiles.probes.bench.clock import TorchBench

_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return every kind by group size and by bytes of the full tensor; none for a lone device.

    Every group size is measured for itself: a fit over two ranks says little about eight.
    """
    del job
    return [
        {"kind": kind, "ranks": ranks, "ranks_per_node": per_node, "num_bytes": num_bytes}
        for ranks, per_node in layouts(settings.devices, settings.nodes)
        for kind in _KINDS
        for num_bytes in message_bytes(settings)
    ]


def prepare(bench: TorchBench, keys: Keys) -> Callable[[], object]:
    """Return the collective in this process's group; a process that has none only looks on."""
    import torch
    import torch.distributed as dist

    kind, ranks = str(keys["kind"]), int(keys["ranks"])
    group = bench.groups.get((ranks, int(keys["ranks_per_node"])))
    if group is None:
        return lambda: None
    share = bench.buffer(int(keys["num_bytes"]) // ranks)
    whole = torch.ones(share.numel() * ranks, device=bench.device)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "broadcast":
        first = dist.get_global_rank(group, 0)
        return lambda: dist.broadcast(whole, src=first, group=group)
    # Torch 2.13 renamed these two.
    if kind == "all_gather":
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return lambda: gather(whole, share, group=group)
    assert kind == "reduce_scatter", kind
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return lambda: scatter(share, whole, group=group)


PROBE = DeviceProbe(
    name="collective", table="collective", points=points, prepare=prepare, collective=True
)
