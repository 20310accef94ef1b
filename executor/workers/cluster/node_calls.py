"""Functions that are called on nodes of a cluster outside of a run: to measure them, and to see what a plan could use."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlplan.errors import PlanError, RlplanError
from rlplan.executor.workers.cluster.looking import LIBRARIES, NodeQuery, looked_at, on_node
from rlplan.executor.workers.cluster.nodes import CPU, GPU, MEMORY, RayNode, ray_nodes
from rlplan.executor.workers.pools import WorkerGroup, fetched, start_placed_group
from rlplan.executor.workers.processes.joined_ray import joined_ray
from rlplan.executor.workers.protocols import registered
from rlplan.executor.workers.worker import Worker
from rlplan.files.frozen import FrozenDict
from rlplan.fingerprint import matches

# What has to be the same for the measurements of one node to stand for another's.
ALIKE = ("python", "ray", "torch")
HARDWARE = ("cpu", "cores", "memory_bytes", "gpus")


@dataclass(frozen=True, slots=True)
class FirstGpu:
    """Hold the name of a node's first GPU and its memory in bytes, as the driver reports them."""

    name: str
    memory_bytes: int


def first_gpus_of(nodes: Sequence[RayNode]) -> dict[str, FirstGpu]:
    """Return the first GPU of each node that has any, by the node's id."""
    asked = {node.id: on_node(_first_gpu, node) for node in nodes if node.total.get(GPU)}
    return {name: board for name, board in fetched(asked).items() if board is not None}


def _first_gpu() -> FirstGpu | None:
    """Return this node's first GPU; None where torch sees none."""
    if not torch.cuda.is_available():
        return None
    return FirstGpu(torch.cuda.get_device_name(0), torch.cuda.mem_get_info(0)[1])


def check_alike(nodes: Sequence[RayNode], what: str) -> None:
    """Refuse nodes of which one cannot stand for another.

    Args:
        what: They have in common, for people.

    Raises:
        PlanError: Names the first difference, and the nodes.
    """
    seen = looked_at(nodes, NodeQuery())
    first = seen[nodes[0].id]
    for node in nodes[1:]:
        other = seen[node.id]
        pairs = [(name, first.versions.get(name), other.versions.get(name)) for name in ALIKE]
        if not matches(first.fingerprint, other.fingerprint):
            pairs += [(each, first.fingerprint[each], other.fingerprint[each]) for each in HARDWARE]
        for name, own, another in pairs:
            if own != another:
                raise PlanError(
                    f"nodes with {what} are unlike: {name} is {own or 'not there'} on {nodes[0].address} and"
                    f" {another or 'not there'} on {node.address}; one's measurements do not stand for"
                    " the other's (a job's ray_resource tells nodes apart)"
                )


# Between two looks at the progress of a function.
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CallProgress:
    """Hold the progress of a function.

    Attributes:
        last: Its last message; None before the first.
        result: Its return value.
        error: The exception that ended it; None where there was none.
    """

    last: Any = None
    has_ended: bool = False
    result: Any = None
    error: Exception | None = None


