"""The sequences that a generation replica runs, advanced by whole jumps of decode steps."""

import heapq
from abc import ABC, abstractmethod
from collections import deque
from functools import partial

from simulator.generation.replica import Generated, Replica, blocks_of, run_seconds


class RunningSet(ABC):
    """Keep the running and waiting sequences of a replica, and the blocks they hold.

    `step` counts decode steps. A running sequence is kept as its offset (cached tokens - step),
    constant while it runs, so that advancing all of them is advancing one counter. A sequence takes
    a block for its next token when its cached tokens fill their blocks, which the offsets' residues
    by block size tell for any later step.

    Attributes:
        held: Blocks that each running sequence has beside those of its tokens.
        closed: Whether no waiting sequence can be admitted until a running one ends: blocks in use
            only grow until then. So it is after a preemption too, since the last one thrown out,
            first in the queue, wants as many blocks as the step was short of without it.
        idle: Seconds in which there was nothing to compute.
    """

    def __init__(self, replica: Replica, prompts: list[int], responses: list[int]) -> None:
        self.replica, self.prompts, self.responses = replica, prompts, responses
        self.run_seconds = replica.decode_run or partial(run_seconds, replica.decode_seconds)
        self.block, self.max_running = replica.block_tokens, replica.max_running
        longest = max(p + r - 1 for p, r in zip(prompts, responses, strict=True))
        self.held = replica.state_blocks
        self.missing = max(0, blocks_of(longest, self.block) + self.held - replica.kv_blocks)
        self.capacity = replica.kv_blocks + self.missing
        self.waiting = deque(range(len(prompts)))
        self.done_tokens = [0] * len(prompts)
        # Sequence -> step at which it ends, in the order of admission.
        self.running: dict[int, int] = {}
        self.offset: dict[int, int] = {}
        self.ends: list[tuple[int, int]] = []  # heap of (step, sequence); stale after a preemption
        self.residues = [0] * self.block
        self.offset_sum = self.used = 0
        self.growth = 1  # blocks that a sequence takes for `block` tokens more
        self.closed = False
        self.step = self.jumps = self.preemptions = self.peak_running = self.peak_blocks = 0
        self.prefill = self.decode = self.idle = 0.0
        self.finish = [0.0] * len(prompts)

    @property
    def now(self) -> float:
        """Return the seconds since the start."""
        return self.prefill + self.decode + self.idle

    @property
    def busy(self) -> bool:
        """Tell whether there are sequences to compute."""
        return bool(self.waiting or self.running)

    def play(self) -> Generated:
        """Run until every sequence has ended."""
        while self.busy:
            self.advance()
        return self.outcome()

    @abstractmethod
    def advance(self, most: int | None = None) -> None:
        """Do what comes next: a prefill or a step with prompts, or decode steps, `most` of them at most."""

    def outcome(self) -> Generated:
        """Return what was done so far."""
        return Generated(
            seconds=self.now,
            prefill_seconds=self.prefill,
            decode_seconds=self.decode,
            idle_seconds=self.idle,
            num_steps=self.step,
            num_jumps=self.jumps,
            num_preemptions=self.preemptions,
            peak_running=self.peak_running,
            peak_blocks=self.peak_blocks,
            missing_blocks=self.missing,
            finish_seconds=tuple(self.finish),
        )

    def used_next(self) -> int:
        """Return the blocks that the running sequences hold after one step more."""
        return self.used + self.residues[-self.step % self.block]

    def used_after(self, steps: int) -> int:
        """Return the blocks that they hold after so many steps, when none leaves before."""
        rounds, rest = divmod(steps, self.block)
        used = self.used + rounds * len(self.running) * self.growth
        if rest:
            last = -self.step % self.block + 1  # residues that take a block next lie before here
            first = last - rest
            if first >= 0:
                used += sum(self.residues[first:last])
            else:
                used += sum(self.residues[:last]) + sum(self.residues[first:])
        return used

    def enter(self, sequence: int, tokens: int) -> None:
        """Let a sequence run whose `tokens` tokens are cached and have given one token more."""
        offset = tokens - self.step
        self.done_tokens[sequence] += 1
        end = self.step + self.responses[sequence] - self.done_tokens[sequence]
        self.running[sequence] = end
        self.offset[sequence] = offset
        self.offset_sum += offset
        self.used += -(-tokens // self.block) + self.held
        self.residues[offset % self.block] += 1
        heapq.heappush(self.ends, (end, sequence))

    def leave(self, sequence: int) -> None:
        """Take a sequence out and free its blocks."""
        del self.running[sequence]
        offset = self.offset.pop(sequence)
        self.offset_sum -= offset
        self.used -= -(-(offset + self.step) // self.block) + self.held
        self.residues[offset % self.block] -= 1
        self.closed = False

    def lacks_blocks(self) -> bool:
        """Tell whether the next step of all running sequences does not fit."""
        return self.used + self.residues[-self.step % self.block] > self.capacity

    def jump(self, most: int | None = None) -> None:
        """Decode until the next completion, until blocks run out, or for `most` steps."""
        running = len(self.running)
        ends = self.ends
        end, sequence = ends[0]
        while self.running.get(sequence) != end:
            heapq.heappop(ends)
            end, sequence = ends[0]
        steps = end - self.step if most is None else min(end - self.step, most)
        used = self.used_after(steps)
        if used > self.capacity:
            steps, used = self._steps_that_fit()
        first = self.step + self.offset_sum / running
        self.decode += self.run_seconds(running, first, steps)
        self.step += steps
        self.used = used
        self.jumps += 1
        self.peak_blocks = max(self.peak_blocks, used)
        if end == self.step:
            self.complete()

    def _steps_that_fit(self) -> tuple[int, int]:
        """Return the most steps after which the running sequences still fit, and their blocks then.

        One step does fit.
        """
        # Every `block` steps each sequence takes one block.
        rounds, left = divmod(self.capacity - self.used, len(self.running))
        steps = rounds * self.block
        at = -self.step % self.block
        while (taken := self.residues[at]) <= left:
            left -= taken
            steps += 1
            at -= 1
        return steps, self.capacity - left

    def preempt(self) -> None:
        """Throw out the latest sequences, to the head of the queue, until one step fits."""
        needed = self.used_next()
        while needed > self.capacity:
            sequence, end = next(reversed(self.running.items()))
            needed -= -(-(self.offset[sequence] + self.step + 1) // self.block) + self.held
            self.done_tokens[sequence] = self.responses[sequence] - (end - self.step)
            self.leave(sequence)
            self.waiting.appendleft(sequence)
            self.preemptions += 1
        self.closed = True

    def complete(self) -> None:
        """Take out the sequences that have ended."""
        while self.ends and self.ends[0][0] <= self.step:
            end, sequence = heapq.heappop(self.ends)
            if self.running.get(sequence) == end:
                self.leave(sequence)
                self.note_end(sequence)

    def note_end(self, sequence: int) -> None:
        """Remember when a sequence ended."""
        self.finish[sequence] = self.now

    def note_peaks(self) -> None:
        """Remember how many sequences and blocks were held at most."""
        self.peak_running = max(self.peak_running, len(self.running))
        self.peak_blocks = max(self.peak_blocks, self.used)
