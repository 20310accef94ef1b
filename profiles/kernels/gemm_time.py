"""How long a matrix product takes: waves of output tiles over the multiprocessors.

Libraries cut the output into tiles, one multiprocessor computes one tile at a time, and the
heuristic takes the tile that is fastest for the shape. A started wave costs nearly a whole one,
which is why times climb in stairs (NVIDIA, "Matrix Multiplication Background User's Guide", tile
and wave quantisation). A product with few tiles is split along its depth, at the cost of adding
up partial sums. Every step grows with the shape, so a larger product is never faster.
"""

import math
from typing import Final, NamedTuple

from rlplan.profiles.kernels.constants import GemmKernels, GroupedKernels

# An output tile of 256 x 128 values, to which `epilogue_seconds` refers.
EPILOGUE_VALUES: Final = 256 * 128
SPLITS: Final = (2, 3, 4, 6, 8)
# Splitting is for products that leave multiprocessors idle; two waves of parts are plenty.
MOST_SPLIT_WAVES: Final = 2
# Partial sums are kept in 32 bit: written once and read once a pass.
PARTIAL_SUM_BYTES: Final = 8


class GroupedShape(NamedTuple):
    """Describe so many products of (m x k) by (k x n) of their own; m may be a mean."""

    m: float
    k: int
    n: int
    products: int


class GemmTime:
    """Estimate matrix products on a device from its rates and its architecture's kernels.

    Args:
        multiprocessors: Units that each compute one output tile at a time.
    """

    def __init__(
        self, kernels: GemmKernels, multiprocessors: int, memory_bytes_per_second: float
    ) -> None:
        self._kernels = kernels
        self._units = multiprocessors
        self._memory_rate = memory_bytes_per_second * kernels.memory_efficiency
        self._tiles = [
            (*(int(side) for side in name.split("x")), share)
            for name, share in kernels.tiles.items()
        ]

    def seconds(self, m: int, k: int, n: int, *, value_bytes: int, peak: float) -> float:
        """Return the seconds of an m x k times k x n product.

        Args:
            peak: The device's rate in flops per second at this precision.
        """
        kernels, units = self._kernels, self._units
        memory = (m * k + k * n + m * n) * value_bytes / self._memory_rate
        partial_sums = PARTIAL_SUM_BYTES * kernels.split_traffic * m * n / self._memory_rate
        exponent, step = kernels.overlap_exponent, kernels.depth_step
        best = math.inf
        depth = -(-k // step) * step
        for rows, columns, share in self._tiles:
            tiles = -(-m // rows) * -(-n // columns)
            area = rows * columns
            seconds_per_depth = 2 * area * units / (peak * share)
            epilogue = kernels.epilogue_seconds * area / EPILOGUE_VALUES
            compute = self._waves_seconds(tiles / units, depth * seconds_per_depth + epilogue)
            if compute < best:
                best = min(best, overlapped(compute, memory, exponent))
            for parts in SPLITS:
                moved = memory + parts * partial_sums + kernels.split_seconds
                if tiles * parts > MOST_SPLIT_WAVES * units or moved >= best:
                    break
                each = -(-k // (parts * step)) * step * seconds_per_depth + epilogue
                compute = self._waves_seconds(tiles * parts / units, each)
                if compute < best:
                    split = overlapped(compute, moved - kernels.split_seconds, exponent)
                    best = min(best, split + kernels.split_seconds)
        return best + kernels.fixed_seconds

    def grouped_seconds(
        self, shape: GroupedShape, grouped: GroupedKernels, *, value_bytes: int, peak: float
    ) -> float:
        """Return the seconds of products m x k times k x n that one kernel computes.

        The tiles of all products share the waves, and every product's weights pass through memory. Rows are
        dealt out unevenly, so that the last tile of a product is half full on average.

        Args:
            peak: The device's rate in flops per second at this precision.
        """
        kernels, (m, k, n, products) = self._kernels, shape
        moved = products * (m * k + k * n + m * n) * value_bytes
        memory = moved / (self._memory_rate * grouped.memory_rate)
        depth = -(-k // kernels.depth_step) * kernels.depth_step
        best = math.inf
        for rows, columns, share in self._tiles:
            tiles = products * max(1.0, m / rows + 0.5) * -(-n // columns)
            area = rows * columns
            seconds_per_depth = 2 * area * self._units / (peak * share * grouped.rate)
            epilogue = kernels.epilogue_seconds * area / EPILOGUE_VALUES
            compute = self._waves_seconds(tiles / self._units, depth * seconds_per_depth + epilogue)
            best = min(best, overlapped(compute, memory, kernels.overlap_exponent))
        return best + grouped.fixed_seconds

    def _waves_seconds(self, filled: float, tile_seconds: float) -> float:
        """Return the seconds of so many waves, `filled` of which hold tiles."""
        kernels = self._kernels
        tail = kernels.tail_fraction
        waves = tail * math.ceil(filled) + (1 - tail) * max(filled, 1.0)
        seconds = waves * tile_seconds
        return seconds * (1 + kernels.slowdown * seconds / (seconds + kernels.slowdown_seconds))


def overlapped(compute_seconds: float, memory_seconds: float, exponent: float) -> float:
    """Return (compute^p + memory^p)^(1/p), scaled so that no power under- or overflows."""
    longer, shorter = sorted((compute_seconds, memory_seconds), reverse=True)
    if longer == 0:
        return 0.0
    return float(longer * (1 + (shorter / longer) ** exponent) ** (1 / exponent))
