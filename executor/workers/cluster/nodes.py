"""Nodes of a Ray cluster: what they have, and where a plan's pools are placed on them."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.util.accelerators import accelerators
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from rlplan.errors import NodesMissingError, RlplanError, WorkerLostError
from rlplan.job import NodeGroup
from rlplan.plan import Plan
from rlplan.replicas import GENERATE
from rlplan.units import show_bytes

CPU, GPU, MEMORY = "CPU", "GPU", "memory"
TYPE_PREFIX = "accelerator_type:"
OWN_RESOURCES = (CPU, GPU, MEMORY, "object_store_memory", "bundle_group_")
GROUP_PART = "_group_"
# What marks a node, such as the type of its GPUs, is asked for in the smallest part: it is not used up.
MARK = 0.001

Worker = tuple[str, int]
"""A pool's name and a rank in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNode:
    """Hold what of a plan stands on one node.

    Attributes:
        device: Device sheet of its GPUs, or `cpu`.
        mark: Ray resource that its site names for such nodes; None: the type of its GPUs says it.
        workers: Of device pools, in the order of their devices.
        hosts: Of pools of reward functions.
    """

    device: str
    mark: str | None
    workers: tuple[Worker, ...]
    hosts: tuple[Worker, ...] = ()

    @property
    def has_gpus(self) -> bool:
        """Tell whether its devices are GPUs and not cores."""
        return self.device != "cpu"

    def worker_bundle(self, kind: str | None) -> dict[str, float]:
        """Return what one of its device workers asks Ray for.

        Args:
            kind: Ray's name of the type of its GPUs; None where Ray has none.
        """
        marks = [self.mark] if self.mark is not None else []
        if self.has_gpus and self.mark is None and kind is not None:
            marks.append(TYPE_PREFIX + kind)
        return {GPU if self.has_gpus else CPU: 1.0, **dict.fromkeys(marks, MARK)}

    def needs(self, kind: str | None) -> dict[str, float]:
        """Return what all its workers ask Ray for; reward functions use the cores that cpu devices leave idle."""
        total = Counter[str]()
        for _ in self.workers:
            total.update(self.worker_bundle(kind))
        if self.has_gpus and self.hosts:
            total[CPU] += len(self.hosts)
        return dict(total)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """Hold a node of the cluster: its resources, all of them and those that are free."""

    id: str
    address: str
    total: Mapping[str, float]
    free: Mapping[str, float] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return Ray's names of the types of its GPUs."""
        found = (name for name in self.total if name.startswith(TYPE_PREFIX))
        return tuple(sorted(name.removeprefix(TYPE_PREFIX) for name in found))

    @property
    def marks(self) -> tuple[str, ...]:
        """Return the resources that its site has named: neither Ray's own nor parts of placement groups."""
        own = (*OWN_RESOURCES, TYPE_PREFIX, "node:")
        return tuple(sorted(n for n in self.total if not n.startswith(own) and GROUP_PART not in n))

    def words(self) -> str:
        """Return its resources in words, with the free amount where some are in use."""
        parts = [
            f"{self._amount(name)} {name}"
            + (f" ({'/'.join(self.kinds) or 'of no type'})" if name == GPU else "")
            for name in (GPU, CPU)
            if self.total.get(name)
        ]
        parts += self.marks
        if self.total.get(MEMORY):
            parts.append(f"{show_bytes(self.total[MEMORY])} of memory")
        return f"{self.address}: {', '.join(parts) or 'nothing'}"

    def _amount(self, name: str) -> str:
        total, free = self.total.get(name, 0.0), self.free.get(name, 0.0)
        return f"{total:g}" if free >= total else f"{free:g} of {total:g} free"


