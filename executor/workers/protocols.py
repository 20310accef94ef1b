"""Transfer protocols: how a call's argument is spread over a worker group, and its results gathered.

A worker method declares its protocol by `@registered(...)`; the controller looks it up there. A
protocol is two pure functions over ranks, so their law is tested without any process: what is
distributed and returned unchanged is collected whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from executor.parallel.positions import RankPositions

A = TypeVar("A")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

ByRank = Mapping[int, Any]
Split = Callable[[Any, int], Sequence[Any]]
Join = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Protocol:
    """Hold a pair of functions: `distribute` an argument to ranks, `collect` their results.

    Attributes:
        distribute: Returns the argument of every rank that is called.
        collect: Returns the joined results of the ranks whose results count.
    """

    name: str
    distribute: Callable[[RankPositions, Any, Split], dict[int, Any]]
    collect: Callable[[RankPositions, ByRank, Join], Any]


def _to_all(positions: RankPositions, argument: Any, _: Split) -> dict[int, Any]:
    return dict.fromkeys(range(positions.ranks), argument)


def _by_dp(positions: RankPositions, argument: Any, split: Split) -> dict[int, Any]:
    parts = split(argument, positions.dp_size)
    return {rank: parts[dp] for rank, dp in enumerate(positions.dp)}


def _by_rank(positions: RankPositions, argument: Any, split: Split) -> dict[int, Any]:
    return dict(enumerate(split(argument, positions.ranks)))


def _as_given(positions: RankPositions, argument: Any, _: Split) -> dict[int, Any]:
    assert len(argument) == positions.ranks, "one argument for every rank"
    return dict(enumerate(argument))


def _to_first(_: RankPositions, argument: Any, __: Split) -> dict[int, Any]:
    return {0: argument}


def _from_all(_: RankPositions, results: ByRank, join: Join) -> Any:
    return join([results[rank] for rank in sorted(results)])


def _from_leaders(positions: RankPositions, results: ByRank, join: Join) -> Any:
    return join([results[rank] for rank in positions.leaders()])


def _from_firsts(positions: RankPositions, results: ByRank, join: Join) -> Any:
    return join([results[group[0]] for group in positions.first_groups()])


def _from_stages(positions: RankPositions, results: ByRank, join: Join) -> Any:
    first = positions.groups()[0]
    return join([results[rank] for rank in first[:: positions.tp_size]])


def _from_first(_: RankPositions, results: ByRank, __: Join) -> Any:
    return results[0]


ONE_TO_ALL = Protocol("ONE_TO_ALL", _to_all, _from_all)
THREE_D = Protocol("3D_PROTO", _by_dp, _from_leaders)
# Over the positions of generation replicas: one of them for each member of a micro-DP group.
MICRO_DP = Protocol("3D_ALL_MICRO_DP", _by_dp, _from_firsts)
PP_ONLY = Protocol("3D_PP_ONLY", _to_all, _from_stages)
DP_PROTO = Protocol("DP_PROTO", _by_rank, _from_all)
DP_METRIC = Protocol("DP_METRIC", _by_dp, _from_leaders)
RANK_ZERO = Protocol("RANK_ZERO", _to_first, _from_first)
ALL_TO_ALL = Protocol("ALL_TO_ALL", _as_given, _from_all)


def registered(protocol: Protocol) -> Callable[[F], F]:
    """Declare the transfer protocol of a worker method."""

    def mark(method: F) -> F:
        method.protocol = protocol  # type: ignore[attr-defined]
        return method

    return mark


def protocol_of(method: Callable[..., Any]) -> Protocol:
    """Return the protocol that a worker method declares."""
    protocol: Protocol = method.protocol  # type: ignore[attr-defined]
    return protocol


def reduce_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Join metrics of data-parallel groups (DP_METRIC): by the last word of their names.

    `..._max` keeps the largest, `..._mean` the mean; everything else is summed.
    """
    names = list(dict.fromkeys(name for part in parts for name in part))
    return {name: _reduced(name, [part[name] for part in parts if name in part]) for name in names}


def _reduced(name: str, values: list[float]) -> float:
    if name.endswith("_max"):
        return max(values)
    return sum(values) / len(values) if name.endswith("_mean") else sum(values)
