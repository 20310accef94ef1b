"""Networks between nodes, as files say what all-to-alls take over them."""

from dataclasses import dataclass

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import AtLeastOne, NonNegative, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRate:
    """Say what all-to-alls within steps reach, where that was found apart from all-to-alls alone.

    Attributes:
        efficiency: Share of the cards' rate between two nodes.
        node_slowing: Added to the seconds for each further node, over those between two.
        most_nodes: Nodes up to which that was found; more are taken to slow no further, and half of what they would
            if they did is added to what is not known.
        spread: Relative, one sigma.
    """

    efficiency: Positive
    node_slowing: NonNegative
    most_nodes: AtLeastOne
    spread: Positive

    def slowed(self, nodes: int) -> tuple[float, float]:
        """Return the seconds between so many nodes over those between two, and their spread, one sigma, over the same."""
        held = min(nodes, self.most_nodes)
        factor, beyond = 1 + self.node_slowing * (held - 2), self.node_slowing * (nodes - held) / 2
        return factor, factor * self.spread + beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSheet:
    """Hold the constants of all-to-alls over one kind of network between nodes, where they were measured.

    An all-to-all takes the bytes that leave the node over a rank's share of the network cards, plus a fixed time, plus
    a time for each peer on another node.

    Attributes:
        exchange_efficiency: Share of the cards' rate that is reached by the bytes that leave a node.
        exchange_seconds: Of an empty all-to-all.
        peer_seconds: Added for each rank on another node.
        exchange_spread: Relative, one sigma.
        measured_on: Architectures of the GPUs on whose nodes that was measured; on others it is no fit.
        within_steps: In place of `exchange_efficiency` and `exchange_spread`, by a device's name.
        sources: Origin of every figure.
    """

    name: str
    title: str
    measured_on: tuple[str, ...]
    exchange_efficiency: Positive
    exchange_seconds: NonNegative
    peer_seconds: NonNegative
    exchange_spread: Positive
    within_steps: FrozenDict[str, ExchangeRate] = FrozenDict()
    sources: FrozenDict[str, str]
