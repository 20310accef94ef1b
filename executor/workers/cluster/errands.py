"""Functions that run on nodes of a joined cluster: one at a time on a node, or one on all devices of several.

Whoever hands a function over knows what it is for; here it is only carried there, and its answer back.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlplan.errors import RlplanError
from rlplan.executor.workers.cluster.nodes import RayNode
from rlplan.executor.workers.pools import WorkerGroup, fetched, start_placed_group
from rlplan.executor.workers.protocols import registered
from rlplan.executor.workers.worker import Worker

# How often somebody asks how far a function is.
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrandProgress:
    """Hold how far a function is.

    Attributes:
        last: What it has told last; None: nothing so far.
        result: What it has returned.
        error: What ended it; None: nothing did.
    """

    last: Any = None
    has_ended: bool = False
    result: Any = None
    error: Exception | None = None


class Errand:
    """Run a function on this node in a thread, and answer meanwhile how far it is."""

    def __init__(self) -> None:
        self._told = ErrandProgress()

    def begin(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Run a function of (tell, *arguments); return at once."""

        def tell(last: Any) -> None:
            self._told = ErrandProgress(last=last)

        def run() -> None:
            try:
                result = function(tell, *arguments)
                self._told = ErrandProgress(last=self._told.last, has_ended=True, result=result)
            except Exception as error:  # noqa: BLE001 -- raised where somebody asks
                self._told = ErrandProgress(last=self._told.last, has_ended=True, error=error)

        threading.Thread(target=run, daemon=True).start()

    def told(self) -> ErrandProgress:
        """Return how far it is."""
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
    remote: Any = ray.remote(Errand)
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
