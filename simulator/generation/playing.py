"""Generation on one replica: from admission to completion in jumps, never token by token.

A jump lasts from one change of the running set (a completion, an admission, a preemption) to the
next. Inside a jump the cost of a decode step depends on the mean cached length only, which grows by
one token a step. A replica's `decode_run` sums such steps up exactly, or else the sum is taken at two
points, which is exact where `decode_seconds` is at most cubic in the cached length.

The first token of a response comes out of the prefill; its other tokens take a decode step each. A
step writes the token that it reads to the KV cache, so a sequence ends with prompt + response - 1
cached tokens.

Static waves, with a KV cache or without one, are played here; other ways to batch in `rlplan.simulator.generation.batching`.
"""

from collections.abc import Sequence
from functools import partial
from itertools import islice

import numpy as np

from rlplan.simulator.generation.batching.mixed_steps import mixed_set
from rlplan.simulator.generation.batching.prefill_first import PrefillFirst
from rlplan.simulator.generation.replica import (
    Generated,
    Replica,
    RunCost,
    StepCost,
    blocks_of,
    prefill_passes,
    run_seconds,
)


def generate(
    replica: Replica, prompt_tokens: Sequence[int], response_tokens: Sequence[int]
) -> Generated:
    """Play the generation of responses of given lengths on one replica, in seconds.

    Args:
        prompt_tokens: By sequence, in the order in which they are admitted.
        response_tokens: By sequence, at least one each.
    """
    prompts = np.asarray(prompt_tokens, dtype=np.int64)
    responses = np.asarray(response_tokens, dtype=np.int64)
    assert prompts.shape == responses.shape
    assert prompts.size > 0
    assert responses.min() >= 1
    if replica.batching == "continuous":
        return PrefillFirst(replica, prompts.tolist(), responses.tolist()).play()
    if replica.batching == "calls":
        return _play_calls(replica, prompts.tolist(), responses.tolist())
    if replica.batching == "mixed":
        return mixed_set(replica, prompts.tolist(), responses.tolist()).play()
    return play_waves(replica, prompts.tolist(), responses.tolist())


def _play_calls(replica: Replica, prompts: list[int], responses: list[int]) -> Generated:
    """Play calls of `max_running` sequences one after another; nothing of two calls is merged."""
    size, total = replica.max_running, Generated()
    for first in range(0, len(prompts), size):
        call = slice(first, first + size)
        total = total.then(PrefillFirst(replica, prompts[call], responses[call]).play())
    return total


def play_waves(replica: Replica, prompts: list[int], responses: list[int]) -> Generated:
    """Play `static` waves or, without a KV cache, `none`, in seconds."""
    cached = replica.batching == "static"
    slots, slot_blocks, missing = _room(replica, prompts, responses)
    prefill = decode = 0.0
    num_steps = jumps = begun = 0
    finish: list[float] = []
    pairs = iter(zip(prompts, responses, strict=True))
    while wave := list(islice(pairs, slots)):
        prompt = max(pair[0] for pair in wave)
        response = max(pair[1] for pair in wave)
        run, prefill_seconds = _costs_of(replica, [pair[0] for pair in wave])
        if cached:
            steps = response - 1
            count = prompts_between(begun, begun + len(wave), replica.prompt_samples)
            prefill += prefill_passes(replica, [prompt] * count, prefill_seconds)
            if steps:
                decode += run(len(wave), prompt, steps)
        else:
            steps = response
            decode += run(len(wave), prompt, steps)
        begun += len(wave)
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
        peak_running=width,
        peak_blocks=width * slot_blocks,
        missing_blocks=missing,
        finish_seconds=tuple(finish),
    )


def last_tokens_of_waves(
    replica: Replica, prompts: list[int], responses: list[int]
) -> tuple[float, ...]:
    """Return when each response of static waves has its last token, in seconds; its wave may go on.

    Args:
        replica: As `play_waves` takes it.
    """
    cached = replica.batching == "static"
    slots, _, _ = _room(replica, prompts, responses)
    seconds, ends = 0.0, list[float]()
    for first in range(0, len(prompts), slots):
        of_wave, own = prompts[first : first + slots], responses[first : first + slots]
        prompt, count = max(of_wave), len(own)
        run, prefill_seconds = _costs_of(replica, of_wave)
        if cached:
            begun = prompts_between(first, first + count, replica.prompt_samples)
            seconds += prefill_passes(replica, [prompt] * begun, prefill_seconds)
        steps = {tokens: tokens - 1 if cached else tokens for tokens in set(own)}
        taken = {t: run(count, prompt, n) if n else 0.0 for t, n in steps.items()}
        ends += [seconds + taken[tokens] for tokens in own]
        seconds += taken[max(own)]
    return tuple(ends)


def _room(replica: Replica, prompts: list[int], responses: list[int]) -> tuple[int, int, int]:
    """Return the sequences of a wave, the KV blocks of each, and the blocks that the cache lacks for one."""
    if replica.batching != "static":
        return replica.max_running, 0, 0
    longest = max(prompts) + max(responses) - 1
    slot_blocks = blocks_of(longest, replica.block_tokens) + replica.state_blocks
    missing = max(0, slot_blocks - replica.kv_blocks)
    slots = min(replica.max_running, (replica.kv_blocks + missing) // slot_blocks)
    return slots, slot_blocks, missing


def _costs_of(replica: Replica, prompts: Sequence[int]) -> tuple[RunCost, StepCost]:
    """Return what steps of a wave cost, decode steps or passes over the whole sequences without a KV cache, and a prefill."""
    if replica.batching == "static":
        costs = replica.wave_costs(prompts)
        return costs.decode_run, costs.prefill_seconds
    run = replica.prefill_run or partial(run_seconds, replica.prefill_seconds)
    return run, replica.prefill_seconds


def prompts_between(first: int, last: int, samples: int) -> int:
    """Return the prompts of the sequences from the first to before the last, `samples` to a prompt."""
    return -(-last // samples) - first // samples


def most_prompts(sequences: int, samples: int) -> int:
    """Return the most prompts of so many sequences in a row, where waves may cut a prompt's samples."""
    if sequences % samples == 0:
        return sequences // samples
    return (sequences - 2) // samples + 2