class NodeCall:
    """Run a function on this node in a thread, and report its progress while it runs."""

    def __init__(self) -> None:
        self._told = CallProgress()

    def begin(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Run a function of (tell, *arguments); return at once."""

        def tell(last: Any) -> None:
            self._told = CallProgress(last=last)

        def run() -> None:
            try:
                result = function(tell, *arguments)
                self._told = CallProgress(last=self._told.last, has_ended=True, result=result)
            except Exception as error:  # noqa: BLE001 -- raised where somebody asks
                self._told = CallProgress(last=self._told.last, has_ended=True, error=error)

        threading.Thread(target=run, daemon=True).start()

    def told(self) -> CallProgress:
        """Return the progress."""
        return self._told


def run_on(
    node: RayNode,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    tell: Callable[[Any], object],
) -> Any:
    """Run a function of (tell, *arguments) on a node, and return what it returns.

    Args:
        tell: Called here with what the function tells there, the last of it in the end.

    Raises:
        RlplanError: Whatever the function raises of rlplan's own; or the node was lost.
    """
    strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
    remote: Any = ray.remote(NodeCall)
    actor = remote.options(num_cpus=0, scheduling_strategy=strategy).remote()
    try:
        fetched({node.id: actor.begin.remote(function, arguments)})
        while True:
            (told,) = fetched({node.id: actor.told.remote()}).values()
            if told.last is not None:
                tell(told.last)
            if told.has_ended:
                break
            time.sleep(LOOK_SECONDS)
    finally:
        ray.kill(actor)
    if told.error is None:
        return told.result
    if isinstance(told.error, RlplanError):
        raise told.error
    raise RlplanError(f"node {node.address}: {told.error}") from told.error


class Member(Worker):
    """Run functions on one device, among those of all devices that were started with it."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[str, Any] = {}

    @registered("one-to-all")
    def apply(self, call: tuple[Callable[..., Any], Sequence[Any]]) -> Any:
        """Return what a function of (what is held here, *arguments) returns."""
        function, arguments = call
        return function(self._held, *arguments)


Members = WorkerGroup


@contextmanager
def started_members(options: Sequence[Mapping[str, Any]]) -> Iterator[Members]:
    """Yield the processes of devices by rank, who have not met yet; end them afterwards."""
    group = start_placed_group(Member, options)
    try:
        yield group
    finally:
        group.stop()


def apply_on_all(members: Members, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what a function of (what is held there, *arguments) returns on every device, by rank.

    Raises:
        RlplanError: It failed on one.
    """
    found: list[Any] = members.call("apply", (function, arguments))
    return found


NEEDED = ("torch", "transformers", "safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """Hold what a node has.

    Attributes:
        gpus: For people: how many are free, of how many, and of what type Ray takes them for.
        cores: That Ray gives out.
        memory_bytes: That Ray gives out.
        versions: Of Python and libraries, without those that are not installed.
        resources: By which a job's nodes can be told apart (`ray_resource`).
        to_do: What keeps workers from running there; empty where nothing does.
    """

    address: str
    gpus: str
    cores: float
    free_cores: float
    memory_bytes: int
    versions: FrozenDict[str, str]
    resources: tuple[str, ...]
    to_do: str


def nodes_of_cluster(address: str) -> tuple[ClusterNode, ...]:
    """Join a cluster, look at its nodes, and leave it.

    Args:
        address: `auto`, or `HOST:PORT`.

    Raises:
        FileError: Nobody answers there, or not to this process.
    """
    with joined_ray(address):
        nodes = ray_nodes()
        seen = looked_at(nodes, NodeQuery())
    found = {name: {each.versions.get(name) for each in seen.values()} for name in LIBRARIES}
    unlike = [name for name in NEEDED if len(found[name] - {None}) > 1]
    return tuple(_described(node, seen[node.id].versions, unlike) for node in nodes)


def _described(node: RayNode, versions: FrozenDict[str, str], unlike: list[str]) -> ClusterNode:
    missing = [name for name in NEEDED if name not in versions]
    parts = [f"install {', '.join(missing)}"] if missing else []
    parts += [f"nodes have different versions of {name}" for name in unlike]
    total, free = node.total.get(GPU, 0.0), node.free.get(GPU, 0.0)
    kinds = "/".join(node.kinds) or "of no type"
    return ClusterNode(
        address=node.address,
        gpus=f"{free:g} of {total:g} {kinds}" if total else "none",
        cores=node.total.get(CPU, 0.0),
        free_cores=node.free.get(CPU, 0.0),
        memory_bytes=int(node.total.get(MEMORY, 0.0)),
        versions=versions,
        resources=node.marks,
        to_do="; ".join(parts),
    )
