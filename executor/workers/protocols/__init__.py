"""Transfer protocols, one file each: how an argument is spread over ranks, and results are gathered.

A worker method names its protocol by `@registered(...)`, a stage by its `PROTOCOL`; the controller
looks it up. A protocol is two pure functions over ranks, so its law is tested without any process:
what is distributed and returned unchanged is collected whole. What several protocols have in common
stands here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rlplan.executor.parallel.positions import RankPositions
from rlplan.plug_ins import PlugIns

F = TypeVar("F", bound=Callable[..., Any])

ByRank = Mapping[int, Any]
Split = Callable[[Any, int], Sequence[Any]]
Join = Callable[[Sequence[Any]], Any]


class TransferProtocol(Protocol):
    """Have a pair of functions: the two of a protocol's file."""

    def distribute(self, positions: RankPositions, argument: Any, split: Split) -> dict[int, Any]:
        """Return the argument of every rank that is called."""

    def collect(self, positions: RankPositions, results: ByRank, join: Join) -> Any:
        """Return the joined results of the ranks whose results count."""


PROTOCOLS = PlugIns[TransferProtocol](__name__, __path__, kind="transfer protocol")


def registered(protocol: str) -> Callable[[F], F]:
    """Declare the transfer protocol of a worker method."""

    def mark(method: F) -> F:
        method.protocol = protocol  # type: ignore[attr-defined]
        return method

    return mark


def protocol_of(method: Callable[..., Any]) -> TransferProtocol:
    """Return the protocol that a worker method declares."""
    return PROTOCOLS.load(method.protocol)  # type: ignore[attr-defined]


def to_all(positions: RankPositions, argument: Any, _: Split) -> dict[int, Any]:
    """Return the same argument for every rank."""
    return dict.fromkeys(range(positions.ranks), argument)


def by_dp(positions: RankPositions, argument: Any, split: Split) -> dict[int, Any]:
    """Return for every rank the share of its data-parallel position."""
    parts = split(argument, positions.dp_size)
    return {rank: parts[dp] for rank, dp in enumerate(positions.dp)}


def from_all(_: RankPositions, results: ByRank, join: Join) -> Any:
    """Return the results of all ranks that were called, in their order."""
    return join([results[rank] for rank in sorted(results)])


def from_leaders(positions: RankPositions, results: ByRank, join: Join) -> Any:
    """Return the results of each data-parallel position's last stage and first tensor rank, if it was called."""
    return join([results[rank] for rank in positions.leaders() if rank in results])
