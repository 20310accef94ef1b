"""Dispatchers of tokens to their experts, one file each: `DISPATCHER`; a job names it as the file.

A file says which copies of a token leave a rank, over which links, and what of these the software reaches.
"""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, Literal, NamedTuple

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import OneOf
from rlplan.plug_ins import PlugIns

DEFAULT_DISPATCHER: Final = "all-to-all"

# Exponent of the norm that joins what a node's network and its links take: chunks pass both one after another, and
# chunks behind them already pass the first. Kernel times of HybridEP on 16, 32 and 64 H100 (DeepEP, branch hybrid-ep,
# docs/README_Hybrid-EP.md) and of DeepEP on 16 H800 (its docs/legacy.md) are within 7 % with it.
OVERLAP_EXPONENT: Final = 2.0


class Reach(NamedTuple):
    """Say how the ranks lie that share out experts, and how many of them a token chooses.

    Attributes:
        ranks: Of the expert-parallel group.
        per_node: Of these, on one node or NVLink domain.
        chosen: Experts of a token.
        among: Experts of a layer where those of a token follow one another (`neighbouring`); 0 where each lies anywhere.
    """

    ranks: int
    per_node: int
    chosen: int
    among: int = 0

    @property
    def nodes(self) -> int:
        """Return the nodes that the ranks are on."""
        return -(-self.ranks // self.per_node)

    @property
    def network_copies(self) -> float:
        """Return the copies of a token that go to other nodes: one for each on which it has an expert."""
        return self._places(self.nodes) * (1 - 1 / self.nodes)

    @property
    def link_copies(self) -> float:
        """Return the copies of a token that pass links inside nodes, on average over ranks.

        A token enters a node at the rank that has the sender's local index, which forwards it to the ranks that hold its
        experts; a copy that stays on that rank passes no link.
        """
        return self._places(self.ranks) * (1 - 1 / self.per_node)

    def _places(self, places: int) -> float:
        if self.among:
            return neighbouring(places, self.chosen, self.among)
        return distinct(places, self.chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    """Describe how tokens reach the ranks of their experts and come back.

    Attributes:
        words: What it does, for people, as the end of a sentence.
        copies: To whom a token's row is sent: to each chosen `expert`, by an all-to-all; to each `node` with a chosen
            expert, and inside that node to each rank with one; or to `all` ranks, by a gather.
        network_efficiency, link_efficiency: With `node`, the shares of the rates of a node's network and of its links
            that are reached; otherwise those of collectives hold.
        fixed_seconds: Of an empty dispatch or combine, added to what collectives have.
        row_seconds: Of each row that a rank sends over the network, by a device's architecture: where a processor posts every
            row, these pass one after another however short they are; nothing of architectures that are not named.
        instead: Dispatchers that take its place over a kind of network on which its own kernels do not run, by that kind.
        permutation_rate: Rate of permuting tokens into the order of experts, relative to the device's elementwise
            kernels in that engine; None takes the engine's.
    """

    words: str
    copies: Literal["expert", "node", "all"]
    network_efficiency: float = 1.0
    link_efficiency: float = 1.0
    fixed_seconds: float = 0.0
    row_seconds: FrozenDict[str, float] = FrozenDict()
    instead: FrozenDict[str, str] = FrozenDict()
    permutation_rate: float | None = None

    def seconds(
        self,
        row_bytes: float,
        reach: Reach,
        link_rate: float,
        network_rate: float,
        posted_seconds: float = 0.0,
    ) -> float:
        """Return the seconds of a dispatch with one copy to each node, forwarded inside the node to each rank.

        Args:
            row_bytes: Of all tokens of a rank, each counted once.
            link_rate, network_rate: Bytes per second of a rank's links and of its share of the network's cards.
            posted_seconds: Of one copy of all rows, which the network takes at least.
        """
        link = row_bytes * reach.link_copies / (link_rate * self.link_efficiency)
        each = max(row_bytes / (network_rate * self.network_efficiency), posted_seconds)
        network = reach.network_copies * each
        power = OVERLAP_EXPONENT
        return float((link**power + network**power) ** (1 / power)) + self.fixed_seconds


def distinct(places: int, chosen: int) -> float:
    """Return on how many of so many places a token has experts, if each of them lies anywhere."""
    return float(places * (1 - (1 - 1 / places) ** chosen))


@cache
def neighbouring(places: int, chosen: int, experts: int) -> float:
    """Return on how many places a token has experts on average, if one after another gets the next so many of a layer's.

    So do gates of benchmarks without a router that deal experts out in turn: token i has `chosen` from i * `chosen` on,
    and begins anew behind the last. Places hold as many experts each, in their order.
    """
    held = -(-experts // places)
    starts = range(0, experts * chosen, chosen)
    reached = [
        len({each % experts // held for each in range(start, start + chosen)}) for start in starts
    ]
    return sum(reached) / len(reached)


DISPATCHERS = PlugIns[Dispatcher](
    __name__, __path__, kind="dispatcher of experts' tokens", attribute="DISPATCHER"
)


def dispatcher_over(name: str, network: str | None) -> Dispatcher:
    """Return the dispatcher that brings tokens to experts over a kind of network, where that of a name is asked for."""
    named = DISPATCHERS.load(name)
    other = named.instead.get(network) if network is not None else None
    return named if other is None else DISPATCHERS.load(other)


DispatcherName = Annotated[str, OneOf(DISPATCHERS.names)]
