"""Links between nodes: collectives and messages among devices of several, into the profile of one of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rlplan.profiles.probes import load_probe, probe_names
from rlplan.profiles.probes.bench.contract import DeviceKind, DeviceProbe, Keys, Settings
from rlplan.profiles.probes.bench.processes import counted
from rlplan.profiles.probes.session.profiling import Progress, Session, is_measured
from rlplan.profiles.tables.table import Profile

LINKS: Final = "collective"
BACKENDS: Final = {"cpu": "gloo", "gpu": "nccl"}
INTERFACES: Final = {"cpu": "GLOO_SOCKET_IFNAME", "gpu": "NCCL_SOCKET_IFNAME"}
_BENCH: Final = "bench"

OnAll = Callable[..., list[Any]]
"""Called with a function and its arguments: answers with what the function returns on each rank, after what is held there."""


def open_bench(held: dict[str, Any], kind: DeviceKind, devices: int, nodes: int) -> str:
    """Make this rank's groups, where all ranks of all nodes have met; return the interface that they take.

    Args:
        held: What later calls find here.
        devices: Of each node, whose ranks follow one another.
    """
    import torch
    import torch.distributed as dist

    from rlplan.profiles.probes.bench.clock import TorchBench
    from rlplan.profiles.probes.bench.groups import groups_of

    rank = dist.get_rank()
    device = torch.device("cpu") if kind == "cpu" else torch.device("cuda", 0)
    held[_BENCH] = TorchBench(device=device, rank=rank, groups=groups_of(rank, devices, nodes))
    return os.environ.get(INTERFACES[kind], "")


def measure_link(held: dict[str, Any], name: str, keys: Keys, repeats: int) -> tuple[float, ...]:
    """Return the seconds of each repeat of one point on this rank."""
    probe, bench = load_probe(name), held[_BENCH]
    assert isinstance(probe, DeviceProbe), name
    seconds: tuple[float, ...] = bench.measure(probe.prepare(bench, keys), repeats)
    return seconds


def profile_links(
    profile: Profile, out: Path, settings: Settings, on_all: OnAll, progress: Progress
) -> None:
    """Measure what is missing of the links between nodes, and keep every point at once.

    Args:
        settings: Says how many nodes there are, and how many devices of each.
        on_all: Calls a function on every device.

    Raises:
        RlplanError: A probe fails, or a process is lost.
    """
    probes = [load_probe(name) for name in probe_names()]
    links = [each for each in probes if isinstance(each, DeviceProbe) and each.table == LINKS]
    work = [(probe, keys) for probe in links for keys in probe.points(None, settings)]
    pending = [(probe, keys) for probe, keys in work if not is_measured(profile, probe, keys)]
    session = Session(profile, out, progress, len(work) - len(pending), len(work))
    profile.header = replace(profile.header, complete=False)
    profile.write(out)
    for probe, keys in pending:
        session.keep(probe, keys, partial(_seconds, on_all, probe, keys))
    profile.finish()
    profile.write(out)
    progress(session.total, session.total, "done")


def _seconds(on_all: OnAll, probe: DeviceProbe, keys: Keys, repeats: int) -> tuple[float, ...]:
    return counted(probe, on_all(measure_link, probe.name, dict(keys), repeats))
