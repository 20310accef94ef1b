"""What kernels take on an architecture, by constants fitted to operator tables: waves of tiles or of thread blocks over its multiprocessors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

from rlplan.errors import UnknownNameError
from rlplan.files.frozen import FrozenDict
from rlplan.files.kept_sheets import read_sheet
from rlplan.files.limits import AtLeastOne, NonNegative, NonNegativeInt, Positive
from rlplan.models import Attention, Precision

# What kernels take on one architecture: constants fitted to operator tables, with their spread.
#
# `profiles/kernels/constants/<architecture>.yaml` holds them, written by the command that it names;
# `profiles/fits/<architecture>.yaml` says whose kernels stand for an architecture.

KERNELS_FOLDER: Final = Path(__file__).parent

RowKind = Literal["norm", "rope", "activation", "residual", "embedding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmKernels:
    """Hold what matrix products take; `rlplan.profiles.kernels.kernel_time` has the formula.

    Attributes:
        tiles: Share of a multiprocessor's peak rate by output tile, "rows x columns".
        unit_flops_per_second: Peak of a multiprocessor of the device that these are fitted to, by precision; empty
            where the shares hold on every device. A slower one is fed as fast and computes longer.
        depth_step: A product's depth is computed in steps of so many values.
        epilogue_seconds: Time to write out a tile of 256 x 128 that nothing hides.
        tail_fraction: Share of a started wave's time that the tiles missing in it still cost.
        slowdown: Loss of rate in long products, as the clock falls and the cache is refilled.
        slowdown_seconds: Time of computing at which half of that loss is reached.
        memory_efficiency: Share of the memory's rate.
        overlap_exponent: How far computing hides memory traffic: with p, the two take
            (compute^p + memory^p)^(1/p); 1 is not at all, large values are the pure maximum.
        split_traffic: Passes of the partial sums through memory when the depth is split.
        split_seconds: Time to add them up that does not depend on their number.
        fixed_seconds: Time of a product with next to no work.
        spread: Relative, one sigma, on shapes held back from the fit.
    """

    tiles: FrozenDict[str, Positive]
    unit_flops_per_second: FrozenDict[Precision, Positive] = FrozenDict()
    depth_step: AtLeastOne
    epilogue_seconds: NonNegative
    tail_fraction: NonNegative
    slowdown: NonNegative
    slowdown_seconds: Positive
    memory_efficiency: Positive
    overlap_exponent: Positive
    split_traffic: NonNegative
    split_seconds: NonNegative
    fixed_seconds: NonNegative
    spread: NonNegative
    standard_errors: FrozenDict[str, NonNegative] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedKernels:
    """Hold how products of many experts in one kernel differ from single products.

    Attributes:
        rate: Rate of computing over that of a single product's tiles.
        memory_rate: Rate of memory over that of a single product.
        fixed_seconds: Time of a grouped product with next to no work, its share of sorting tokens by
            expert among it.
        few_rows: The kernel takes small tiles (16 rows, 64 columns) while all products together have at most this
            many rows and one product has no more rows than a tile, on average; 0 for kernels without small tiles, or
            not known.
        tile_seconds: Time of a multiprocessor for a small tile, whatever its depth.
        depth_seconds: The same for each 64 of its depth.
        spread: Relative, one sigma, on shapes held back from the fit.
    """

    rate: Positive
    memory_rate: Positive
    fixed_seconds: NonNegative
    few_rows: NonNegativeInt = 0
    tile_seconds: NonNegative = 0.0
    depth_seconds: NonNegative = 0.0
    spread: NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKernels:
    """Hold what a kernel takes that works row by row; `rlplan.profiles.kernels.kernel_time` has the formula.

    Attributes:
        fixed_seconds: Time of a kernel with next to no work.
        start_seconds: Time of a block of threads before its first step along the row.
        step_seconds: Time of a step of a block that has a multiprocessor to itself.
        seconds_per_value: Of a multiprocessor that many blocks keep busy.
        tail_fraction: Share of a started wave's time that the blocks missing in it still cost.
        cached_bytes: Bytes that stay in the second-level cache between kernels.
        memory_efficiency: Share of the memory's rate at which bytes beyond them add to the time.
        overlap_exponent: How far a block's waiting hides others' work, as of the matrix products.
    """

    fixed_seconds: NonNegative
    start_seconds: NonNegative
    step_seconds: NonNegative
    seconds_per_value: NonNegative
    tail_fraction: NonNegative
    cached_bytes: NonNegative
    memory_efficiency: Positive
    overlap_exponent: Positive
    spread: NonNegative
    standard_errors: FrozenDict[str, NonNegative] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProtocol:
    """Hold one way of moving bytes inside a node: what it takes to start, and its rate.

    Attributes:
        step_seconds: Of every hop that follows another.
        link_efficiency: Share of the link's rate.
    """

    start_seconds: NonNegative
    step_seconds: NonNegative
    link_efficiency: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkKernels:
    """Hold what collectives take inside a node; the fastest protocol is used, as NCCL chooses.

    Attributes:
        reduce: Protocols of rings (all-reduce, all-gather, reduce-scatter, broadcast).
        own_share: Share of a byte's time on the link that a byte of a rank's own part takes, which
            is read and written beside the steps that pass links: a ring of n ranks has 2n - 1 steps
            on each of n parts, 2n - 2 of which pass a link (NCCL, `src/device/all_reduce.h`).
        send: From one rank to another.
        send_cached_bytes: Messages beyond it leave the cache, and their rest moves at
            `send_memory_efficiency`.
    """

    reduce: tuple[LinkProtocol, ...]
    own_share: NonNegative
    send: LinkProtocol
    send_cached_bytes: NonNegative
    send_memory_efficiency: Positive
    reduce_spread: NonNegative
    send_spread: NonNegative
    standard_errors: FrozenDict[str, NonNegative] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernels:
    """Hold what attention over a paged cache takes; `rlplan.profiles.kernels.kernel_time` has the formula.

    Attributes:
        alone_efficiency: Rate at which a decode block walks along keys when it has a multiprocessor
            to itself, as a share of a multiprocessor's part of the memory's rate (above 1: through
            the second-level cache).
        paired_efficiency: The same of one of two that share a multiprocessor, of half of that part.
        alone_start_seconds: Time of a decode block alone before its first keys.
        paired_start_seconds: The same of one of two.
        cached_bytes: Keys and values that stay in the second-level cache between steps.
        memory_efficiency: Share of the memory's rate at which the others move.
        overlap_exponent: As of the matrix products.
        decode_fixed_seconds: Time of a decode step with next to no work.
        combine_seconds: Time to combine the results of split keys.
        combine_part_seconds: The same for each part.
        prefill_efficiency: Share of the peak rate of prefill blocks, two on a multiprocessor.
        append_efficiency: Share of the memory's rate at which they write keys into the cache
            (above 1: through the second-level cache).
        alone_fraction: Time of a block alone on its multiprocessor over that of one of two.
        tail_fraction: As of the matrix products.
        prefill_fixed_seconds: Time of a prefill with next to no work.
    """

    alone_efficiency: Positive
    paired_efficiency: Positive
    alone_start_seconds: NonNegative
    paired_start_seconds: NonNegative
    cached_bytes: Positive
    memory_efficiency: Positive
    overlap_exponent: Positive
    decode_fixed_seconds: NonNegative
    combine_seconds: NonNegative
    combine_part_seconds: NonNegative
    prefill_efficiency: Positive
    append_efficiency: Positive
    alone_fraction: Positive
    tail_fraction: NonNegative
    prefill_fixed_seconds: NonNegative
    decode_spread: NonNegative
    prefill_spread: NonNegative
    standard_errors: FrozenDict[str, NonNegative] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Hold the kernels of one architecture.

    Attributes:
        fitted: Whether the constants were fitted to measurements.
        refit: The command that fits them again.
        held_out: Errors of rows that were not fitted on, by part; `without what is left out` are
            those of a fit that is only tried (benchmarks/fit_kernels.py says what it leaves out).
        grouped: Products of many experts in one kernel; None where they run one after another.
        attention: Over a paged cache; None where no table was at hand, and `attention_of` names the
            architecture whose kernels stand for it.
        attention_prefill_factor: Share of the peak rate that those kernels' prefill reaches here, over
            the share that it reaches there.
    """

    architecture: str
    source: str
    fitted: bool
    refit: str = ""
    held_out: FrozenDict[str, str] = FrozenDict()
    gemm: GemmKernels
    rows: FrozenDict[RowKind, RowKernels]
    links: LinkKernels
    grouped: GroupedKernels | None = None
    attention: AttentionKernels | None = None
    attention_of: str = ""
    attention_prefill_factor: Positive = 1.0


