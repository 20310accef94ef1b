"""Generation in static waves, with a KV cache or without one."""

import math
from itertools import islice

from simulator.replica import Generated, Replica, StepCost, blocks_of, prefill_passes


def play_waves(replica: Replica, prompts: list[int], responses: list[int]) -> Generated:
    """Play `static` waves or, without a KV cache, `none`, in seconds."""
    cached = replica.batching == "static"
    longest = max(prompts) + max(responses) - 1
    slot_blocks = blocks_of(longest, replica.block_tokens) if cached else 0
    missing = max(0, slot_blocks - replica.kv_blocks)
    slots = replica.max_running
    if cached:
        slots = min(slots, (replica.kv_blocks + missing) // slot_blocks)
    prefill = decode = 0.0
    num_steps = jumps = 0
    finish: list[float] = []
    pairs = iter(zip(prompts, responses, strict=True))
    while wave := list(islice(pairs, slots)):
        prompt = max(pair[0] for pair in wave)
        response = max(pair[1] for pair in wave)
        if cached:
            steps = response - 1
            prefill += prefill_passes(replica, [prompt] * len(wave))
            if steps:
                decode += steps * replica.decode_seconds(len(wave), prompt + (steps - 1) / 2)
        else:
            steps = response
            decode += _recompute_seconds(replica.prefill_seconds, len(wave), prompt, steps)
        num_steps += steps
        jumps += 1
        finish += [prefill + decode] * len(wave)
    width = min(slots, len(prompts))
    return Generated(
        seconds=prefill + decode,
        prefill_seconds=prefill,
        decode_seconds=decode,
        num_steps=num_steps,
        num_jumps=jumps,
        num_preemptions=0,
        peak_running=width,
        peak_blocks=width * slot_blocks,
        missing_blocks=missing,
        finish_seconds=tuple(finish),
    )


def _recompute_seconds(prefill_seconds: StepCost, running: int, tokens: int, steps: int) -> float:
    """Return the seconds of `steps` passes over sequences that grow from `tokens` tokens by one each.

    Two points at the standard deviation of 0 .. steps - 1 around its mean: exact for costs up to
    cubic in the length, since the sum's odd moments vanish (attention is quadratic).
    """
    mean = tokens + (steps - 1) / 2
    deviation = math.sqrt((steps**2 - 1) / 12)
    two = prefill_seconds(running, mean - deviation) + prefill_seconds(running, mean + deviation)
    return steps * two / 2
