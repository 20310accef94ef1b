"""What software adds to a transition beside the bytes on the wire, as the sheets in `profiles/` say it."""

import math
from dataclasses import dataclass

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionSheet:
    """Hold the named constants of a transition's software on GPUs; 0 adds nothing.

    A transition moves tensor by tensor through Python: its rates are far below the links'. It takes
    fixed + doubling log2(n) + received / received rate + M / walked rate + M n (n - 1) / pair rate
    + M (1 - 1/n) / crossing rate seconds on n nodes, M being the bytes of the whole model.

    Attributes:
        fixed_seconds: Every call: rebuilding buffers, emptying caches, meeting of all ranks.
        doubling_seconds: For every doubling of the nodes: a meeting of all ranks by a tree.
        received_bytes_per_second: Rate at which a GPU takes in what it receives.
        walked_bytes_per_second: Rate at which every rank walks through all tensors of the model.
        pair_bytes_per_second: Rate of what every pair of nodes, which share the fabric, adds to the
            gathers of all tensors.
        crossing_bytes_per_second: Rate of the one stream of weights to the other pool's nodes.
        spread_fraction: Relative error of the rows that the constants were fitted on, one sigma.
        sources: Origin of every constant.
    """

    name: str
    fixed_seconds: NonNegative = 0.0
    doubling_seconds: NonNegative = 0.0
    received_bytes_per_second: NonNegative = 0.0
    walked_bytes_per_second: NonNegative = 0.0
    pair_bytes_per_second: NonNegative = 0.0
    crossing_bytes_per_second: NonNegative = 0.0
    spread_fraction: NonNegative = 0.0
    sources: FrozenDict[str, str]

    def software_seconds(self, model_bytes: float, received_bytes: float, nodes: int) -> float:
        """Return the seconds that the software needs for a model on so many nodes.

        Args:
            received_bytes: What each GPU receives.
        """
        pairs, away = nodes * (nodes - 1), 1 - 1 / nodes
        seconds = self.fixed_seconds + self.doubling_seconds * math.log2(nodes)
        terms = (
            (received_bytes, self.received_bytes_per_second),
            (model_bytes, self.walked_bytes_per_second),
            (model_bytes * pairs, self.pair_bytes_per_second),
            (model_bytes * away, self.crossing_bytes_per_second),
        )
        return seconds + sum(num_bytes / rate for num_bytes, rate in terms if rate)
