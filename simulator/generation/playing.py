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

import numpy as np

from rlplan.simulator.generation.batching.mixed_steps import mixed_set
from rlplan.simulator.generation.batching.prefill_first import PrefillFirst
from rlplan.simulator.generation.batching.waves import play_waves
from rlplan.simulator.generation.replica import Generated, Replica


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
