"""Seconds that no generation of a replica can beat, in closed form: nothing is played.

Every step of a replica of p stages takes p times the slowest stage's parts. Each part lies above straight
lines a + b x, x being the tokens of a stage's batch, which over all steps add up to a S + b X: X are the
tokens that must pass, and S a number of steps that no schedule undercuts:

- a step gives a sequence one token at most: S >= the longest response;
- a step decodes `max_running` sequences at most: S >= decoded tokens / max_running;
- the sequences of a step fit into the cache: S >= the sum of cached tokens / the cache's tokens.

Where slots and cache are ample, prompts fill up whole steps, so that steps with prompts are few, and a
steeper line holds for those. Preemption only adds: prompts are computed again. The best pair of lines
gives the bound. Decision 7 has the argument in full.
"""

from bisect import bisect_left
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.exact.generation.concave_bounds import ConcaveBound, Floors, floors_under
from planner.exact.generation.loads import Load, least_steps
from rlplan.models.model import layer_kinds
from simulator.generation.prices.grids import NODES
from simulator.generation.prices.stepping import EngineSteps
from simulator.generation.replica import blocks_of
from simulator.placed.columns import Floats

Line = tuple[float, float]  # seconds at no tokens, seconds for each

# Where the rate of reading the cache is probed; it is the same everywhere.
PROBED_SEQUENCES, PROBED_TOKENS = 64, 1024


class Asked(NamedTuple):
    """Hold what of a replica's settings bounds depend on.

    Attributes:
        max_running: Sequences that run at the same time, at most.
        state_blocks: Blocks that a sequence takes beside those of its tokens.
        waits: Whether some may wait though all may run: the bound holds for smaller limits too.
        endless: Whether the load's sequences run beside those of loads before and behind it: then the bound is
            on the mean over many loads.
    """

    max_running: int
    state_blocks: int = 0
    waits: bool = False
    endless: bool = False