@cache
def load_kernels(architecture: str) -> Kernels:
    """Return the kernels of an architecture, such as `ampere`.

    Raises:
        UnknownNameError: There is no file of that name in `profiles/kernels/constants/`.
    """
    known = sorted(path.stem for path in KERNELS_FOLDER.glob("*.yaml"))
    if architecture not in known:
        raise UnknownNameError("kernels", architecture, known)
    return read_sheet(Kernels, KERNELS_FOLDER / f"{architecture}.yaml")


# How long a matrix product takes: waves of output tiles over the multiprocessors.
#
# Libraries cut the output into tiles, one multiprocessor computes one tile at a time, and the
# heuristic takes the tile that is fastest for the shape. A started wave costs nearly a whole one,
# which is why times climb in stairs (NVIDIA, "Matrix Multiplication Background User's Guide", tile
# and wave quantisation). A product with few tiles is split along its depth, at the cost of adding
# up partial sums. Every step grows with the shape, so a larger product is never faster.

# What keeps a small tile from a multiprocessor's peak is how fast it is fed, which is as fast on a slower multiprocessor of the
# same architecture (H20 has H100's with a quarter of the rate): there small tiles come as near to the peak as large ones, also
# those of 16 and 32 rows, which win nothing where 64 rows are fed as fast. Nor does its clock fall in long products: 148 TFLOP/s
# in place of 989 at 400 W in place of 700. That it falls in proportion down to half of the rate is an assumption: no device
# lies between.

