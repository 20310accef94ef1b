"""`rlplan doctor`: what of rlplan works on this machine, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from rlplan_cli.terminal import JsonOption, echo_json, print_table

EXAMPLE = "Example: rlplan doctor; of a Ray cluster: rlplan doctor --address auto"

PLANNING = ("numpy", "scipy", "pandas", "pydantic", "simpy", "matplotlib", "jinja2", "typer")
RUNNING = ("torch", "ray", "transformers", "safetensors", "pyarrow", "psutil", "tensorboard")
OLDEST_PYTHON = (3, 11)
# Ray spills to disk where its object store, which lies there, is smaller; a run's is of 200 MB and more.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- asked for its size only
SHARED_BYTES = 2 * 1024**3


def command(
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Show the nodes of a Ray that is running instead: auto, or HOST:PORT.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show versions, devices and Ray: what can be planned, profiled and run here, and what is missing.

    The exit code is 1 where planning does not work.
    """
    if address is not None:
        _show_cluster(address, as_json=as_json)
        return
    from rlplan.errors import RlplanError
    from rlplan.reports.tables.plans import Table, columns

    rows = [*_python(), *_packages(), *_devices(), *_ray(), *_memory()]
    if as_json:
        keys = ("what", "found", "to_do")
        echo_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        table = Table(columns=columns("What", "Found", "To do"), rows=tuple(rows))
        print_table("This machine", table)
    if any(row[1].startswith("missing") and row[0].startswith("planning") for row in rows):
        raise typer.Exit(RlplanError.exit_code)


Row = tuple[str, str, str]


def _show_cluster(address: str, *, as_json: bool) -> None:
    """Print what a plan could use of a cluster, node by node."""
    from rlplan.executor.workers.cluster.node_calls import nodes_of_cluster
    from rlplan.reports.tables.plans import Table, columns
    from rlplan.units import show_bytes
    from rlplan_cli.running import require_execution

    require_execution()
    nodes = nodes_of_cluster(address)
    if as_json:
        echo_json(nodes)
        return
    rows = tuple(
        (
            node.address,
            node.gpus,
            f"{node.free_cores:g} of {node.cores:g}",
            show_bytes(node.memory_bytes),
            ", ".join(f"{name} {version}" for name, version in node.versions.items()),
            node.to_do,
        )
        for node in nodes
    )
    titles = ("Node", "GPUs free", "Cores free", "Memory", "Versions", "To do")
    print_table(f"Ray at {address}", Table(columns=columns(*titles), rows=rows))


def _python() -> list[Row]:
    from rlplan import __version__

    found = platform.python_version()
    fits = sys.version_info >= OLDEST_PYTHON
    to_do = "" if fits else f"use Python {'.'.join(map(str, OLDEST_PYTHON))} or newer"
    return [("rlplan", __version__, ""), ("Python", found, to_do)]


def _packages() -> list[Row]:
    missing = [name for name in PLANNING if find_spec(name) is None]
    found = f"missing: {', '.join(missing)}" if missing else "installed"
    rows = [("planning", found, "pip install rlplan" if missing else "")]
    for name in RUNNING:
        to_do = "" if find_spec(name) else "to run plans: pip install 'rlplan[execute]'"
        rows.append((f"running: {name}", _version(name), to_do))
    to_do = (
        "" if find_spec("vllm") else "optional: pip install 'rlplan[vllm]'; torch generates without"
    )
    return [*rows, ("running: vllm", _version("vllm"), to_do)]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _devices() -> list[Row]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rows = [("CPU", f"{cores} cores, {platform.machine()}", "")]
    if find_spec("torch") is None:
        driver = "a driver is there" if shutil.which("nvidia-smi") else "no driver"
        return [*rows, ("GPU", f"not looked at without torch ({driver})", "")]
    import torch

    if not torch.cuda.is_available():
        has_driver = shutil.which("nvidia-smi") is not None
        to_do = "install a torch of this driver's CUDA version" if has_driver else ""
        return [*rows, ("GPU", "none that torch sees", to_do)]
    return [*rows, *(_gpu(index) for index in range(torch.cuda.device_count()))]


def _gpu(index: int) -> Row:
    import torch

    from rlplan.errors import UserError
    from rlplan.profiles.sheets import sheet_of_board
    from rlplan.units import show_filled

    name = torch.cuda.get_device_name(index)
    free, whole = torch.cuda.mem_get_info(index)
    try:
        sheet, to_do = sheet_of_board(name, whole).name, ""
    except UserError:
        sheet, to_do = "no sheet", "write one: docs/architecture.md, a GPU type"
    return f"GPU {index}", f"{name} ({sheet}), {show_filled(free, whole)} free", to_do


def _ray() -> list[Row]:
    address = os.environ.get("RAY_ADDRESS")
    if find_spec("ray") is None:
        return []
    found = f"RAY_ADDRESS is {address}" if address else "each run starts one of its own"
    to_do = f"look at it with: rlplan doctor --address {address}" if address else ""
    return [("Ray cluster", found, to_do)]


def _memory() -> list[Row]:
    from rlplan.units import show_bytes

    rows = [("disk here", f"{show_bytes(shutil.disk_usage(Path.cwd()).free)} free", "")]
    if SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(SHARED_MEMORY).free
        small = free < SHARED_BYTES
        to_do = (
            "runs of large batches spill to disk: enlarge it (docker --shm-size)" if small else ""
        )
        rows.append((f"shared memory ({SHARED_MEMORY})", f"{show_bytes(free)} free", to_do))
    return rows
