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
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from rlplan.simulator.generation.batching.continuous import PrefillFirst, mixed_set
from rlplan.simulator.generation.batching.joining import Calls, JoiningSet
from rlplan.simulator.generation.batching.running import RunningSet
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


# Sequences that arrive at a replica while it generates.


class WaveSet:
    """Keep the sequences of a replica that takes `max_running` of them at a time.

    They are handed out together, and nothing interrupts them.

    Attributes:
        ended: Sequences that have ended, in that order; for the caller to empty.
    """

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.waiting: dict[int, tuple[int, int, bool]] = {}
        self.ended: list[int] = []
        self.prefill = self.decode = 0.0
        self._count = 0

    @property
    def busy(self) -> bool:
        """Tell whether any sequence waits."""
        return bool(self.waiting)

    def arrive(self, prompt: int, response: int, *, alone: bool = False) -> int:
        """Let a sequence wait behind all others; return its number.

        Args:
            alone: Whether no other one has its prompt.
        """
        self._count += 1
        self.waiting[self._count] = (prompt, response, alone)
        return self._count

    def withdraw(self, sequence: int) -> int:
        """Take a sequence out before its wave; return the tokens of its response that were made: none."""
        self.waiting.pop(sequence, None)
        return 0

    def restart(self) -> int:
        """Return the tokens of running sequences, of which there are none between waves."""
        return 0

    def turn(self) -> None:
        """Take the next wave."""
        wave = list(self.waiting)[: self.replica.max_running]
        taken = (self.waiting.pop(each) for each in wave)
        prompts, responses, alone = zip(*taken, strict=True)
        replica = replace(self.replica, prompt_samples=1) if any(alone) else self.replica
        outcome = generate(replica, prompts, responses)
        self.prefill += outcome.prefill_seconds
        self.decode += outcome.decode_seconds
        self.ended += wave


Arriving = RunningSet | WaveSet | JoiningSet


def arriving(
    replica: Replica, longest_tokens: int, calls: Calls | None = None, *, keeps: bool = False
) -> Arriving:
    """Return a replica's sequences before the first of them has arrived.

    Args:
        longest_tokens: Longest sequence that will ever arrive.
        calls: In which waves go on; None: waves are taken whole.
        keeps: Whether what runs keeps its cache when others join.
    """
    if calls is not None:
        return JoiningSet(replica, longest_tokens, calls, keeps)
    if replica.batching == "mixed":
        return mixed_set(replica, [], [], longest_tokens)
    if replica.batching == "continuous":
        return PrefillFirst(replica, [], [], longest_tokens)
    return WaveSet(replica)
