"""The sequences that a generation replica runs, advanced by whole jumps of decode steps."""

import heapq
import math
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import NamedTuple

from rlplan.simulator.generation.replica import Generated, Replica, blocks_of, run_seconds


class DecodeSteps(NamedTuple):
    """Describe decode steps of all running sequences that are about to be taken.

    Attributes:
        used: Blocks held after them.
    """

    steps: int
    used: int
    seconds: float


class RunningSet(ABC):
    """Keep the running and waiting sequences of a replica, and the blocks they hold.

    `step` counts decode steps. A running sequence is kept as its offset (cached tokens - step),
    constant while it runs, so that advancing all of them is advancing one counter. A sequence takes
    a block for its next token when its cached tokens fill their blocks, which the offsets' residues
    by block size tell for any later step. Sequences may arrive and be withdrawn while others run.

    Args:
        longest_tokens: Longest sequence that will ever arrive, where not all are here from the start.

    Attributes:
        held: Blocks that each running sequence has beside those of its tokens.
        ended: Sequences that have ended, in that order; for the caller to empty.
        closed: Whether no waiting sequence can be admitted until a running one ends: blocks in use
            only grow until then. So it is after a preemption too, since the last one thrown out,
            first in the queue, wants as many blocks as the step was short of without it.
        idle: Seconds in which there was nothing to compute.
    """

    growth = 1  # blocks that a sequence takes for `block` tokens more

    def __init__(
        self,
        replica: Replica,
        prompts: list[int],
        responses: list[int],
        longest_tokens: int | None = None,
    ) -> None:
        self.replica, self.prompts, self.responses = replica, prompts, responses
        self.run_seconds = replica.decode_run or partial(run_seconds, replica.decode_seconds)
        self.block, self.max_running = replica.block_tokens, replica.max_running
        longest = longest_tokens or max(p + r - 1 for p, r in zip(prompts, responses, strict=True))
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
        self.closed = False
        self.step = self.jumps = self.preemptions = self.peak_running = self.peak_blocks = 0
        self.prefill = self.decode = self.idle = 0.0
        self.finish = [0.0] * len(prompts)
        self.ended: list[int] = []

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

    def advance(self, most: int | None = None) -> None:
        """Do what comes next: a prefill or a step with prompts, or decode steps, `most` of them at most."""
        jump = self.turn(most)
        if jump is not None:
            self.follow(jump)

    @abstractmethod
    def turn(self, most: int | None = None) -> DecodeSteps | None:
        """Do a prefill or a step with prompts; where none comes next, return the decode steps that do."""

    def arrive(self, prompt: int, response: int) -> int:
        """Let a sequence wait behind all others; return its number."""
        self.prompts.append(prompt)
        self.responses.append(response)
        self.done_tokens.append(0)
        self.finish.append(0.0)
        self.waiting.append(len(self.prompts) - 1)
        self.closed = False
        return len(self.prompts) - 1

    def go_on(self, prompt: int, response: int, made: int) -> int:
        """Let a sequence wait of whose response another replica made so many tokens; return its number."""
        sequence = self.arrive(prompt, response)
        self.done_tokens[sequence] = made
        return sequence

    def withdraw(self, sequence: int) -> int:
        """Take a sequence out before its end; return the tokens of its response that were made."""
        if sequence in self.running:
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)
        self.closed = False
        return self.done_tokens[sequence]

    def restart(self) -> int:
        """Throw all running sequences out, to be computed again first; return the tokens that they had."""
        tokens = 0
        for sequence in reversed(list(self.running)):
            tokens += self.offset[sequence] + self.step
            self._stop(sequence)
            self.waiting.appendleft(sequence)
        self.closed = False
        return tokens

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

    def cached_tokens(self, sequence: int) -> int:
        """Return the tokens of its prompt that an earlier sample of it computed: whole blocks, never the last token.

        What was preempted is computed again: the cache was full.
        """
        if sequence % self.replica.prompt_samples == 0 or self.done_tokens[sequence]:
            return 0
        return (self.prompts[sequence] - 1) // self.block * self.block

    def enter(self, sequence: int, tokens: int) -> None:
        """Let a sequence run whose `tokens` tokens are cached and have given one token more."""
        step, done = self.step, self.done_tokens[sequence] + 1
        offset = tokens - step
        self.done_tokens[sequence] = done
        end = step + self.responses[sequence] - done
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

    def next_jump(self, most: int | None = None) -> DecodeSteps:
        """Return the steps until the next completion, until blocks run out, or `most` of them."""
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
        return DecodeSteps(steps, used, self.run_seconds(running, first, steps))

    def part_of(self, jump: DecodeSteps, seconds: float) -> DecodeSteps:
        """Return the steps of a jump that begin before so many seconds of it, one at least.

        Steps are nearly equally long, so few chords find the last of them.
        """
        running, first = len(self.running), self.step + self.offset_sum / len(self.running)
        low, high, high_seconds, low_seconds = 0, jump.steps, jump.seconds, 0.0
        while high - low > 1:
            share = (seconds - low_seconds) / (high_seconds - low_seconds)
            middle = min(high - 1, max(low + 1, math.ceil(low + share * (high - low))))
            middle_seconds = self.run_seconds(running, first, middle)
            if middle_seconds >= seconds:
                high, high_seconds = middle, middle_seconds
                if middle - 1 == low or self.run_seconds(running, first, middle - 1) < seconds:
                    break
            else:
                low, low_seconds = middle, middle_seconds
        return DecodeSteps(high, self.used_after(high), high_seconds)

    def follow(self, jump: DecodeSteps) -> None:
        """Decode for the steps of a jump."""
        self.decode += jump.seconds
        self.step += jump.steps
        self.used = jump.used
        self.jumps += 1
        self.peak_blocks = max(self.peak_blocks, jump.used)
        if self.ends[0][0] <= self.step:
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
            sequence = next(reversed(self.running))
            needed -= -(-(self.offset[sequence] + self.step + 1) // self.block) + self.held
            self._stop(sequence)
            self.waiting.appendleft(sequence)
            self.preemptions += 1
        self.closed = True

    def _stop(self, sequence: int) -> None:
        """Take a running sequence out, and remember how many tokens it has."""
        left = self.running[sequence] - self.step
        self.done_tokens[sequence] = self.responses[sequence] - left
        self.leave(sequence)

    def complete(self) -> None:
        """Take out the sequences that have ended."""
        ends, running, step = self.ends, self.running, self.step
        while ends and ends[0][0] <= step:
            end, sequence = heapq.heappop(ends)
            if running.get(sequence) == end:
                self.leave(sequence)
                self.note_end(sequence)

    def note_end(self, sequence: int) -> None:
        """Remember when a sequence ended."""
        self.finish[sequence] = self.now
        self.ended.append(sequence)

    def note_peaks(self) -> None:
        """Remember how many sequences and blocks were held at most."""
        self.peak_running = max(self.peak_running, len(self.running))
        self.peak_blocks = max(self.peak_blocks, self.used)
