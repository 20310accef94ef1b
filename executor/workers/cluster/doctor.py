"""What a plan could use of a cluster, node by node."""

from dataclasses import dataclass

from rlplan.executor.workers.cluster.looking import LIBRARIES, NodeQuery, looked_at
from rlplan.executor.workers.cluster.nodes import CPU, GPU, MEMORY, RayNode, ray_nodes
from rlplan.executor.workers.processes.joined_ray import joined_ray
from rlplan.files.frozen import FrozenDict

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
