"""Generation on one replica: from admission to completion in jumps, never token by token.

A jump lasts from one change of the running set (a completion, an admission, a preemption) to the
next. Inside a jump the cost of a decode step depends on the mean cached length only, which grows by
one token a step. A replica's `decode_run` sums such steps up exactly, or else the sum is taken at two
points, which is exact where `decode_seconds` is at most cubic in the cached length.

The first token of a response comes out of the prefill; its other tokens take a decode step each. A
step writes the token that it reads to the KV cache, so a sequence ends with prompt + response - 1
cached tokens.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from simulator.generation.mixed_steps import play_mixed
from simulator.generation.replica import (
    Batching,
    Chunks,
    Generated,
    Replica,
    StepCost,
    blocks_of,
    prefill_passes,
)
from simulator.generation.running import RunningSet
from simulator.generation.waves import play_waves

__all__ = ["Batching", "Chunks", "Generated", "Replica", "StepCost", "generate"]


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
        return _play_prefill_first(replica, prompts.tolist(), responses.tolist())
    if replica.batching == "calls":
        return _play_calls(replica, prompts.tolist(), responses.tolist())
    if replica.batching == "mixed":
        return play_mixed(replica, prompts.tolist(), responses.tolist())
    return play_waves(replica, prompts.tolist(), responses.tolist())


def _play_prefill_first(replica: Replica, prompts: list[int], responses: list[int]) -> Generated:
    """Play continuous batching whose prefills go before decode steps and never share one."""
    state = RunningSet(replica, prompts, responses)
    while state.waiting or state.running:
        if not state.closed and (admitted := _admit(state)):
            tokens = [state.offset[sequence] + state.step for sequence in admitted]
            state.prefill += prefill_passes(replica, tokens)
            state.note_peaks()
            state.complete()
            continue
        if state.lacks_blocks():
            state.preempt()
        state.jump()
    return state.outcome()


def _play_calls(replica: Replica, prompts: list[int], responses: list[int]) -> Generated:
    """Play calls of `max_running` sequences one after another; nothing of two calls is merged."""
    size = replica.max_running
    calls = [
        _play_prefill_first(replica, prompts[first : first + size], responses[first : first + size])
        for first in range(0, len(prompts), size)
    ]
    starts = accumulate((call.seconds for call in calls), initial=0.0)
    return Generated(
        seconds=sum(call.seconds for call in calls),
        prefill_seconds=sum(call.prefill_seconds for call in calls),
        decode_seconds=sum(call.decode_seconds for call in calls),
        num_steps=sum(call.num_steps for call in calls),
        num_jumps=sum(call.num_jumps for call in calls),
        num_preemptions=sum(call.num_preemptions for call in calls),
        peak_running=max(call.peak_running for call in calls),
        peak_blocks=max(call.peak_blocks for call in calls),
        missing_blocks=max(call.missing_blocks for call in calls),
        finish_seconds=tuple(
            start + end
            for start, call in zip(starts, calls, strict=False)
            for end in call.finish_seconds
        ),
    )


def _admit(state: RunningSet) -> list[int]:
    """Move sequences from the head of the queue into the running set while they fit."""
    state.closed = True
    free = state.replica.max_running - len(state.running)
    admitted: list[int] = []
    while state.waiting and len(admitted) < free:
        sequence = state.waiting[0]
        tokens = state.prompts[sequence] + state.done_tokens[sequence]
        if state.used + blocks_of(tokens, state.block) + state.held > state.capacity:
            break
        state.waiting.popleft()
        state.enter(sequence, tokens)
        admitted.append(sequence)
    return admitted
