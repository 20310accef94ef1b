"""Transfer protocols: how a call's argument is spread over a worker group, and its results gathered.

A worker method declares its protocol by `@registered(...)`; the controller looks it up there. A
protocol is two pure functions over ranks, so their law is tested without any process: what is
distributed and returned unchanged is collected whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rlplan.layout import GenerateLayout, TrainLayout

A = TypeVar("A")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

ByRank = Mapping[int, Any]
Split = Callable[[Any, int], Sequence[Any]]
Join = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class RankPositions:
    """Say where each rank of a worker group stands in the layout of one task.

    Attributes:
        dp: By rank, the data-parallel position (for generation: the replica).
        pp: By rank, the pipeline position inside it.
        tp: By rank, the tensor-parallel position inside that.
        cp: By rank, the context-parallel position, outside the pipeline; empty where there is none.
    """

    dp: tuple[int, ...]
    pp: tuple[int, ...]
    tp: tuple[int, ...]
    cp: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return len(self.dp)

    @property
    def dp_size(self) -> int:
        """Return the number of data-parallel groups."""
        return max(self.dp) + 1

    @property
    def pp_size(self) -> int:
        """Return the number of pipeline stages in each of them."""
        return max(self.pp) + 1

    @property
    def tp_size(self) -> int:
        """Return the number of ranks of each stage."""
        return max(self.tp) + 1

    @property
    def cp_size(self) -> int:
        """Return the number of ranks that share the tokens of each sequence."""
        return max(self.cp, default=0) + 1

    @property
    def copies_size(self) -> int:
        """Return the number of copies of the model: data- times context-parallel ranks."""
        return self.dp_size * self.cp_size

    @property
    def copies(self) -> tuple[int, ...]:
        """Return, by rank, which copy of the model it holds a part of."""
        return tuple(dp * self.cp_size + self.cp_of(rank) for rank, dp in enumerate(self.dp))

    def cp_of(self, rank: int) -> int:
        """Return a rank's context-parallel position."""
        return self.cp[rank] if self.cp else 0

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of every copy of the model, stage by stage, in tensor order."""
        places = zip(self.copies, self.pp, self.tp, strict=True)
        at = {place: rank for rank, place in enumerate(places)}
        inside = [(pp, tp) for pp in range(self.pp_size) for tp in range(self.tp_size)]
        return tuple(
            tuple(at[copy, *place] for place in inside) for copy in range(self.copies_size)
        )

    def first_groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of the first copy of the model of every data-parallel position."""
        return self.groups()[:: self.cp_size]

    def leaders(self) -> tuple[int, ...]:
        """Return the rank whose results count, by data-parallel position: last stage, first tensor rank."""
        return tuple(group[-self.tp_size] for group in self.first_groups())


def train_positions(tp: int, ranks: int, pp: int = 1, cp: int = 1) -> RankPositions:
    """Return positions of a training or inference layout: TP ranks are consecutive, then PP, then CP."""
    layout = TrainLayout(pp=pp, tp=tp, dp=ranks // (pp * tp))
    places = [layout.coordinate(rank) for rank in range(ranks)]
    return RankPositions(
        dp=tuple(place.dp // cp for place in places),
        pp=tuple(place.pp for place in places),
        tp=tuple(place.tp for place in places),
        cp=tuple(place.dp % cp for place in places) if cp > 1 else (),
    )


def generate_positions(layout: GenerateLayout) -> RankPositions:
    """Return positions of generation groups inside the blocks of a training layout."""
    ranks = range(layout.train.ranks)
    return RankPositions(
        dp=tuple(layout.replica(rank) for rank in ranks),
        pp=tuple(layout.shard(rank)[0] for rank in ranks),
        tp=tuple(layout.shard(rank)[1] for rank in ranks),
    )


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
