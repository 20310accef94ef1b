"""Generation whose steps mix decoding with the prefill of newcomers, as engines do since 2024.

A step decodes one token of every running sequence, and with the tokens that its budget leaves it
prefills waiting prompts: in chunks (vLLM's V1 scheduler) or whole (TensorRT-LLM's in-flight
batching, TurboMind). Steps with prefill are played one by one; the decode steps between them go in
jumps.
"""

from dataclasses import dataclass, field

from simulator.replica import Chunks, Generated, Replica, blocks_of
from simulator.running import RunningSet


def play_mixed(replica: Replica, prompts: list[int], responses: list[int]) -> Generated:
    """Play `mixed` batching, in seconds."""
    state = _Reserving if replica.reserves_whole else _Growing
    return state(replica, prompts, responses).play()


@dataclass(slots=True)
class _Taken:
    """Hold the prompt tokens that one step computes."""

    chunks: int = 0
    tokens: int = 0
    pairs: float = 0.0  # (query, key) pairs of their attention
    complete: list[tuple[int, int]] = field(default_factory=list)  # (sequence, its tokens)

    def add(self, computed: int, tokens: int) -> None:
        self.chunks += 1
        self.tokens += tokens
        self.pairs += tokens * (computed + tokens / 2)


class _Growing(RunningSet):
    """Give sequences blocks as they grow, and preempt the latest when blocks run out.

    At most one sequence is prefilled in part: it has used the step's budget up, stands last among
    the running, and keeps its blocks.
    """

    def __init__(self, replica: Replica, prompts: list[int], responses: list[int]) -> None:
        super().__init__(replica, prompts, responses)
        self.part: tuple[int, int] | None = None  # sequence and its computed tokens
        self.part_blocks = 0
        self.budget = replica.max_batched_tokens

    def play(self) -> Generated:
        """Run until every sequence has ended."""
        while self.waiting or self.running or self.part:
            if self.part is None and (self.closed or not self._begins()):
                self.closed = True
                if self.lacks_blocks():
                    self.preempt()
                self.jump()
                continue
            preempted = self._make_room()
            taken = _Taken()
            if not self._continue_part(taken):
                preempted = True
            if not preempted:
                self._admit(taken)
            if taken.chunks:
                self._mixed_step(taken)
            elif self.running:
                # The scheduler admits nobody in the step in which it throws out, but in the next.
                self.jump(1 if preempted else None)
        return self.outcome()

    def _begins(self) -> bool:
        """Tell whether the first in the queue has a slot and blocks; if not, it waits for an end."""
        if not self.waiting or len(self.running) >= self.replica.max_running:
            return False
        sequence = self.waiting[0]
        total = self.prompts[sequence] + self.done_tokens[sequence]
        return self.used_next() + self.needed_blocks(sequence, total) <= self.capacity

    def needed_blocks(self, sequence: int, tokens: int) -> int:
        """Return the blocks that a sequence takes when its first `tokens` tokens are computed."""
        del sequence
        return blocks_of(tokens, self.block)

    def _make_room(self) -> bool:
        """Throw out the latest sequences until the running ones can decode; tell whether any was."""
        if not self.lacks_blocks():
            return False
        if self.part:
            self._drop_part()
            if not self.lacks_blocks():
                return True
        self.preempt()
        return True

    def _drop_part(self) -> None:
        assert self.part is not None
        self.waiting.appendleft(self.part[0])
        self._free_part()
        self.preemptions += 1

    def _free_part(self) -> None:
        self.capacity += self.part_blocks
        self.part, self.part_blocks = None, 0

    def _continue_part(self, taken: _Taken) -> bool:
        """Compute the next chunk of the sequence in part; False if its blocks ran out."""
        if self.part is None:
            return True
        sequence, computed = self.part
        total = self.prompts[sequence] + self.done_tokens[sequence]
        tokens = min(total - computed, self.budget - len(self.running))
        self.capacity += self.part_blocks
        self.part_blocks = 0
        if self.used_next() + self.needed_blocks(sequence, computed + tokens) > self.capacity:
            self._drop_part()
            return False
        self._take(taken, sequence, computed, tokens, total)
        return True

    def _admit(self, taken: _Taken) -> None:
        """Begin with waiting sequences while slots, blocks and the step's budget last."""
        if self.part is not None:
            return
        used = self.used_next() + sum(self.needed_blocks(*each) for each in taken.complete)
        held = len(self.running) + len(taken.complete)
        left = self.budget - len(self.running) - taken.tokens
        while self.waiting and held < self.replica.max_running:
            sequence = self.waiting[0]
            tokens = total = self.prompts[sequence] + self.done_tokens[sequence]
            # A prompt begins only when all of it fits, though it takes blocks chunk by chunk.
            needed = self.needed_blocks(sequence, total)
            if used + needed > self.capacity:
                break
            if tokens > left:
                if self.replica.chunked_prefill:
                    tokens = left
                elif held:
                    break  # a prompt longer than the whole budget waits until it is alone
            if tokens <= 0:
                break
            self.waiting.popleft()
            self._take(taken, sequence, 0, tokens, total)
            if tokens < total:
                break
            used += needed
            held += 1
            left -= tokens

    def _take(self, taken: _Taken, sequence: int, computed: int, tokens: int, total: int) -> None:
        taken.add(computed, tokens)
        if computed + tokens == total:
            self.part = None
            taken.complete.append((sequence, total))
            return
        self.part = (sequence, computed + tokens)
        self.part_blocks = self.needed_blocks(sequence, computed + tokens)
        self.capacity -= self.part_blocks

    def _mixed_step(self, taken: _Taken) -> None:
        running = len(self.running)
        cached = self.step + self.offset_sum / running if running else 0.0
        mean = taken.tokens / taken.chunks
        chunks = Chunks(taken.chunks, mean, taken.pairs / taken.tokens - mean / 2)
        together = self.replica.mixed_seconds(running, cached, chunks)
        # The time that the step would have taken without newcomers counts as decoding.
        alone = self.replica.decode_seconds(running, cached) if running else 0.0
        alone = min(alone, together)
        self.decode += alone
        self.prefill += together - alone
        if running:
            self.used = self.used_next()
        self.step += 1
        for sequence, tokens in taken.complete:
            self.enter(sequence, tokens)
        self.note_peaks()
        self.complete()

    def note_peaks(self) -> None:
        """Remember how many sequences and blocks were held at most, the one in part included."""
        part = self.part is not None
        self.peak_running = max(self.peak_running, len(self.running) + part)
        self.peak_blocks = max(self.peak_blocks, self.used + self.part_blocks)


class _Reserving(_Growing):
    """Give a sequence all the blocks that it can ever need on admission; nothing is preempted."""

    def __init__(self, replica: Replica, prompts: list[int], responses: list[int]) -> None:
        super().__init__(replica, prompts, responses)
        self.growth = 0

    def needed_blocks(self, sequence: int, tokens: int) -> int:
        """Return the blocks of a whole sequence, prompt and response."""
        del tokens
        whole = self.prompts[sequence] + self.responses[sequence] - 1
        return blocks_of(whole, self.block)

    def enter(self, sequence: int, tokens: int) -> None:
        """Let a sequence run with all its blocks."""
        used = self.used
        super().enter(sequence, tokens)
        self.residues[self.offset[sequence] % self.block] -= 1
        self.used = used + self.needed_blocks(sequence, tokens)

    def leave(self, sequence: int) -> None:
        """Take a sequence out and free all its blocks."""
        used = self.used
        self.residues[self.offset[sequence] % self.block] += 1
        super().leave(sequence)
        self.used = used - self.needed_blocks(sequence, 0)
