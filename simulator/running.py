"""The sequences that a generation replica runs, advanced by whole jumps of decode steps."""

import heapq
from collections import deque
from operator import mul

from simulator.replica import Generated, Replica, blocks_of


class RunningSet:
    """Keep the running and waiting sequences of a replica, and the blocks they hold.

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
        self._blocks_at: dict[int, int] = {}  # by step, of the sequences that run now
        self.step = self.jumps = self.preemptions = self.peak_running = self.peak_blocks = 0
        self.prefill = self.decode = 0.0
        self.finish = [0.0] * len(prompts)

    def outcome(self) -> Generated:
        """Return what was done so far."""
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
        known = self._blocks_at.get(step)
        if known is not None:
            return known
        shift = step % self.block
        unused = sum(map(mul, self.residues, self.ramp[shift : shift + self.block]))
        tokens: int = len(self.running) * step + self.offset_sum + unused
        blocks = self._blocks_at[step] = tokens // self.block
        return blocks

    def enter(self, sequence: int, tokens: int) -> None:
        """Let a sequence run whose `tokens` tokens are cached and have given one token more."""
        offset = tokens - self.step
        self.done_tokens[sequence] += 1
        end = self.step + self.responses[sequence] - self.done_tokens[sequence]
        self.running[sequence] = end
        self.offset[sequence] = offset
        self.offset_sum += offset
        self.used += blocks_of(tokens, self.block)
        self.residues[offset % self.block] += 1
        self._blocks_at.clear()
        heapq.heappush(self.ends, (end, sequence))

    def leave(self, sequence: int) -> None:
        """Take a sequence out and free its blocks."""
        del self.running[sequence]
        offset = self.offset.pop(sequence)
        self.offset_sum -= offset
        self.used -= blocks_of(offset + self.step, self.block)
        self.residues[offset % self.block] -= 1
        self._blocks_at.clear()

    def lacks_blocks(self) -> bool:
        """Tell whether the next step of all running sequences does not fit."""
        # Each sequence needs one block more at most: most steps are known to fit without counting.
        if self.used + len(self.running) <= self.capacity:
            return False
        return self.blocks_at(self.step + 1) > self.capacity

    def jump(self, most: int | None = None) -> None:
        """Decode until the next completion, until blocks run out, or for `most` steps."""
        running = len(self.running)
        end, sequence = self.ends[0]
        while self.running.get(sequence) != end:
            heapq.heappop(self.ends)
            end, sequence = self.ends[0]
        steps = end - self.step if most is None else min(end - self.step, most)
        used = self.blocks_at(self.step + steps)
        if used > self.capacity:
            steps = self._steps_that_fit(steps)
            used = self.blocks_at(self.step + steps)
        cached_mean = self.step + self.offset_sum / running + (steps - 1) / 2
        self.decode += steps * self.replica.decode_seconds(running, cached_mean)
        self.step += steps
        self.used = used
        self.jumps += 1
        self.note_peaks()
        self.complete()

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

    def preempt(self) -> None:
        """Throw out the latest sequences, to the head of the queue, until one step fits."""
        needed = self.blocks_at(self.step + 1)
        while needed > self.capacity:
            sequence, end = next(reversed(self.running.items()))
            needed -= blocks_of(self.offset[sequence] + self.step + 1, self.block)
            self.done_tokens[sequence] = self.responses[sequence] - (end - self.step)
            self.leave(sequence)
            self.waiting.appendleft(sequence)
            self.preemptions += 1

    def complete(self) -> None:
        """Take out the sequences that have ended."""
        now = self.prefill + self.decode
        while self.ends and self.ends[0][0] <= self.step:
            end, sequence = heapq.heappop(self.ends)
            if self.running.get(sequence) == end:
                self.leave(sequence)
                self.finish[sequence] = now

    def note_peaks(self) -> None:
        """Remember how many sequences and blocks were held at most."""
        self.peak_running = max(self.peak_running, len(self.running))
        self.peak_blocks = max(self.peak_blocks, self.used)