def least_seconds(steps: EngineSteps, load: Load, asked: Asked, kv_blocks: Floats) -> Floats:
    """Return the bounds for caches of several sizes, in seconds. Shape as `kv_blocks`."""
    engine, stages = steps.engine, steps.setting.pp
    widest = max(engine.max_batched_tokens, load.longest_prompt_tokens) // stages + 1
    block = engine.kv_block_tokens
    running = asked.max_running if asked.endless else min(asked.max_running, load.sequences)
    # With so many blocks nobody is ever preempted, and if all may run, nobody waits.
    preempts = kv_blocks < running * (blocks_of(load.longest_tokens, block) + asked.state_blocks)
    waits = preempts | (running < load.sequences or asked.waits or not load.contexts.in_turn)
    by_cache = load.cached_tokens / (block * np.maximum(kv_blocks, 1.0))
    num_steps = np.maximum(by_cache, least_steps(load, running, endless=asked.endless))
    tokens = (load.prompt_tokens + load.decoded_tokens) / stages
    heads = (load.sequences + load.decoded_tokens) / stages
    read = _cache_seconds(steps)
    base, slope, steeper = _dense_lines(steps, load, widest)[:, :, None]
    # A preempted sequence's next token reads no cache, but as many tokens pass once more.
    reading = np.where(preempts, np.minimum(read, slope), read) * load.cached_tokens / stages
    dense = base * num_steps + slope * tokens + reading + np.where(waits, 0.0, steeper)
    concave = _concave_bound(steps, load, running, asked.endless)
    bent = concave.seconds(block * np.maximum(kv_blocks, 1.0), preempts)
    base, slope = _head_lines(steps, load.sequences // stages + 1)[:, :, None]
    head = base * num_steps + slope * heads
    device = (np.maximum(dense.max(axis=0), bent) + head.max(axis=0)) * stages
    # Prompts give sequences their first tokens; every step of the others is launched.
    decoding = max(load.decoded_tokens / running, 0 if asked.endless else load.steps - 1)
    device = np.maximum(device, steps.floor_seconds(1) * decoding)
    first = steps.host_seconds(0)
    each = steps.host_seconds(1) - first
    host = first * num_steps + each * (load.sequences + load.decoded_tokens)
    longer = np.maximum(device, host)
    return np.asarray(longer if steps.overlaps else device + host)


@lru_cache(maxsize=16384)
def _dense_lines(steps: EngineSteps, load: Load, widest: int) -> Floats:
    """Return bases, slopes, and what steps with prompts take beyond each line. Shape (3, lines)."""
    lines = _lines(steps, "dense", widest)
    return np.array([(*line, _steeper(steps, load, line, lines)) for line in lines]).T


@lru_cache(maxsize=16384)
def _head_lines(steps: EngineSteps, most: int) -> Floats:
    """Return bases and slopes under the output head's seconds. Shape (2, lines)."""
    return np.array(_lines(steps, "head", most)).T


def _steeper(steps: EngineSteps, load: Load, line: Line, lines: tuple[Line, ...]) -> float:
    """Return what a stage's steps with prompts take beyond a line, by the best of steeper ones.

    Every one of them but the last is filled up to the budget of tokens.
    """
    engine = steps.engine
    filled = engine.max_batched_tokens
    if engine.batching == "mixed":
        filled -= load.sequences  # each that runs takes one
    if engine.batching != "mixed" or not engine.chunked_prefill:
        filled -= load.longest_prompt_tokens  # the next prompt did not fit
    if filled <= 0:
        return 0.0
    most = load.prompt_tokens // filled + 1
    base, slope = line
    gains = (
        (steep - slope) * load.prompt_tokens / steps.setting.pp - (base - low) * most
        for low, steep in lines
        if steep > slope and low < base
    )
    return max(0.0, max(gains, default=0.0))


@lru_cache(maxsize=4096)
def _cache_seconds(steps: EngineSteps) -> float:
    """Return the seconds of reading one cached token in all layers of a stage, 0 if it varies.

    Engines whose cache is read at a share of the memory's rate read it in proportion to its tokens.
    """
    if not steps.engine.steps.cache_read_efficiency:
        return 0.0
    # From the widest window on, only layers that see everything read more.
    first = max(kind.window or 0 for kind in layer_kinds(steps.model).models)
    most = steps.decode_attention(PROBED_SEQUENCES, first + PROBED_TOKENS).seconds
    least = steps.decode_attention(PROBED_SEQUENCES, first).seconds
    return (most - least) / (PROBED_SEQUENCES * PROBED_TOKENS)


@lru_cache(maxsize=16384)
def _concave_bound(steps: EngineSteps, load: Load, running: int, endless: bool) -> ConcaveBound:
    """Return the bound by concave functions under the seconds of a step's matrix products."""
    engine, stages = steps.engine, steps.setting.pp
    batched = engine.max_batched_tokens
    if engine.batching != "mixed" or not engine.chunked_prefill:
        batched = max(batched, load.longest_tokens)  # a prompt may be computed whole
    most = max(batched, 2 * running) // stages + 1
    floors = _floors(
        steps, NODES[bisect_left(NODES, most)], NODES[bisect_left(NODES, running / stages)]
    )
    read = _cache_seconds(steps)
    return ConcaveBound(floors, load, running, stages, read, batched, endless=endless)


@lru_cache(maxsize=16384)
def _floors(steps: EngineSteps, most_tokens: int, most_sequences: int) -> Floors:
    """Return concave functions under the seconds of a step's matrix products, up to so many tokens."""
    tokens, seconds = _nodes(steps, "dense", most_tokens)
    return floors_under(tokens[1:], seconds[1:], most_sequences)


def _lines(steps: EngineSteps, part: str, most: int) -> tuple[Line, ...]:
    """Return lines that a part's seconds lie above for 0 to `most` tokens of a stage."""
    return _hull(steps, part, 1 << (most - 1).bit_length())


@lru_cache(maxsize=16384)
def _hull(steps: EngineSteps, part: str, most: int) -> tuple[Line, ...]:
    """Return the rising sides of the convex hull under a part's nodes, and its lowest point's level."""
    tokens, seconds = (column.tolist() for column in _nodes(steps, part, most))
    corners: list[tuple[int, float]] = []
    for point in zip(tokens, seconds, strict=True):
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) >= _slope(corners[-1], point):
            corners.pop()
        corners.append(point)
    lines = [(min(seconds), 0.0)]
    for left, right in pairwise(corners):
        slope = _slope(left, right)
        if slope > 0:
            lines.append((left[1] - slope * left[0], slope))
    return tuple(lines)


@lru_cache(maxsize=16384)
def _nodes(steps: EngineSteps, part: str, most: int) -> tuple[Floats, Floats]:
    """Return the nodes from 0 to `most` tokens of a stage, and a part's seconds there."""
    grid = steps.dense_grid if part == "dense" else steps.head_grid
    tokens = NODES[: bisect_left(NODES, most) + 1]
    seconds = [grid.at_node(node).seconds for node in tokens]
    return np.array(tokens, dtype=np.float64), np.array(seconds)


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])
