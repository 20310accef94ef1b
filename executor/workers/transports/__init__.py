"""Transports, one file each: how weights travel from the train pool to a separate generate pool.

A transport has the same name as its file in `rlplan/transports/`, which says what it needs from a plan.

The controller calls `send` of the transport's file. Every rank of both pools has an `Endpoint`, to which its
worker passes the calls.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlplan.plug_ins import PlugIns

if TYPE_CHECKING:  # names are asked for where nothing runs, without torch and Ray
    from rlplan.executor.weights.transition import ShardLayout
    from rlplan.executor.workers.calls import CallReport
    from rlplan.executor.workers.pools import WorkerGroup
    from rlplan.executor.workers.worker import PoolModels

Reports = Mapping[int, Any]
"""By rank, references of reports."""


class Endpoint(Protocol):
    """Send or receive weights on a rank."""

    def __init__(self, models: "PoolModels") -> None:
        """Take the rank's models, whose weights are sent or written."""

    def send(self, request: Any) -> "tuple[Any, CallReport]":
        """Hand out this rank's part of the trained weights; return where it is."""

    def receive(self, request: Any) -> "CallReport":
        """Write this rank's generate shard from what the train pool's ranks sent."""


class Transport(Protocol):
    """Have what a transport's file has."""

    Endpoint: type[Endpoint]

    def send(
        self,
        source: "WorkerGroup",
        target: "WorkerGroup",
        leaders: Sequence[int],
        shards: "Sequence[ShardLayout]",
        bucket_bytes: int,
    ) -> tuple[Reports, Reports]:
        """Call `send_weights` and `receive_weights` of workers; return both pools' last reports.

        Args:
            leaders: Ranks of the train pool that hold one copy of the model between them.
            shards: What the generate pool's ranks hold.
            bucket_bytes: The most that may be under way at a time.
        """


TRANSPORTS = PlugIns[Transport](__name__, __path__, kind="transport")
