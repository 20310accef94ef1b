"""What of a replica's KV cache is of use, in blocks and in bytes: forecasts, memory and searches ask for the same."""

import math

from rlplan.simulator.generation.replica import blocks_held, blocks_of
from rlplan.simulator.generation.speculation import cache_share
from rlplan.simulator.placed import PlacedTask


def cached_blocks(placed: PlacedTask, sequences: int) -> int:
    """Return the least blocks in which so many longest sequences run at a time, their states among them."""
    longest = blocks_of(placed.statistics.longest_tokens, placed.engine.kv_block_tokens)
    return blocks_held(placed.engine, placed.model, sequences, longest, placed.state_blocks)


def held_sequences(placed: PlacedTask) -> int:
    """Return the sequences of a replica that are in its cache at a time, at most.

    Where prefixes are kept, episodes fill some of it while they wait for their environments too.
    """
    waits = placed.workload.environments and placed.engine.shares_prompts
    return max(placed.running, placed.local) if waits else placed.running


def kept_block_bytes(placed: PlacedTask) -> int:
    """Return the bytes of each GPU that a block of the cache takes, with what a draft keeps of its tokens."""
    return math.ceil(placed.block_bytes / cache_share(placed))
