"""A pool's worker group on a placement group, and the wait for its results."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlplan.errors import RlplanError
from rlplan.executor.parallel.positions import train_positions
from rlplan.executor.workers.protocols import TransferProtocol, protocol_of
from rlplan.job import Job

# How long to wait for results before looking whether some rank has failed.
LOOK_SECONDS = 0.5
# A killed process shows at once; its neighbours' broken connections may show a little earlier.
LOSS_SHOWS_SECONDS = 5.0


class WorkerGroup:
    """Hold the workers of one pool: one process on each device, all running the same program.

    Args:
        worker: The workers' class, whose methods declare their transfer protocols.
        actors: Ray's handles of them, by rank.
        placement: The placement group that they run in, which ends with them.
    """

    def __init__(self, worker: type[Any], actors: Sequence[Any], placement: Any = None) -> None:
        self._worker, self._actors, self._placement = worker, list(actors), placement
        self._methods: dict[tuple[int, str, int], Any] = {}

    @property
    def actors(self) -> list[Any]:
        """Return Ray's handles of the workers, by rank."""
        return list(self._actors)

    @property
    def ranks(self) -> int:
        """Return the number of workers."""
        return len(self._actors)

    @property
    def present(self) -> tuple[int, ...]:
        """Return the ranks that are there: all of them, but where replicas come and go."""
        return tuple(range(self.ranks))

    def protocol(self, method: str) -> TransferProtocol:
        """Return the transfer protocol that a worker method declares."""
        return protocol_of(getattr(self._worker, method))

    def send(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], num_returns: int = 1
    ) -> dict[int, Any]:
        """Call a method on ranks, each with its arguments; return references at once.

        A rank gets a call when the objects that its references stand for are there.
        """
        return {
            rank: self._method(rank, method, num_returns).remote(*given)
            for rank, given in arguments.items()
        }

    def _method(self, rank: int, method: str, num_returns: int) -> Any:
        """Return a rank's method; made once, for Ray makes a class of each."""
        key = rank, method, num_returns
        if key not in self._methods:
            named = getattr(self._actors[rank], method)
            self._methods[key] = named.options(num_returns=num_returns)
        return self._methods[key]

    def start(self, method: str, argument: Any = None) -> dict[int, Any]:
        """Call a method on the ranks that its protocol distributes to; return references at once."""
        places, protocol = train_positions(1, self.ranks), self.protocol(method)
        given = protocol.distribute(places, argument, lambda whole, parts: [whole] * parts)
        return self.send(method, {rank: (each,) for rank, each in given.items()})

    def call(self, method: str, argument: Any = None) -> Any:
        """Call a method, wait, and return what its protocol collects (a list from many ranks)."""
        results = fetched(self.start(method, argument))
        return self.protocol(method).collect(train_positions(1, self.ranks), results, list)

    def answers(self, references: Mapping[int, Any]) -> dict[int, Any]:
        """Wait for what ranks answer, and return it by rank.

        Raises:
            UserError: A worker met a mistake of the user's.
            RlplanError: A worker failed or died.
        """
        return fetched(references)

    def lost_ranks(self, patience_seconds: float) -> list[int]:
        """Return the ranks whose process is known to have ended within a time.

        A busy rank does not answer, and counts as alive.
        """
        questions = self.start("peak")
        ready, _ = ray.wait(
            list(questions.values()), num_returns=len(questions), timeout=patience_seconds
        )
        return [rank for rank, ref in questions.items() if ref in ready and is_lost(ref)]

    def stop(self) -> None:
        """End the workers and free their slots."""
        _placed.discard(self)
        self.end()
        if self._placement is not None:
            ray.util.remove_placement_group(self._placement)

    def end(self) -> None:
        """Kill the workers, including those that hang in a call."""
        for actor in self._actors:
            ray.kill(actor)


# Groups of this process that run on a cluster's nodes, whose processes are not its own.
_placed: set[WorkerGroup] = set()


def start_placed_group(worker: type[Any], options: Sequence[Mapping[str, Any]]) -> WorkerGroup:
    """Start a pool's workers on a cluster, each with its own options."""
    remote = ray.remote(worker)
    group = WorkerGroup(worker, [remote.options(**each).remote() for each in options])
    _placed.add(group)
    return group


def end_placed_groups() -> bool:
    """End the workers that this process has on a cluster's nodes; tell whether there are any."""
    groups = list(_placed)
    for group in groups:
        group.end()
    return bool(groups)


def start_group(worker: type[Any], ranks: int, slot: str, *, cuda: bool = False) -> WorkerGroup:
    """Start a pool's workers on a placement group, each on a bundle of its own.

    Args:
        slot: Resource of which every worker takes one.
        cuda: Whether every worker takes a GPU as well.
    """
    bundle = {slot: 1.0, **({"GPU": 1.0} if cuda else {})}
    placement = placement_group([bundle] * ranks, strategy="PACK")
    remote = ray.remote(worker)
    actors = [
        remote.options(
            num_cpus=0,
            num_gpus=1 if cuda else 0,
            resources={slot: 1.0},
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement, placement_group_bundle_index=rank
            ),
        ).remote()
        for rank in range(ranks)
    ]
    return WorkerGroup(worker, actors, placement)