def plan_nodes(plan: Plan, replicas: int | None = None) -> tuple[PlanNode, ...]:
    """Return the nodes on which a plan stands: pools take devices in its order, node by node.

    Workers of reward functions go by turns to these nodes, or to those of them that have more than replicas which come and go.

    Args:
        replicas: That come and go: how many of them there are, the first ones. None: all of them stay.
    """
    groups = [group for group in plan.job.cluster for _ in range(group.nodes)]
    workers: list[list[Worker]] = [[] for _ in groups]
    for pool in plan.pools:
        left = iter(range(pool.gpus if not pool.is_host else 0))
        for group, taken in zip(groups, workers, strict=True):
            room = group.gpus_per_node - len(taken) if group.gpu == pool.device else 0
            taken += [(pool.name, rank) for _, rank in zip(range(room), left, strict=False)]
    staying = set(range(len(groups)))
    if replicas is not None:
        generate = plan.tasks[GENERATE]
        there = replicas * generate.tp * generate.pp
        stays = [[each for each in taken if each[0] != generate.pool] for taken in workers]
        staying = {at for at, taken in enumerate(stays) if taken}
        workers = [
            [each for each in taken if each[0] != generate.pool or each[1] < there]
            for taken in workers
        ]
    used = [at for at, taken in enumerate(workers) if taken]
    hosts = [(pool.name, rank) for pool in plan.pools if pool.is_host for rank in range(pool.gpus)]
    homes = [at for at in used if at in staying]
    return tuple(
        PlanNode(
            device=groups[at].gpu,
            mark=groups[at].ray_resource,
            workers=tuple(workers[at]),
            hosts=tuple(hosts[homes.index(at) :: len(homes)]) if at in staying else (),
        )
        for at in used
    )


def ray_nodes() -> tuple[RayNode, ...]:
    """Return the nodes of the cluster that are alive, by their addresses."""
    free = available_resources_per_node()  # type: ignore[no-untyped-call]
    found = [
        RayNode(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            total=node["Resources"],
            free=free.get(node["NodeID"], {}),
        )
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
    ]
    return tuple(sorted(found, key=lambda node: (_numbers(node.address), node.id)))


