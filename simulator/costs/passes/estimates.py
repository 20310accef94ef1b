"""Estimates of many layouts at once, in arrays that add up as single estimates do."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlplan.estimate import Estimate, Source
from rlplan.simulator.placed.columns import Flags, Floats, Ints
from rlplan.simulator.placed.task import PlacedTask, PlacedTasks

# Rows of the packed arrays. The first two are seconds; of the others sums keep the largest.
SECONDS, SPREAD, SOURCE, OUTSIDE = range(4)
NUMBERS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Hold estimates of any shape, one for each layout along the last axis.

    Attributes:
        packed: Seconds, their spread in seconds, the source's number, and 1 where a look-up left the
            measured range. Shape (4, ..., layouts).
    """

    packed: Floats

    @property
    def seconds(self) -> Floats:
        """Return the central values. Shape (..., layouts)."""
        return np.asarray(self.packed[SECONDS])

    def __getitem__(self, place: int) -> "Estimates":
        """Return one part of the first axis."""
        return Estimates(self.packed[:, place])

    def __add__(self, other: "Estimates") -> "Estimates":
        """Return the sums: spreads add up, the weakest source and any flag stay."""
        return Estimates(
            np.concatenate(
                (
                    self.packed[:SOURCE] + other.packed[:SOURCE],
                    np.maximum(self.packed[SOURCE:], other.packed[SOURCE:]),
                )
            )
        )

    def __mul__(self, factor: float | Floats | Ints) -> "Estimates":
        """Return the estimates repeated so many times; nothing is known of what is repeated never."""
        packed = self.packed.copy()
        packed[:SOURCE] *= factor
        packed[SOURCE:] *= np.asarray(factor) > 0
        return Estimates(packed)

    def where(self, chosen: Flags) -> "Estimates":
        """Return the estimates of the chosen layouts, and nothing for all others."""
        return Estimates(self.packed * chosen)

    def summed(self) -> "Estimates":
        """Return the sum over the first axis."""
        return Estimates(
            np.concatenate((self.packed[:SOURCE].sum(axis=1), self.packed[SOURCE:].max(axis=1)))
        )

    def with_spread(self, fraction: float, *, least_source: Source) -> "Estimates":
        """Return the estimates with another relative spread where their source is weak enough."""
        packed = self.packed.copy()
        weak = packed[SOURCE] >= least_source
        packed[SPREAD] = np.where(weak, packed[SECONDS] * fraction, packed[SPREAD])
        return Estimates(packed)

    def row(self, row: int) -> Estimate:
        """Return one layout's estimate."""
        seconds, spread, source, outside = self.packed[..., row].tolist()
        return Estimate(seconds, spread, Source(int(source)), bool(outside))


def pack(estimates: Iterable[Estimate]) -> Floats:
    """Return estimates as they are held packed. Shape (4, estimates)."""
    each = [
        (one.seconds, one.spread_seconds, float(one.source), float(one.outside_range))
        for one in estimates
    ]
    return np.array(each, dtype=np.float64).reshape(-1, NUMBERS).T


def estimates_by(
    table: PlacedTasks,
    names: Sequence[str],
    estimate: Callable[[PlacedTask], Estimate | tuple[Estimate, ...]],
) -> Estimates:
    """Return estimates that depend on some columns only, made once for each of their values."""

    def packed(placed: PlacedTask) -> Floats:
        found = estimate(placed)
        return pack((found,))[:, 0] if isinstance(found, Estimate) else pack(found)

    return Estimates(table.by(names, packed))


def constant(seconds: npt.ArrayLike, source: Source) -> Estimates:
    """Return seconds that have no spread."""
    known = np.atleast_1d(np.asarray(seconds, dtype=np.float64))
    rest = np.zeros_like(known)
    return Estimates(np.stack((known, rest, np.full_like(known, source), rest)))


def either(chosen: Flags, one: Estimates, other: Estimates) -> Estimates:
    """Return the one estimates where chosen, and the others elsewhere."""
    return Estimates(np.where(chosen, one.packed, other.packed))
