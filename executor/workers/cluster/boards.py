"""Which GPUs the nodes of a joined cluster have, as their driver names them, and what else they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlplan.errors import PlanError
from rlplan.executor.workers.cluster.looking import NodeQuery, looked_at, on_node
from rlplan.executor.workers.cluster.nodes import GPU, RayNode
from rlplan.executor.workers.pools import fetched
from rlplan.sheets.machine import matches

# What has to be the same for the measurements of one node to stand for another's.
ALIKE = ("python", "ray", "torch")
HARDWARE = ("cpu", "cores", "memory_bytes", "gpus")


@dataclass(frozen=True, slots=True)
class Board:
    """Hold what a driver says of a GPU: its name, and its memory in bytes."""

    name: str
    memory_bytes: int


def boards_of(nodes: Sequence[RayNode]) -> dict[str, Board]:
    """Return the first GPU of each node that has any, by the node's id."""
    asked = {node.id: on_node(_board, node) for node in nodes if node.total.get(GPU)}
    return {name: board for name, board in fetched(asked).items() if board is not None}


def _board() -> Board | None:
    """Return this node's first GPU; None where torch sees none."""
    if not torch.cuda.is_available():
        return None
    return Board(torch.cuda.get_device_name(0), torch.cuda.mem_get_info(0)[1])


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