class KeptWorkers:
    """Keep the workers of a plan that has ended well for the plan that follows it in the same Ray.

    To start a process and to load torch into it takes seconds; to drop models and to leave a process group does not. What runs
    rules goes on as it is: they are those of the job, which stays.

    Args:
        worker: The class of those on devices, with the methods `load` and `leave`.
        slot: Resource of which every one of them takes one.
        hosts: The same of those on the host's cores, which have neither method; None: they are not kept.

    Attributes:
        start_seconds: What the last start of new processes took, with the code that they load; 0 where there were none.
    """

    def __init__(
        self, worker: type[Any], slot: str, hosts: tuple[type[Any], str] | None = None
    ) -> None:
        self._on_devices, self._on_hosts = (worker, slot), hosts
        self.start_seconds, self._begun_seconds = 0.0, 0.0
        self._started: list[WorkerGroup] = []
        self._new: list[WorkerGroup] = []  # have not been waited for
        self._used: list[WorkerGroup] = []
        self._free: list[Any] = []
        self._kinds: dict[Any, str] = {}  # by actor

    def start_group(self, ranks: int, *, cuda: bool = False, host: bool = False) -> WorkerGroup:
        """Return a pool's workers: free ones first, then new ones."""
        kind = "host" if host else "cuda" if cuda else "cpu"
        made_of = self._on_hosts if host else self._on_devices
        assert made_of is not None, "workers on the host's cores are not kept"
        worker, slot = made_of
        actors = [each for each in self._free if self._kinds[each] == kind][:ranks]
        self._free = [each for each in self._free if each not in actors]
        if len(actors) < ranks:
            if not self._new:
                self._begun_seconds = time.monotonic()
            group = start_group(worker, ranks - len(actors), slot, cuda=cuda)
            self._started.append(group)
            self._new.append(group)
            self._kinds |= dict.fromkeys(group.actors, kind)
            actors += group.actors
        return WorkerGroup(worker, actors)

    def wait(self, job: Job, folder: Path) -> None:
        """Wait until new processes have started and, on devices, have loaded the code of a job's models and left their groups once.

        Later plans find all of that done. `start_seconds` counts starting and loading, but not leaving.

        Args:
            folder: Of the job's files.

        Raises:
            RlplanError: A worker died.
        """
        new, self._new = self._new, []
        self.start_seconds = 0.0
        if not new:
            return
        on_devices = [each for each in new if not self._is_host(each)]
        _answered(on_devices, "load", (job, folder))
        _answered([each for each in new if self._is_host(each)], "peak")
        self.start_seconds = time.monotonic() - self._begun_seconds
        _answered(on_devices, "leave")

    def take_back(self, groups: Iterable[WorkerGroup]) -> None:
        """Keep workers for later, with the state that they hold."""
        self._used += groups

    def clear(self) -> None:
        """Let kept workers on devices drop their state; if one cannot, end all."""
        try:
            _answered([each for each in self._used if not self._is_host(each)], "leave")
        except RlplanError:
            self.end()
        self._free += [actor for group in self._used for actor in group.actors]
        self._used.clear()

    def end(self) -> None:
        """End all workers that were started, and free their slots."""
        for group in self._started:
            group.stop()
        for held in (self._started, self._new, self._used, self._free, self._kinds):
            held.clear()

    def _is_host(self, group: WorkerGroup) -> bool:
        return any(self._kinds[actor] == "host" for actor in group.actors)


def _answered(groups: Iterable[WorkerGroup], method: str, argument: Any = None) -> None:
    """Call a method on the workers of groups, and wait until all have answered."""
    asked = enumerate(group.start(method, argument) for group in groups)
    fetched({(at, rank): ref for at, refs in asked for rank, ref in refs.items()})


def is_lost(reference: Any) -> bool:
    """Wait for an answer; tell whether it failed because the process has ended."""
    try:
        ray.get(reference)
    except RayActorError:
        return True
    except RayError:
        return False
    return False


def raise_own(error: RayTaskError) -> NoReturn:
    """Raise what a worker raised, as it was there, without Ray's account of it; of another error, that account.

    Raises:
        RlplanError: Always.
    """
    if isinstance(error.cause, RlplanError):
        raise error.cause from None
    raise RlplanError(f"a worker failed: {error}") from error


def fetched(references: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the values of references; the first failure ends the wait.

    The other ranks are not waited for: they may hang in a collective with the failed one.

    Raises:
        UserError: A worker met a mistake of the user's, raised as it was there.
        RlplanError: A worker failed or died.
    """
    waiting = list(dict.fromkeys(references.values()))
    values: dict[Any, Any] = {}
    try:
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_SECONDS)
            values |= dict(zip(ready, ray.get(ready), strict=True))
    except RayTaskError as error:
        raise_own(error)
    except RayError as error:
        raise RlplanError(f"a worker died: {error}") from error
    return {key: values[reference] for key, reference in references.items()}
