"""Which nodes of a cluster a profile is measured on: of each type of device those that a job names, or all that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlplan.errors import FileError, PlanError

if TYPE_CHECKING:
    from rlplan.executor.workers.cluster.nodes import PlanNode, RayNode
    from rlplan.job import Job

POOL = "profile"
CPU_DEVICE = "cpu"
ADDRESS = "--address"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """Say what somebody wants measured of a cluster; None leaves it to the job, or to what is there.

    Attributes:
        device: One device sheet alone.
        devices: Of a node, to keep busy at once.
        nodes: Most nodes between which links are measured.
    """

    job: Job | None
    device: str | None = None
    devices: int | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Hold the nodes with one type of device.

    Attributes:
        plan_nodes: What each of them is asked for; ranks follow one another node by node.
        nodes: Of the cluster, in the order of addresses; the first is measured whole.
    """

    device: str
    devices: int
    plan_nodes: tuple[PlanNode, ...]
    nodes: tuple[RayNode, ...]


def nodes_to_measure(wanted: ProfileRequest, there: Sequence[RayNode]) -> tuple[Measured, ...]:
    """Return the nodes to measure, by device.

    Raises:
        FileError: The job has no such device, or nodes have unlike numbers of it.
        PlanError: Nodes are missing, in use by others, or unlike each other; says what is there.
        UnknownNameError: No device sheet is of a GPU that is there.
    """
    from rlplan.executor.workers.cluster.node_calls import check_alike
    from rlplan.executor.workers.cluster.nodes import matched, shortage

    asked = _of_job(wanted) if wanted.job is not None else _of_cluster(wanted, there)
    every = [node for each in asked.values() for node in each]
    lacking = shortage(every, there, "the profile")
    if lacking:
        raise PlanError(lacking)
    places = iter(matched(every, there))
    found = []
    for device, nodes in asked.items():
        taken = tuple(place for _, place in zip(nodes, places, strict=False) if place is not None)
        check_alike(taken, device)
        count = len(nodes[0].workers)
        found.append(Measured(device=device, devices=count, plan_nodes=tuple(nodes), nodes=taken))
    return tuple(found)


def _plan_nodes(device: str, mark: str | None, nodes: int, devices: int) -> list[PlanNode]:
    from rlplan.executor.workers.cluster.nodes import PlanNode

    return [
        PlanNode(
            device=device,
            mark=mark,
            workers=tuple((POOL, node * devices + place) for place in range(devices)),
        )
        for node in range(nodes)
    ]


def _of_job(wanted: ProfileRequest) -> dict[str, list[PlanNode]]:
    """Return the nodes of a job's cluster by device; of several groups of one device, the first."""
    job = wanted.job
    assert job is not None, "it is the job's cluster"
    groups = {group.gpu: group for group in reversed(job.cluster)}
    names = [group for group in groups if wanted.device in {None, group}]
    if not names:
        allowed = ", ".join(groups)
        raise FileError(
            "--device", "the job's cluster has none", value=wanted.device, allowed=allowed
        )
    return {
        name: _plan_nodes(
            name,
            groups[name].ray_resource,
            min(groups[name].nodes, wanted.nodes or groups[name].nodes),
            wanted.devices or groups[name].gpus_per_node,
        )
        for name in sorted(names)
    }


def _of_cluster(wanted: ProfileRequest, there: Sequence[RayNode]) -> dict[str, list[PlanNode]]:
    """Return all nodes of a cluster by device: those with GPUs, or where none has any, with cores."""
    from rlplan.executor.workers.cluster.nodes import CPU, GPU

    by_device: dict[str, list[RayNode]] = {}
    for node, device in _devices_of(there).items():
        by_device.setdefault(device, []).append(next(each for each in there if each.id == node))
    if wanted.device == CPU_DEVICE or not by_device:
        by_device = {CPU_DEVICE: [node for node in there if node.total.get(CPU)]}
    if wanted.device is not None and wanted.device not in by_device:
        allowed = ", ".join((*by_device, CPU_DEVICE))
        raise FileError("--device", "no node has one", value=wanted.device, allowed=allowed)
    found = {}
    for device, nodes in sorted(by_device.items()):
        if wanted.device not in {None, device}:
            continue
        counts = {node.address: int(node.total.get(GPU, 0)) for node in nodes}
        devices = wanted.devices or (1 if device == CPU_DEVICE else min(counts.values()))
        if wanted.devices is None and device != CPU_DEVICE and len(set(counts.values())) > 1:
            listed = ", ".join(f"{count} on {address}" for address, count in counts.items())
            problem = f"nodes have unlike numbers of {device}: {listed}"
            raise FileError(ADDRESS, problem, allowed="--devices: how many to keep busy on each")
        count = min(len(nodes), wanted.nodes or len(nodes))
        found[device] = _plan_nodes(device, None, count, devices)
    return found


def _devices_of(there: Sequence[RayNode]) -> dict[str, str]:
    """Return the device sheets of the nodes' GPUs, by node's id."""
    from rlplan.executor.workers.cluster.node_calls import first_gpus_of
    from rlplan.profiles.sheets import sheet_of_board

    return {
        node: sheet_of_board(board.name, board.memory_bytes).name
        for node, board in first_gpus_of(there).items()
    }
