"""What a generation engine's share of a card leaves to its KV cache, for one pool or for many at once."""

import math
from dataclasses import dataclass

import numpy as np

from rlplan.sheets import EngineSheet
from rlplan.simulator.placed import Floats

# Shares that are chosen are whole hundredths: rounded down, as people write them.
HUNDREDTHS = 100


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """Hold what lies on a card while an engine generates; numbers, or arrays of one shape.

    Attributes:
        weights_bytes: Those that generation adds to what others have there.
        working_bytes: Of the engine beside weights and cache.
        others_bytes: Of all others: what stays of trained models, of models that only infer.
        started_bytes: Of those, what lay there when the engine started.
    """

    capacity_bytes: int
    weights_bytes: int
    working_bytes: int
    others_bytes: Floats | float
    started_bytes: Floats | float

    def cache_bytes(self, engine: EngineSheet, fraction: Floats | float) -> Floats:
        """Return the bytes of the card that a share leaves to the KV cache; 0 if there are none."""
        share, own = engine.share, self.weights_bytes + self.working_bytes
        if share.of == "free":
            free = self.capacity_bytes - self.others_bytes - own
            return np.asarray(fraction * np.maximum(0.0, free))
        counted = {
            "everything": self.others_bytes,
            "started": self.started_bytes,
            "nothing": 0.0,
        }[share.counts_others]
        counted = counted + np.zeros(np.shape(self.others_bytes))
        if share.of == "static":
            return np.maximum(0.0, fraction * (self.capacity_bytes - counted) - self.weights_bytes)
        return np.maximum(0.0, fraction * self.capacity_bytes - counted - own)

    def fraction_left(self, engine: EngineSheet, usable_bytes: float) -> Floats:
        """Return the largest share, in hundredths, with which everything stays within the bytes that may be used.

        An engine off whose share everything on the card goes has room for it whatever the share is: it takes its
        usual one.
        """
        share = engine.share
        if share.of == "free" or share.counts_others == "everything":
            return np.full(np.shape(self.others_bytes), engine.memory_fraction)
        left = usable_bytes - self.others_bytes - share.awake_bytes
        if share.of == "static":
            left = left - self.working_bytes
        whole = np.floor(HUNDREDTHS * left / self.capacity_bytes) / HUNDREDTHS
        return np.clip(whole, 0.0, engine.memory_fraction)


def hundredths(fraction: float) -> float:
    """Return a share of at least one hundredth, as a file has it."""
    return max(1, math.floor(HUNDREDTHS * fraction + 1e-9)) / HUNDREDTHS
