"""How long attention over a paged cache takes: waves of thread blocks, two on a multiprocessor.

FlashAttention-2's kernels for a cache (Dao 2023, arXiv:2307.08691, section 3.2; flash-decoding):
a block of a prefill takes a tile of queries of one head past all keys that they see, and writes the
new keys and values into the cache on its way; a block of a decode step takes one KV head of one
sequence, tile by tile. Where there are too few blocks, the keys are split among several, whose
results are combined; into how many parts, the library decides by the keys for which the block table
has room, and parts without keys start as well.
"""

import math
from functools import cache
from typing import Final

from rlplan.models.operators import Attention
from rlplan.profiles.kernels.constants import AttentionKernels
from rlplan.profiles.kernels.gemm_time import overlapped

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
