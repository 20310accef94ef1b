"""Ray for one run: its start and end, and a pool's worker group on a placement group."""

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import ray_constants
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from executor.workers.interrupts import signals_ignored, termination_as_interrupt
from executor.workers.processes import descendants, end_processes
from executor.workers.protocols import Protocol, RankPositions, protocol_of, train_positions
from rlplan.errors import RlplanError
from rlplan.units import MIB

DEVICE = "rlplan_device"
HOST = "rlplan_host"

OBJECT_STORE_BYTES = 200 * MIB
# Larger results go from worker to worker through shared memory; smaller ones (reports) to the caller.
INLINE_BYTES = 1000
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
ENVIRONMENT = {
    # Ray's servers listen on the loopback interface only: nobody else may reach a cluster without
    # authentication. Ray's own switch for it, named after the systems that need it most.
    ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0",
    "RAY_AUTH_MODE": "disabled",  # a private cluster on this machine; else it writes to the shard folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",  # a device is as important as the controller beside it
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "GLOO_SOCKET_IFNAME": LOOPBACK,
    # glibc asks Linux for huge pages: what workers compute walks through megabytes of weights and
    # keys, and finds their addresses faster. Passes take a few per cent less time.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # glibc's malloc (mallopt(3)) gives freed memory back and faults it in again for the next task,
    # which took a seventh of short tasks' time; what is freed stays here. 32 MiB is the most that
    # it takes as the size from which blocks are mapped one by one.
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_MMAP_THRESHOLD_": str(32 * MIB),
    "TOKENIZERS_PARALLELISM": "false",
}
# How long to wait for results before looking whether some rank has failed.
LOOK_SECONDS = 0.5

Split = Callable[[Any, int], Sequence[Any]]


@contextmanager
def running_ray(devices: int, hosts: int = 0) -> Iterator[None]:
    """Start a private Ray with that many device and host slots; leave nothing of it behind.

    A Ray that the caller runs already is used and left alone, if it has the slots.
    """
    if ray.is_initialized():
        yield
        return
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    ray_constants.ENABLE_RAY_CLUSTER = False  # read from the environment when ray was imported
    with termination_as_interrupt():
        folder = tempfile.mkdtemp(prefix="rlplan-ray-")
        try:
            _init_ray(folder, devices, hosts)
            with termination_as_interrupt():  # again, for Ray has set its own, which aborts
                yield
        finally:
            stop_ray(folder)


def _init_ray(folder: str, devices: int, hosts: int) -> None:
    try:
        ray.init(
            num_cpus=1,
            resources={DEVICE: max(1, devices), HOST: max(1, hosts)},
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
            _system_config={"max_direct_call_object_size": INLINE_BYTES},
        )
    # Ray's own waits end in a plain exception, as they do where a machine is overloaded.
    except Exception as error:
        raise RlplanError(
            f"Ray did not start: {error} Try again when this machine has less to do."
        ) from error


def stop_ray(folder: str) -> None:
    """Shut this process's Ray down, wait for its processes, and remove its folder."""
    with signals_ignored():
        started = descendants()
        try:
            ray.shutdown()
        finally:
            end_processes(started)
            shutil.rmtree(folder, ignore_errors=True)


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
    def ranks(self) -> int:
        """Return the number of workers."""
        return len(self._actors)

    def protocol(self, method: str) -> Protocol:
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

    def start(
        self,
        method: str,
        argument: Any = None,
        *,
        positions: RankPositions | None = None,
        split: Split | None = None,
    ) -> dict[int, Any]:
        """Call a method on the ranks that its protocol distributes to; return references at once."""
        places = positions or train_positions(1, self.ranks)
        given = self.protocol(method).distribute(places, argument, split or _whole)
        return self.send(method, {rank: (each,) for rank, each in given.items()})

    def call(self, method: str, argument: Any = None) -> Any:
        """Call a method, wait, and return what its protocol collects (a list from many ranks)."""
        results = fetched(self.start(method, argument))
        return self.protocol(method).collect(train_positions(1, self.ranks), results, list)

    def lost_ranks(self, patience_seconds: float) -> list[int]:
        """Return the ranks whose process has ended, as far as that shows within a time.

        A rank that is busy does not answer, and counts as there.
        """
        questions = self.start("peak")
        ready, _ = ray.wait(
            list(questions.values()), num_returns=len(questions), timeout=patience_seconds
        )
        return [rank for rank, ref in questions.items() if ref in ready and _is_lost(ref)]

    def stop(self) -> None:
        """End the workers and free their slots."""
        for actor in self._actors:
            ray.kill(actor)
        if self._placement is not None:
            ray.util.remove_placement_group(self._placement)


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


def _is_lost(reference: Any) -> bool:
    try:
        ray.get(reference)
    except RayActorError:
        return True
    except RayError:
        return False
    return False


def _whole(argument: Any, parts: int) -> Sequence[Any]:
    return [argument] * parts


def fetched(references: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return what the references hold; the first failure of any of them ends the wait.

    A rank whose neighbour failed may wait for it in a collective for ever.

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
        cause = error.cause
        if isinstance(cause, RlplanError):
            raise cause from None
        raise RlplanError(f"a worker failed: {error}") from error
    except RayError as error:
        raise RlplanError(f"a worker died: {error}") from error
    return {key: values[reference] for key, reference in references.items()}