def _numbers(address: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", address))


def ray_kind(device: str, there: Iterable[str] = ()) -> str | None:
    """Return Ray's name of the type of a device sheet's GPUs; None where its name says no chip.

    Args:
        there: Names that nodes of the cluster have: Ray makes some from what a driver calls its board.
    """
    chips, sizes = _words(device)
    known = [name for name in vars(accelerators).values() if isinstance(name, str)]
    fitting = [name for name in sorted(there) if chips & _words(name)[0]]
    if fitting:  # of those of one chip, the one that says the same size of memory
        return max(fitting, key=lambda name: len(sizes & _words(name)[1]))
    fitting = [name for name in known if chips & _words(name)[0]]
    return fitting[0] if fitting else max(chips).upper() if chips else None


def _words(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words of a name that are a chip's, with a digit in them, and those that are a size of memory."""
    words = re.split(r"[-_ ]", name.lower())
    sizes = {each.rstrip("b") for each in words if re.fullmatch(r"\d+gb?", each)}
    chips = {each for each in words if re.search(r"\d{2}|[a-z]\d", each)}
    return frozenset(chips - {f"{size}b" for size in sizes} - sizes), frozenset(sizes)


def kinds_of(nodes: Sequence[PlanNode], there: Sequence[RayNode]) -> dict[str, str | None]:
    """Return Ray's names of the types of a plan's GPUs, by device sheet."""
    names = {kind for node in there for kind in node.kinds}
    return {node.device: ray_kind(node.device, names) for node in nodes if node.has_gpus}


def matched(
    nodes: Sequence[PlanNode], there: Sequence[RayNode], *, whole: bool = False
) -> tuple[RayNode | None, ...]:
    """Return for each node of a plan one of the cluster, each another one; None where none is left.

    As many as possible are matched, in the order of addresses.

    Args:
        whole: Whether what others use now counts as well.
    """
    kinds = kinds_of(nodes, there)
    fits = [
        [
            place
            for place, node in enumerate(there)
            if _covers(node.total if whole else node.free, each.needs(kinds.get(each.device)))
        ]
        for each in nodes
    ]
    taken: dict[int, int] = {}

    def find(number: int, seen: set[int]) -> bool:
        """Give a plan's node one of the cluster; those that have one may move to another."""
        # First what nobody has: then the order of a plan's nodes is that of addresses.
        for place in sorted(fits[number], key=lambda place: place in taken):
            if place not in seen:
                seen.add(place)
                if place not in taken or find(taken[place], seen):
                    taken[place] = number
                    return True
        return False

    for number in range(len(nodes)):
        find(number, set())
    placed = {number: there[place] for place, number in taken.items()}
    return tuple(placed.get(number) for number in range(len(nodes)))


def groups_there(groups: Sequence[NodeGroup], there: Sequence[RayNode]) -> tuple[NodeGroup, ...]:
    """Return a job's groups of nodes with as many nodes as the cluster has free of each; without those that it has none of."""
    wanted = [
        (number, PlanNode(device=group.gpu, mark=group.ray_resource, workers=_all_devices(group)))
        for number, group in enumerate(groups)
        for _ in range(group.nodes)
    ]
    found = matched([node for _, node in wanted], there)
    counts = Counter(number for (number, _), place in zip(wanted, found, strict=True) if place)
    return tuple(
        replace(group, nodes=counts[number])
        for number, group in enumerate(groups)
        if counts[number]
    )


def _all_devices(group: NodeGroup) -> tuple[Worker, ...]:
    return tuple(("all", place) for place in range(group.gpus_per_node))


def _covers(has: Mapping[str, float], needs: Mapping[str, float]) -> bool:
    return all(has.get(name, 0.0) >= amount for name, amount in needs.items())


def shortage(nodes: Sequence[PlanNode], there: Sequence[RayNode], who: str = "the plan") -> str:
    """Return what a cluster lacks for a plan, with what is there; empty where nothing is missing.

    Args:
        who: Wants the nodes, for people.
    """
    found = matched(nodes, there)
    lacking = [node for node, place in zip(nodes, found, strict=True) if place is None]
    if not lacking:
        return ""
    kinds = kinds_of(nodes, there)
    in_use = None not in matched(nodes, there, whole=True)
    listed = "; ".join(node.words() for node in there) or "no node"
    what = "in use by others" if in_use else "missing"
    return (
        f"{who} wants {_counted(nodes, kinds)}; {what}: {_counted(lacking, kinds)}; there: {listed}"
    )


def _counted(nodes: Sequence[PlanNode], kinds: Mapping[str, str | None]) -> str:
    """Return nodes for people, alike ones together: `2 nodes with 8 GPU (H100)`."""
    shown: Any = Counter(_needs_words(node, kinds.get(node.device)) for node in nodes)
    return " and ".join(
        f"{count} {'nodes' if count > 1 else 'node'} with {words}" for words, count in shown.items()
    )


def _needs_words(node: PlanNode, kind: str | None) -> str:
    needs = node.needs(kind)
    amounts = [f"{needs[name]:g} {name}" for name in (GPU, CPU) if name in needs]
    marks = [node.mark] if node.mark is not None else [kind] if kind is not None else []
    if amounts and marks:
        amounts[0] += f" ({', '.join(marks)})"
    return " and ".join(amounts)


NODE_ID = "ray.io/node-id"
# Ray counts a lost node as alive until it has missed its answers for a while.
READY_SECONDS = 20.0
LOOK_SECONDS = 0.5
# Released resources count as taken until all of Ray knows of the release.
SETTLE_SECONDS = 5.0

Options = Mapping[str, Any]
"""With what an actor starts: what it takes of which placement group's bundle, or of which node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPart:
    """Hold what of a plan has a placement group of its own, on one node of the cluster.

    Attributes:
        node: Whose part of a plan's node.
        place: Node of the cluster.
        group: None where it takes nothing of Ray's, such as reward functions beside cores.
        replica: Whose it is among those that come and go; None: of none.
    """

    node: PlanNode
    place: RayNode
    group: PlacementGroup | None
    replica: int | None = None


Check = Callable[[Sequence[RayNode]], Mapping[str, float]]
"""Refuses nodes that do not do for a run, and returns by their ids the seconds that their clocks are ahead."""


class ReplicaPlaces:
    """Give each replica that comes and goes places of its own, which are free for others once it has left.

    Args:
        parts: Of the run; what is placed later joins them.
        addresses: Of nodes, by pool and rank; likewise.
        check: Called with nodes on which a replica is to start.
        tell: Called where they do not do.
        refused: Ids of nodes that do not do; those that are found not to do join them.

    Attributes:
        clock_offsets: By id of a node that came later, the seconds that its clock is ahead.
    """

    def __init__(
        self,
        plan: Plan,
        parts: list[PlacedPart],
        addresses: dict[Worker, str],
        check: Check,
        tell: Callable[[str], object],
        refused: set[str],
    ) -> None:
        self._plan, self._parts, self._addresses = plan, parts, addresses
        self._check, self._tell, self._refused = check, tell, refused
        self.clock_offsets: dict[str, float] = {}

    @property
    def placed(self) -> list[int]:
        """Return the replicas that have places."""
        return sorted({each.replica for each in self._parts if each.replica is not None})

    def find(self, number: int) -> list[Options] | None:
        """Return with what options a replica's processes start, by rank; None where no free nodes do for it.

        It starts where it was as long as those nodes are there. Elsewhere its places are waited for: Ray counts them as free for a
        while where another replica, or another run, has just taken them.
        """
        there = ray_nodes()
        if self._of(number) and not self.is_stranded(number, there):
            return self._options(number)
        self.give_back(number)
        nodes = [
            part
            for node in plan_nodes(self._plan)
            for owner, part in parts_of(self._plan, node, apart=True)
            if owner == number
        ]
        left = [node for node in there if node.id not in self._refused]
        places = [node for node in matched(nodes, left) if node is not None]
        if len(places) < len(nodes) or not self._do(places):
            return None
        kinds = kinds_of(nodes, there)
        for node, place in zip(nodes, places, strict=True):
            self._parts.append(_part(node, place, kinds, number))
        if not _are_ready(self._of(number), SETTLE_SECONDS):
            self.give_back(number)
            return None
        for node, place in zip(nodes, places, strict=True):
            self._addresses |= dict.fromkeys(node.workers, place.address)
        return self._options(number)

    def _do(self, places: Sequence[RayNode]) -> bool:
        """Tell whether nodes do for the run; those that do not are not tried again."""
        try:
            self.clock_offsets |= self._check(places)
        except RlplanError as error:
            self._refused |= {each.id for each in places}
            self._tell(f"no replica starts there: {error}")
            return False
        return True

    def is_stranded(self, number: int, there: Sequence[RayNode] | None = None) -> bool:
        """Tell whether a replica has places on a node that is lost.

        Args:
            there: Nodes that are alive; None: it is looked.
        """
        alive = {node.id for node in (ray_nodes() if there is None else there)}
        return any(each.place.id not in alive for each in self._of(number))

    def give_back(self, number: int) -> None:
        """Free the places of a replica, if it has any."""
        own = self._of(number)
        _remove(own)
        self._parts[:] = [each for each in self._parts if each.replica != number]

    def _of(self, number: int) -> list[PlacedPart]:
        return [each for each in self._parts if each.replica == number]

    def _options(self, number: int) -> list[Options]:
        found = _options_by_worker(self._of(number))
        return [found[worker] for worker in sorted(found)]


def parts_of(plan: Plan, node: PlanNode, *, apart: bool) -> Iterator[tuple[int | None, PlanNode]]:
    """Yield the parts of a plan's node, with the replica whose each is; None for what is of no replica that comes and goes.

    Args:
        apart: Whether replicas come and go; else all is one part.
    """
    if not apart:
        yield None, node
        return
    generate = plan.tasks[GENERATE]
    size = generate.tp * generate.pp
    own: dict[int | None, list[Worker]] = {}
    for pool, rank in node.workers:
        own.setdefault(rank // size if pool == generate.pool else None, []).append((pool, rank))
    rest = tuple(own.pop(None, ()))
    if rest or node.hosts:
        yield None, replace(node, workers=rest)
    for number, workers in own.items():
        yield number, replace(node, workers=tuple(workers), hosts=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Hold where a plan's workers start.

    Attributes:
        nodes: Of the cluster, those on which they do.
        options: By pool and rank.
        addresses: Of their nodes, by pool and rank.
        replicas: Gives places to replicas that come and go; None where none do.
    """

    nodes: tuple[RayNode, ...]
    options: Mapping[Worker, Options]
    addresses: Mapping[Worker, str]
    replicas: ReplicaPlaces | None = None

    def of_pool(self, pool: str, ranks: int) -> list[Options]:
        """Return with what options a pool's workers start, by rank."""
        return [self.options[pool, rank] for rank in range(ranks)]


@contextmanager
def placed_workers(
    plan: Plan,
    wait_seconds: float,
    tell: Callable[[str], object],
    check: Check,
    replicas: int | None = None,
    refused: set[str] | None = None,
) -> Iterator[Placed]:
    """Yield where each worker of a plan starts; give the places back afterwards.

    Args:
        wait_seconds: For nodes that are not there.
        tell: Called once where that is waited for.
        check: Called with nodes on which a replica starts later.
        replicas: With how many a run begins whose replicas come and go: with fewer where nodes are missing, with one at
            least. None: all of them stay.
        refused: Ids of nodes on which nothing starts; where a replica comes to one that does not do, it joins them.

    Raises:
        NodesMissingError: They have not come; says what is missing and what is there.
    """
    choices = [plan_nodes(plan)]
    if replicas is not None:
        choices = [plan_nodes(plan, each) for each in range(replicas, 0, -1)]
    parts: list[PlacedPart] = []
    refused = set() if refused is None else refused

    def there() -> tuple[RayNode, ...]:
        return tuple(node for node in ray_nodes() if node.id not in refused)

    try:
        _ready_parts(plan, choices, parts, there, wait_seconds, tell, apart=replicas is not None)
        placed = _placed(parts)
        if replicas is not None:
            addresses = dict(placed.addresses)
            places = ReplicaPlaces(plan, parts, addresses, check, tell, refused)
            placed = replace(placed, addresses=addresses, replicas=places)
        yield placed
    finally:
        _remove(parts)


@contextmanager
def placed_on(nodes: Sequence[PlanNode], there: Sequence[RayNode]) -> Iterator[Placed]:
    """Yield where workers start on given nodes of a cluster, one for each; give the places back afterwards.

    Raises:
        WorkerLostError: Others have taken the places meanwhile.
    """
    kinds, parts = kinds_of(nodes, there), list[PlacedPart]()
    try:
        for node, place in zip(nodes, there, strict=True):
            parts.append(_part(node, place, kinds))
            if not _are_ready(parts[-1:]):
                raise WorkerLostError(f"node {place.address} takes no workers: {place.words()}")
        yield _placed(parts)
    finally:
        _remove(parts)


def _placed(parts: Sequence[PlacedPart]) -> Placed:
    addresses = {
        worker: each.place.address
        for each in parts
        for worker in (*each.node.workers, *each.node.hosts)
    }
    nodes = {each.place.id: each.place for each in parts}
    options = _options_by_worker(parts)
    return Placed(nodes=tuple(nodes.values()), options=options, addresses=addresses)


def _ready_parts(
    plan: Plan,
    choices: Sequence[Sequence[PlanNode]],
    parts: list[PlacedPart],
    look: Callable[[], tuple[RayNode, ...]],
    wait_seconds: float,
    tell: Callable[[str], object],
    *,
    apart: bool,
) -> None:
    """Make the placement groups of a plan's nodes, of which nothing is left where one was not ready in time.

    Args:
        choices: Nodes that it may stand on: the first ones that are there are taken, and the last ones waited for. What
            nodes have in use counts as free until Ray has heard of what this run has given back.
        parts: They are added to.
        look: Returns the nodes of the cluster that may be taken.
        apart: Whether replicas have groups of their own.
    """
    begin, told = time.monotonic(), ""
    while True:
        settling, all_there = time.monotonic() - begin < SETTLE_SECONDS, look()
        there_are = (
            each for each in choices if None not in matched(each, all_there, whole=settling)
        )
        nodes = next(there_are, choices[-1])
        lacking, kinds = shortage(nodes, all_there), kinds_of(nodes, all_there)
        if not lacking:
            there = (node for node in matched(nodes, all_there) if node is not None)
            parts += [
                _part(part, place, kinds, number)
                for node, place in zip(nodes, there, strict=True)
                for number, part in parts_of(plan, node, apart=apart)
            ]
            if _are_ready(parts):
                return
            _remove(parts)
            parts.clear()
            lacking, settles = _why_not_ready(nodes), False
            if _fewer_do(nodes, choices, look()):  # one of them was lost, and Ray did not know yet
                continue
        else:
            settles = None not in matched(nodes, all_there, whole=True)
        most_seconds = max(wait_seconds, SETTLE_SECONDS if settles else 0.0)
        left = most_seconds - (time.monotonic() - begin)
        if left <= 0 and not (settling and settles):  # else fewer nodes may do
            raise NodesMissingError(f"{lacking} (--node-wait {wait_seconds:g})")
        if not settles and lacking != told:
            told = lacking
            tell(f"{lacking}; waits up to {left:.0f} s")
        time.sleep(min(LOOK_SECONDS, max(0.0, left)))


def _fewer_do(
    nodes: Sequence[PlanNode], choices: Sequence[Sequence[PlanNode]], there: Sequence[RayNode]
) -> bool:
    """Tell whether the nodes that a plan was to stand on are there no more, and another choice of it has all of its own."""
    are_lost = None in matched(nodes, there, whole=True)  # what is in use is there
    return are_lost and any(None not in matched(each, there) for each in choices)


def _why_not_ready(nodes: Sequence[PlanNode]) -> str:
    """Return why a plan's nodes take no workers, whom all of them seemed to have room for."""
    if None in matched(nodes, ray_nodes(), whole=True):  # Ray has found out which is lost
        return shortage(nodes, settled_nodes(nodes))
    return "a node that counts as there takes no workers"


def settled_nodes(nodes: Sequence[PlanNode]) -> tuple[RayNode, ...]:
    """Return the nodes of the cluster, once Ray has heard of what a plan's nodes gave back; soon, whether it has or not."""
    begin = time.monotonic()
    while True:
        there = ray_nodes()
        free, whole = (matched(nodes, there, whole=whole).count(None) for whole in (False, True))
        if free == whole or time.monotonic() - begin > SETTLE_SECONDS:
            return there
        time.sleep(LOOK_SECONDS)


def _part(
    node: PlanNode, place: RayNode, kinds: Mapping[str, str | None], replica: int | None = None
) -> PlacedPart:
    """Ask for the placement group of a part of a plan on a node."""
    bundles = [node.worker_bundle(kinds.get(node.device)) for _ in node.workers]
    if node.has_gpus:
        bundles += [{CPU: 1.0} for _ in node.hosts]
    group: PlacementGroup | None = None
    if bundles:
        labels = [{NODE_ID: place.id}] * len(bundles)
        group = placement_group(bundles, strategy="STRICT_PACK", bundle_label_selector=labels)
    return PlacedPart(node=node, place=place, group=group, replica=replica)


def _are_ready(parts: Sequence[PlacedPart], wait_seconds: float = READY_SECONDS) -> bool:
    groups = (each.group for each in parts if each.group is not None)
    return all(group.wait(wait_seconds) for group in groups)


def _options_by_worker(parts: Sequence[PlacedPart]) -> dict[Worker, Options]:
    found: dict[Worker, Options] = {}
    for each in parts:
        node = each.node
        for number, worker in enumerate((*node.workers, *node.hosts)):
            is_host = number >= len(node.workers)
            takes_gpu = node.has_gpus and not is_host
            if is_host and not node.has_gpus:
                strategy: Any = NodeAffinitySchedulingStrategy(each.place.id, soft=False)
            else:
                assert each.group is not None, "who takes something has a bundle"
                strategy = PlacementGroupSchedulingStrategy(
                    each.group, placement_group_bundle_index=number
                )
            found[worker] = {
                "num_gpus": 1 if takes_gpu else 0,
                "num_cpus": 1 if is_host == node.has_gpus else 0,
                "scheduling_strategy": strategy,
            }
    return found


def _remove(parts: Sequence[PlacedPart]) -> None:
    for each in parts:
        if each.group is not None:
            ray.util.remove_placement_group(each.group)