# An output tile of 256 x 128 values, to which `epilogue_seconds` refers.
EPILOGUE_VALUES: Final = 256 * 128
SPLITS: Final = (2, 3, 4, 6, 8)
# Splitting is for products that leave multiprocessors idle; two waves of parts are plenty.
MOST_SPLIT_WAVES: Final = 2
# Partial sums are kept in 32 bit: written once and read once a pass.
PARTIAL_SUM_BYTES: Final = 8


# Rows of the smallest tile that shares are fitted of, and of smaller ones.
LEAST_TILE_ROWS: Final = 64
FEWER_TILE_ROWS: Final = (16, 32)

# Rows and columns of a small tile, and the depth that it takes at a time: engineering assumptions, the unit in which times of
# tiles are fitted. That kernels take other tiles from some number of tokens on shows in vLLM's tables, where narrow experts
# are a fifth faster with 80 tokens than with 64.
SMALL_TILE: Final = (16, 64)
SMALL_TILE_DEPTH: Final = 64


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
        self._most_share = max(share for _, _, share in self._tiles)
        # By the peak rate and feeding: of each tile rows, columns, seconds for one of its depth, and its epilogue's.
        self._timed: dict[tuple[float, float], list[tuple[float, float, float, float]]] = {}

    def feeding(self, precision: Precision, peak: float) -> float:
        """Return how many times as fast as this device's a multiprocessor is that the shares are of; at least 1.

        Args:
            peak: The device's rate in flops per second at this precision.
        """
        known = self._kernels.unit_flops_per_second.get(precision, 0.0)
        return max(1.0, known * self._units / peak)

    def _shares(self, feeding: float) -> list[tuple[float, float, float]]:
        """Return rows, columns and share of the peak of every tile."""
        found: list[tuple[float, float, float]] = []
        for rows, columns, share in self._tiles:
            found.append((rows, columns, min(self._most_share, share * feeding)))
            if feeding > 1 and rows == LEAST_TILE_ROWS:
                for few in FEWER_TILE_ROWS:
                    fed = share * few / rows * feeding
                    found.append((few, columns, min(self._most_share, fed)))
        return found

    def _timed_tiles(self, peak: float, feeding: float) -> list[tuple[float, float, float, float]]:
        """Return rows, columns, seconds for each of its depth and seconds of its epilogue of every tile."""
        if (peak, feeding) not in self._timed:
            epilogue_seconds, units = self._kernels.epilogue_seconds, self._units
            shares = self._shares(feeding)
            self._timed[peak, feeding] = [
                (
                    rows,
                    columns,
                    2 * (rows * columns) * units / (peak * share),
                    epilogue_seconds * (rows * columns) / EPILOGUE_VALUES,
                )
                for rows, columns, share in shares
            ]
        return self._timed[peak, feeding]

    def seconds(
        self, m: int, k: int, n: int, *, value_bytes: int, peak: float, feeding: float = 1.0
    ) -> float:
        """Return the seconds of an m x k times k x n product.

        Args:
            peak: The device's rate in flops per second at this precision.
            feeding: As the method of that name has it.
        """
        kernels, units = self._kernels, self._units
        memory = (m * k + k * n + m * n) * value_bytes / self._memory_rate
        partial_sums = PARTIAL_SUM_BYTES * kernels.split_traffic * m * n / self._memory_rate
        exponent, step = kernels.overlap_exponent, kernels.depth_step
        best = math.inf
        depth = -(-k // step) * step
        for rows, columns, seconds_per_depth, epilogue in self._timed_tiles(peak, feeding):
            tiles = -(-m // rows) * -(-n // columns)
            each = depth * seconds_per_depth + epilogue
            # No waves take less than all tiles one after another on all units: most need no closer look.
            if tiles / units * each < best:
                compute = self._waves_seconds(tiles / units, each, feeding)
                if compute < best:
                    best = min(best, overlapped(compute, memory, exponent))
            for parts in SPLITS:
                moved = memory + parts * partial_sums + kernels.split_seconds
                if tiles * parts > MOST_SPLIT_WAVES * units or moved >= best:
                    break
                each = -(-k // (parts * step)) * step * seconds_per_depth + epilogue
                compute = self._waves_seconds(tiles * parts / units, each, feeding)
                if compute < best:
                    split = overlapped(compute, moved - kernels.split_seconds, exponent)
                    best = min(best, split + kernels.split_seconds)
        return best + kernels.fixed_seconds

    def grouped_seconds(
        self,
        shape: GroupedShape,
        grouped: GroupedKernels,
        *,
        value_bytes: int,
        peak: float,
        feeding: float = 1.0,
    ) -> float:
        """Return the seconds of products m x k times k x n that one kernel computes.

        The tiles of all products share the waves, and every product's weights pass through memory. Rows are
        dealt out unevenly, so that the last tile of a product is half full on average. Of few rows tiles are small:
        where experts are narrow, their many short tiles take longer than their weights.

        Args:
            peak: The device's rate in flops per second at this precision.
            feeding: As the method of that name has it.
        """
        kernels, (m, k, n, products) = self._kernels, shape
        moved = products * (m * k + k * n + m * n) * value_bytes
        memory = moved / (self._memory_rate * grouped.memory_rate)
        depth = -(-k // kernels.depth_step) * kernels.depth_step
        best = math.inf
        for rows, columns, share in self._shares(feeding):
            tiles = products * max(1.0, m / rows + 0.5) * -(-n // columns)
            area = rows * columns
            seconds_per_depth = 2 * area * self._units / (peak * share * grouped.rate)
            epilogue = kernels.epilogue_seconds * area / EPILOGUE_VALUES
            each = depth * seconds_per_depth + epilogue
            compute = self._waves_seconds(tiles / self._units, each, feeding)
            best = min(best, overlapped(compute, memory, kernels.overlap_exponent))
        if m <= SMALL_TILE[0] and m * products <= grouped.few_rows:
            best = max(best, self._small_tiles_seconds(shape, grouped))
        return best + grouped.fixed_seconds

    def _small_tiles_seconds(self, shape: GroupedShape, grouped: GroupedKernels) -> float:
        """Return the seconds of a kernel's small tiles, each a multiprocessor's for a time."""
        rows, columns = (
            math.ceil(side / each)
            for side, each in zip((shape.m, shape.n), SMALL_TILE, strict=True)
        )
        steps = math.ceil(shape.k / SMALL_TILE_DEPTH)
        each_seconds = grouped.tile_seconds + steps * grouped.depth_seconds
        return shape.products * rows * columns / self._units * each_seconds

    def _waves_seconds(self, filled: float, tile_seconds: float, feeding: float) -> float:
        """Return the seconds of so many waves, `filled` of which hold tiles."""
        kernels = self._kernels
        tail = kernels.tail_fraction
        waves = tail * math.ceil(filled) + (1 - tail) * max(filled, 1.0)
        seconds = waves * tile_seconds
        slowdown = kernels.slowdown * max(0.0, 2 - feeding)
        return seconds * (1 + slowdown * seconds / (seconds + kernels.slowdown_seconds))


def overlapped(compute_seconds: float, memory_seconds: float, exponent: float) -> float:
    """Return (compute^p + memory^p)^(1/p), scaled so that no power under- or overflows."""
    longer, shorter = sorted((compute_seconds, memory_seconds), reverse=True)
    if longer == 0:
        return 0.0
    return float(longer * (1 + (shorter / longer) ** exponent) ** (1 / exponent))


# How long kernels take that work row by row: waves of thread blocks over the multiprocessors.
#
# A block of threads takes one token's row and walks along it step by step, as the kernels of
# inference engines do for norms, rotations and gated activations; where no row needs its own block
# (additions, look-ups of embeddings), blocks take equal parts of all values. A multiprocessor holds
# 2,048 threads (NVIDIA, "CUDA C++ Programming Guide", compute capabilities 8.0 and 9.0), so that rows
# come in waves, and times climb in stairs until the memory's rate hides them.

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


# How long attention over a paged cache takes: waves of thread blocks, two on a multiprocessor.
#
# FlashAttention-2's kernels for a cache (Dao 2023, arXiv:2307.08691, section 3.2; flash-decoding):
# a block of a prefill takes a tile of queries of one head past all keys that they see, and writes the
# new keys and values into the cache on its way; a block of a decode step takes one KV head of one
# sequence, tile by tile. Where there are too few blocks, the keys are split among several, whose
# results are combined; into how many parts, the library decides by the keys for which the block table
# has room, and parts without keys start as well.

BLOCKS_PER_UNIT: Final = 2
QUERIES_PER_TILE: Final = 64
KEYS_PER_TILE: Final = 128
# The library splits below this share of a block on every multiprocessor, ...
ENOUGH_BLOCKS: Final = 0.8
# ... into the fewest parts that fill waves this well, compared with the best number of parts.
GOOD_FILL: Final = 0.85
MOST_PARTS: Final = 128


class PagedAttentionTime:
    """Estimate attention over a paged cache from a device's rates and its kernels' constants.

    Args:
        units: Multiprocessors of the device.
    """

    def __init__(
        self, kernels: AttentionKernels, units: int, memory_bytes_per_second: float
    ) -> None:
        self.kernels = kernels
        self._units = units
        self._slots = BLOCKS_PER_UNIT * units
        self._memory_rate = memory_bytes_per_second

    def decode_seconds(self, shape: Attention, *, value_bytes: int, table_tokens: int) -> float:
        """Return the seconds of one decode step's attention of one layer.

        Args:
            table_tokens: Tokens of a sequence for which the block table has room, if they are more
                than the cached ones.
        """
        kernels = self.kernels
        heads = shape.batch * shape.kv_heads
        keys = shape.cached_tokens + 1
        tiles = -(-keys // KEYS_PER_TILE)
        room = max(tiles, -(-table_tokens // KEYS_PER_TILE))
        parts = split_parts(heads, room, self._units)
        part_tiles = -(-room // parts)
        active = -(-tiles // part_tiles)
        key_bytes = 2 * shape.head_dim * value_bytes
        traffic = self._traffic_seconds(heads * keys * key_bytes)
        tile_seconds = KEYS_PER_TILE * key_bytes * self._slots / self._memory_rate
        walked = min(tiles, part_tiles)
        blocks = heads * active

        def wave(size: int, tiles: int, *, paired: bool) -> float:
            share = kernels.paired_efficiency if paired else 2 * kernels.alone_efficiency
            walk = tiles * tile_seconds / share
            return overlapped(walk, traffic * size / blocks, kernels.overlap_exponent)

        waves, rest = divmod(blocks, self._slots)
        seconds = kernels.decode_fixed_seconds + self._start_seconds(heads * parts)
        seconds += waves * wave(self._slots, walked, paired=True) if waves else 0.0
        if rest:
            paired = rest > self._units or (parts > 1 and self._meet(heads, parts, active))
            if waves and rest <= heads:
                # The last part of each head may have fewer keys than the others.
                walked = tiles - (active - 1) * part_tiles
            seconds += wave(rest, walked, paired=paired)
        if parts > 1:
            seconds += kernels.combine_seconds + parts * kernels.combine_part_seconds
        return seconds

    def _traffic_seconds(self, num_bytes: float) -> float:
        """Return the seconds in which the memory passes keys and values that the cache lost.

        Repeated steps find in the cache what they read before, until there is too much of it: with
        twice the cache's bytes nothing is left when its turn comes again.
        """
        kernels = self.kernels
        lost = min(1.0, max(0.0, num_bytes / kernels.cached_bytes - 1))
        return num_bytes * lost / (self._memory_rate * kernels.memory_efficiency)

    def _start_seconds(self, blocks: int) -> float:
        """Return the seconds that blocks take before their first tile, wave after wave."""
        kernels = self.kernels
        waves, rest = divmod(blocks, self._slots)
        seconds = waves * kernels.paired_start_seconds
        if rest:
            paired = rest > self._units
            seconds += kernels.paired_start_seconds if paired else kernels.alone_start_seconds
        return seconds

    def _meet(self, heads: int, parts: int, active: int) -> bool:
        """Tell whether two blocks with keys meet on a multiprocessor.

        The parts of a head follow one another, and blocks go round the multiprocessors, so that
        block i meets block i + units; of each head's parts the first `active` have keys.
        """
        if heads * parts <= self._units:
            return False
        if heads * parts > self._slots:
            return True
        shift = self._units % parts
        return shift < active or parts - shift < active

    def prefill_seconds(self, shape: Attention, *, value_bytes: int, peak: float) -> float:
        """Return the seconds of the attention of one layer over new and cached tokens.

        Args:
            peak: The device's rate in flops per second at this precision.
        """
        kernels, head_dim = self.kernels, shape.head_dim
        query_tokens, cached_tokens = shape.query_tokens, shape.cached_tokens
        tiles = -(-query_tokens // QUERIES_PER_TILE)
        blocks = shape.batch * shape.q_heads * tiles
        seen, appended = _tiles_seen(query_tokens, cached_tokens)
        most = -(-(query_tokens + cached_tokens) // KEYS_PER_TILE)
        parts = split_parts(blocks, most, self._units)
        if parts > 1:
            seen, appended = -(-most // parts), appended / parts
        flops = 4 * QUERIES_PER_TILE * KEYS_PER_TILE * head_dim
        # A tile of keys and values is read and written.
        num_bytes = 4 * KEYS_PER_TILE * head_dim * value_bytes
        seconds = seen * flops * self._slots / (peak * kernels.prefill_efficiency)
        seconds += (
            appended * num_bytes * self._slots / (self._memory_rate * kernels.append_efficiency)
        )
        filled = blocks * parts / self._slots
        tail = kernels.tail_fraction
        waves = tail * math.ceil(filled) + (1 - tail) * max(filled, 1.0)
        # Multiprocessors that two blocks divide among them, as a share of all.
        share = min(1.0, max(0.0, blocks * parts / self._units - 1))
        alone = kernels.alone_fraction + (1 - kernels.alone_fraction) * share
        return kernels.prefill_fixed_seconds + waves * seconds * alone


def _tiles_seen(query_tokens: int, cached_tokens: int) -> tuple[float, float]:
    """Return how many tiles of keys a tile of queries sees on average, and how many are new."""
    tiles = -(-query_tokens // QUERIES_PER_TILE)
    seen = 0
    for tile in range(1, tiles + 1):
        end = cached_tokens + min(query_tokens, tile * QUERIES_PER_TILE)
        seen += -(-end // KEYS_PER_TILE)
    return seen / tiles, seen / tiles - cached_tokens // KEYS_PER_TILE


@cache
def split_parts(blocks: int, tiles: int, units: int) -> int:
    """Return among how many parts the keys of a block are split, as the library chooses."""
    if blocks >= ENOUGH_BLOCKS * units:
        return 1
    fills: dict[int, float] = {}
    for parts in range(1, min(MOST_PARTS, units, tiles) + 1):
        # A number of parts that leaves the largest as large as before is no choice.
        if parts == 1 or -(-tiles // parts) != -(-tiles // (parts - 1)):
            filled = blocks * parts / units
            fills[parts] = filled / math.ceil(filled)
    enough = GOOD_FILL * max(fills.values())
    return next(parts for parts, fill in fills.items() if fill >= enough)
