"""Where a run's workers start: in a private Ray of this machine, or on the nodes of a cluster that is joined."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import ray

from rlplan.errors import PlanError, WorkerLostError
from rlplan.executor.rollout.vllm_limits import VLLM
from rlplan.executor.workers.cluster.looking import (
    NodeAnswer,
    carried_files,
    check_reached,
    check_seen,
    clock_offsets,
    outside_paths,
)
from rlplan.executor.workers.cluster.nodes import (
    Placed,
    RayNode,
    groups_there,
    placed_workers,
    plan_nodes,
    ray_nodes,
    settled_nodes,
)
from rlplan.executor.workers.processes.joined_ray import joined_ray
from rlplan.executor.workers.processes.ray_session import running_ray
from rlplan.files.frozen import FrozenDict
from rlplan.job import NodeGroup
from rlplan.plan import Plan

NEEDED = ("torch", "transformers", "safetensors")

Tell = Callable[[str], object]
Replan = Callable[[Plan, tuple[NodeGroup, ...]], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Say which Ray a run joins.

    Attributes:
        address: `auto`, or `HOST:PORT`.
        node_wait_seconds: How long a run waits for nodes that it lacks, at its start and where one was lost.
        replan: Makes a plan of the same job for the nodes that are left, where lost ones have not come; raises a
            `UserError` where none fits them. None: such a run ends.
    """

    address: str
    node_wait_seconds: float = 0.0
    replan: Replan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPaths:
    """Hold what every node must see of a run, by what people call it.

    Attributes:
        read: Files and folders that workers read.
        written: Folders into which workers and the controller write.
        reached: URLs behind which they write.
    """

    read: Mapping[str, Path] = field(default_factory=FrozenDict)
    written: Mapping[str, Path] = field(default_factory=FrozenDict)
    reached: Mapping[str, str] = field(default_factory=FrozenDict)


class JoinedCluster:
    """Place a plan's workers on the nodes of a cluster that this process has joined.

    Attributes:
        machine: Fingerprint of the first of the plan's nodes.
    """

    def __init__(self, plan: Plan, cluster: Cluster, paths: SharedPaths) -> None:
        self._plan, self._cluster, self._paths = plan, cluster, paths
        self._seen: dict[str, NodeAnswer] = {}
        self._nodes: tuple[RayNode, ...] = ()
        self._refused: set[str] = set()
        self.machine: FrozenDict[str, str] = FrozenDict()

    def check(self, tell: Tell, replicas: int | None = None) -> None:
        """Refuse a plan that the cluster has no nodes for, or nodes that do not see what the run needs.

        Args:
            replicas: As of `placed`.

        Raises:
            PlanError: Says what is missing, and what is there.
            FileError: Names a path and the node that does not see it.
        """
        try:
            with self.placed(tell, replicas):
                pass
        except WorkerLostError as error:
            raise PlanError(f"cluster {self._cluster.address}: {error}") from None

    @property
    def replans(self) -> bool:
        """Tell whether a run goes on with another plan where its nodes do not come."""
        return self._cluster.replan is not None

    @property
    def has_lost_nodes(self) -> bool:
        """Tell whether a node that workers were placed on last is not there any more; soon after, Ray may not know yet."""
        there = {node.id for node in ray_nodes()}
        return any(node.id not in there for node in self._nodes)

    def replanned(self) -> Plan | None:
        """Take, from now on, a plan of the same job for the nodes that are free, and return it.

        None where none of the job's nodes is missing any more: then the plan is as it was.

        Raises:
            UserError: No plan fits them.
        """
        assert self._cluster.replan is not None, "somebody makes plans"
        cluster = self._plan.job.cluster
        groups = groups_there(cluster, settled_nodes(plan_nodes(self._plan)))
        if groups == cluster:
            return None
        if not groups:
            raise PlanError("no node of the job's cluster is left")
        self._plan = self._cluster.replan(self._plan, groups)
        return self._plan

    def take(self, plan: Plan) -> None:
        """Place another plan of the same job from now on."""
        self._plan = plan

    @contextmanager
    def placed(self, tell: Tell, replicas: int | None = None) -> Iterator[Placed]:
        """Yield where the plan's workers start, on nodes that see what the run needs.

        Args:
            replicas: With how many a run begins whose replicas come and go, where as many have nodes; None: all stay.

        Raises:
            NodesMissingError: Nodes are missing, and have not come in time.
            FileError: Names a path and the node that does not see it.
        """
        limits = (self._plan, self._cluster.node_wait_seconds, tell)
        with placed_workers(*limits, self._check_later, replicas, self._refused) as placed:
            self._nodes = placed.nodes
            self._check(placed.nodes)
            self.machine = self._seen[placed.nodes[0].id].fingerprint
            yield placed

    def _check_later(self, nodes: Sequence[RayNode]) -> Mapping[str, float]:
        """Refuse nodes that a replica is to start on and that do not see what the run needs; return how far their clocks are ahead."""
        self._check(nodes)
        return clock_offsets(nodes)

    def _check(self, nodes: Sequence[RayNode]) -> None:
        new = [node for node in nodes if node.id not in self._seen]
        if new:
            self._seen |= check_seen(new, self._paths.read, self._paths.written)
            for name, url in self._paths.reached.items():
                check_reached(new, url, name)
        known = {node.id: node for node in (*self._nodes, *nodes)}
        self._check_libraries(tuple(known.values()))

    def _check_libraries(self, nodes: tuple[RayNode, ...]) -> None:
        uses_vllm = self._plan.tasks["actor.generate"].engine == VLLM
        for name in (*NEEDED, VLLM) if uses_vllm else NEEDED:
            found = {node.address: self._seen[node.id].versions.get(name, "") for node in nodes}
            lacking = [address for address, version in found.items() if not version]
            if lacking:
                raise PlanError(f"{name} is not installed on node {', '.join(lacking)}")
            if len({version.partition("+")[0] for version in found.values()}) > 1:
                listed = ", ".join(f"{version} on {node}" for node, version in found.items())
                raise PlanError(f"nodes have different versions of {name}: {listed}")


