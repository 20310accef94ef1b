"""How long kernels take that work row by row: waves of thread blocks over the multiprocessors.

A block of threads takes one token's row and walks along it step by step, as the kernels of
inference engines do for norms, rotations and gated activations; where no row needs its own block
(additions, look-ups of embeddings), blocks take equal parts of all values. A multiprocessor holds
2,048 threads (NVIDIA, "CUDA C++ Programming Guide", compute capabilities 8.0 and 9.0), so that rows
come in waves, and times climb in stairs until the memory's rate hides them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rlplan.profiles.kernels.constants import RowKernels, RowKind
from rlplan.profiles.kernels.gemm_time import overlapped

THREADS_PER_UNIT: Final = 2048
# More small blocks than these do not run at once.
MOST_BLOCKS_PER_UNIT: Final = 16
# What one warp takes at once: no block has fewer threads.
FEWEST_THREADS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """Say how blocks of threads share the work of one kind of kernel.

    Attributes:
        passes: How often a value of a row passes through memory: read, read again (gate and up, or
            both addends), written.
        most_threads: Of a block.
        values_per_thread: That a thread takes in one step.
        whole_rows: Whether a block takes a row; otherwise it takes one step's values.
    """

    passes: int
    most_threads: int
    values_per_thread: int
    whole_rows: bool


# vLLM's norms and activations use min(values, 1024) threads a row, its rotations one for each of up
# to 512 pairs of values; PyTorch's elementwise kernels use 128 threads of 4 values.
ROW_SHAPES: Final[Mapping[RowKind, RowShape]] = {
    "norm": RowShape(passes=2, most_threads=1024, values_per_thread=1, whole_rows=True),
    "rope": RowShape(passes=2, most_threads=512, values_per_thread=2, whole_rows=True),
    "activation": RowShape(passes=3, most_threads=1024, values_per_thread=1, whole_rows=True),
    "residual": RowShape(passes=3, most_threads=128, values_per_thread=4, whole_rows=False),
    "embedding": RowShape(passes=2, most_threads=128, values_per_thread=4, whole_rows=False),
}


def row_bytes(kind: RowKind, rows: int, width: int, value_bytes: int) -> int:
    """Return the bytes that a kernel passes through memory.

    Args:
        width: Values of a row that are written.
    """
    return ROW_SHAPES[kind].passes * rows * width * value_bytes


class RowTime:
    """Estimate kernels that work row by row on a device.

    Args:
        units: Multiprocessors of the device.
    """

    def __init__(self, units: int, memory_bytes_per_second: float) -> None:
        self._units = units
        self._memory_rate = memory_bytes_per_second

    def seconds(
        self,
        kernel: RowKernels,
        kind: RowKind,
        rows: int,
        width: int,
        second_width: int,
        value_bytes: int,
    ) -> float:
        """Return the seconds of a kernel over `rows` rows.

        Args:
            width: Values of a row that are written.
            second_width: Values of a second tensor's row that the same block writes afterwards: the
                keys of a rotation.
        """
        values = width + second_width
        num_bytes = row_bytes(kind, rows, values, value_bytes)
        beyond = max(0.0, num_bytes - kernel.cached_bytes)
        traffic = beyond / (self._memory_rate * kernel.memory_efficiency)
        shape = ROW_SHAPES[kind]
        step_values = shape.most_threads * shape.values_per_thread
        if shape.whole_rows:
            threads = min(shape.most_threads, max(FEWEST_THREADS, width // shape.values_per_thread))
            steps = -(-width // step_values) + -(-second_width // step_values)
        else:
            rows, values = -(-rows * values // step_values), step_values
            threads, steps = shape.most_threads, 1
        walk = kernel.start_seconds + steps * kernel.step_seconds
        slots = min(MOST_BLOCKS_PER_UNIT, THREADS_PER_UNIT // threads)
        waves = self._waves_seconds(kernel, rows, slots, walk, values * kernel.seconds_per_value)
        # On cards with a slower memory than the one fitted on, it alone may be what lasts.
        return max(kernel.fixed_seconds + waves + traffic, beyond / self._memory_rate)

    def _waves_seconds(
        self, kernel: RowKernels, blocks: int, slots: int, walk: float, work: float
    ) -> float:
        """Return the seconds of blocks that come in waves of `slots` on every multiprocessor.

        Args:
            walk: Seconds of a block that has a multiprocessor to itself.
            work: Seconds that a block takes of a multiprocessor which many blocks share.
        """

        def wave(blocks_per_unit: float) -> float:
            return overlapped(walk, max(1.0, blocks_per_unit) * work, kernel.overlap_exponent)

        capacity = slots * self._units
        full, rest = divmod(blocks, capacity)
        whole = wave(slots)
        stairs = full * whole + (wave(rest / self._units) if rest else 0.0)
        ramp = max(blocks / capacity * whole, wave(min(blocks, capacity) / self._units))
        tail = kernel.tail_fraction
        return math.fsum((tail * stairs, (1 - tail) * ramp))
