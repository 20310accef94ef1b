"""Generation on one replica: from admission to completion in jumps, never token by token.

A jump lasts from one change of the running set (a completion, an admission, a preemption) to the
next. Inside a jump the cost of a decode step depends on the mean cached length only, which grows by
one token a step, so k steps from mean length c cost k * decode_seconds(running, c + (k - 1) / 2):
exact where `decode_seconds` is affine in the cached length, second order elsewhere.

The first token of a response comes out of the prefill; its other tokens take a decode step each. A
step writes the token that it reads to the KV cache, so a sequence ends with prompt + response - 1
cached tokens.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from operator import mul

import numpy as np

from simulator.replica import Batching, Generated, Replica, StepCost, blocks_of, prefill_passes
from simulator.waves import play_waves

__all__ = ["Batching", "Generated", "Replica", "StepCost", "generate"]


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
        return _Continuous(replica, prompts.tolist(), responses.tolist()).play()
    return play_waves(replica, prompts.tolist(), responses.tolist())


class _Continuous:
    """Play continuous batching.

    `step` counts decode steps. A running sequence is kept as its offset (cached tokens - step),
    constant while it runs, so that advancing all of them is advancing one counter; the offsets'
    residues by block size give the blocks in use at any later step.
    """

    def __init__(self, replica: Replica, prompts: list[int], responses: list[int]) -> None:
        self.replica, self.prompts, self.responses = replica, prompts, responses
        self.block = replica.block_tokens
        longest = max(p + r - 1 for p, r in zip(prompts, responses, strict=True))
        self.missing = max(0, blocks_of(longest, self.block) - replica.kv_blocks)
        self.capacity = replica.kv_blocks + self.missing
        self.waiting = deque(range(len(prompts)))
        self.done_tokens = [0] * len(prompts)
        # Sequence -> step at which it ends, in the order of admission.
        self.running: dict[int, int] = {}
        self.offset: dict[int, int] = {}
        self.ends: list[tuple[int, int]] = []  # heap of (step, sequence); stale after a preemption
        self.residues = [0] * self.block
        self.ramp = [-tokens % self.block for tokens in range(2 * self.block)]
        self.offset_sum = self.used = 0
        self.step = self.jumps = self.preemptions = self.peak_running = self.peak_blocks = 0
        self.prefill = self.decode = 0.0
        self.finish = [0.0] * len(prompts)

    def play(self) -> Generated:
        """Run until every sequence has ended."""
        while self.waiting or self.running:
            admitted = self._admit()
            if admitted:
                self._prefill(admitted)
            else:
                self._jump()
        return Generated(
            seconds=self.prefill + self.decode,
            prefill_seconds=self.prefill,
            decode_seconds=self.decode,
            num_steps=self.step,
            num_jumps=self.jumps,
            num_preemptions=self.preemptions,
            peak_running=self.peak_running,
            peak_blocks=self.peak_blocks,
            missing_blocks=self.missing,
            finish_seconds=tuple(self.finish),
        )

    def blocks_at(self, step: int) -> int:
        """Return the blocks that the running sequences hold at a step, when none leaves before."""
        shift = step % self.block
        unused = sum(map(mul, self.residues, self.ramp[shift : shift + self.block]))
        tokens: int = len(self.running) * step + self.offset_sum + unused
        return tokens // self.block

    def _admit(self) -> list[int]:
        """Move sequences from the head of the queue into the running set while they fit."""
        free = self.replica.max_running - len(self.running)
        if not free or not self.waiting:
            return []
        admitted: list[int] = []
        while self.waiting and len(admitted) < free:
            sequence = self.waiting[0]
            tokens = self.prompts[sequence] + self.done_tokens[sequence]
            if self.used + blocks_of(tokens, self.block) > self.capacity:
                break
            self.waiting.popleft()
            self._enter(sequence, tokens)
            admitted.append(sequence)
        return admitted

    def _enter(self, sequence: int, tokens: int) -> None:
        offset = tokens - self.step
        self.done_tokens[sequence] += 1
        end = self.step + self.responses[sequence] - self.done_tokens[sequence]
        self.running[sequence] = end
        self.offset[sequence] = offset
        self.offset_sum += offset
        self.used += blocks_of(tokens, self.block)
        self.residues[offset % self.block] += 1
        heapq.heappush(self.ends, (end, sequence))

    def _leave(self, sequence: int) -> None:
        del self.running[sequence]
        offset = self.offset.pop(sequence)
        self.offset_sum -= offset
        self.used -= blocks_of(offset + self.step, self.block)
        self.residues[offset % self.block] -= 1

    def _prefill(self, admitted: list[int]) -> None:
        tokens = [self.offset[sequence] + self.step for sequence in admitted]
        self.prefill += prefill_passes(self.replica, tokens)
        self._note_peaks()
        self._complete()

    def _jump(self) -> None:
        """Decode until the next completion, or until blocks run out; preempt if they have."""
        running = len(self.running)
        # Each sequence needs one block more at most: most steps are known to fit without counting.
        if self.used + running > self.capacity and self.blocks_at(self.step + 1) > self.capacity:
            self._preempt()
            running = len(self.running)
        while self.running.get(self.ends[0][1]) != self.ends[0][0]:
            heapq.heappop(self.ends)
        steps = self.ends[0][0] - self.step
        used = self.blocks_at(self.step + steps)
        if used > self.capacity:
            steps = self._steps_that_fit(steps)
            used = self.blocks_at(self.step + steps)
        cached_mean = self.step + self.offset_sum / running + (steps - 1) / 2
        self.decode += steps * self.replica.decode_seconds(running, cached_mean)
        self.step += steps
        self.used = used
        self.jumps += 1
        self._note_peaks()
        self._complete()

    def _steps_that_fit(self, too_many: int) -> int:
        """Return the most steps after which the running sequences still fit (one step does)."""
        # Every `block` steps each sequence takes one block, which brackets the answer.
        rounds = (self.capacity - self.used) // len(self.running)
        fits = max(1, rounds * self.block)
        too_many = min(too_many, (rounds + 1) * self.block + 1)
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self.blocks_at(self.step + middle) > self.capacity:
                too_many = middle
            else:
                fits = middle
        return fits

    def _preempt(self) -> None:
        """Throw out the latest sequences, to the head of the queue, until one step fits."""
        needed = self.blocks_at(self.step + 1)
        while needed > self.capacity:
            sequence, end = next(reversed(self.running.items()))
            needed -= blocks_of(self.offset[sequence] + self.step + 1, self.block)
            self.done_tokens[sequence] = self.responses[sequence] - (end - self.step)
            self._leave(sequence)
            self.waiting.appendleft(sequence)
            self.preemptions += 1

    def _complete(self) -> None:
        now = self.prefill + self.decode
        while self.ends and self.ends[0][0] <= self.step:
            end, sequence = heapq.heappop(self.ends)
            if self.running.get(sequence) == end:
                self._leave(sequence)
                self.finish[sequence] = now

    def _note_peaks(self) -> None:
        self.peak_running = max(self.peak_running, len(self.running))
        self.peak_blocks = max(self.peak_blocks, self.used)