@contextmanager
def joined_cluster(
    plan: Plan,
    cluster: Cluster | None,
    paths: SharedPaths,
    folder: Path,
    tell: Tell,
    replicas: int | None = None,
) -> Iterator[JoinedCluster | None]:
    """Join the cluster of a run, after it was checked for the plan; None where the run has a Ray of its own.

    Args:
        folder: What relative paths in the job are relative to; what workers read there goes along.
        replicas: With how many a run begins whose replicas come and go; None: all stay.

    Raises:
        UserError: The cluster cannot be joined, lacks what the plan wants, or does not see what the run needs.
    """
    if cluster is None:
        yield None
        return
    outside = outside_paths(plan.job, folder)
    paths = replace(paths, read={**outside, **paths.read})
    with ExitStack() as stack:
        package = stack.enter_context(carried_files(plan.job, folder))
        stack.enter_context(joined_ray(cluster.address, () if package is None else (package,)))
        joined = JoinedCluster(plan, cluster, paths)
        joined.check(tell, replicas)
        yield joined


@contextmanager
def places_of(
    plan: Plan, joined: JoinedCluster | None, tell: Tell, replicas: int | None = None
) -> Iterator[Placed | None]:
    """Yield where the workers of an attempt start; None for slots of a Ray of the run's own, which is started.

    Args:
        replicas: With how many it begins whose replicas come and go; None: all stay.
    """
    if joined is not None:
        with joined.placed(tell, replicas) as placed:
            yield placed
        return
    devices = sum(pool.gpus for pool in plan.pools if not pool.is_host)
    with running_ray(devices, sum(pool.gpus for pool in plan.pools if pool.is_host)):
        yield None


def check_one_machine(plan: Plan) -> None:
    """Refuse a plan of several nodes where there is this machine alone; a Ray that the caller runs has its own.

    Raises:
        PlanError: Says how to join a cluster, or to have the nodes' devices here.
    """
    nodes = len(plan_nodes(plan))
    if nodes > 1 and not ray.is_initialized():
        raise PlanError(
            f"the plan stands on {nodes} nodes, and this is one machine: join a Ray cluster"
            " (--address HOST:PORT), or let devices of this machine stand for them (--simulate-nodes)"
        )
