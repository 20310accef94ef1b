"""Continuous batching: steps mix decoding with the prefill of newcomers, as engines do since 2024, or prefills go first.

A mixed step decodes one token of every running sequence, and with the tokens that its budget leaves it
prefills waiting prompts: in chunks (vLLM's V1 scheduler) or whole (TensorRT-LLM's in-flight
batching, TurboMind). Steps with prefill are played one by one; the decode steps between them go in
jumps.
"""

from rlplan.simulator.generation.batching.running import DecodeSteps, RunningSet
from rlplan.simulator.generation.replica import Chunks, Replica, blocks_of


def mixed_set(
    replica: Replica, prompts: list[int], responses: list[int], longest_tokens: int | None = None
) -> RunningSet:
    """Return the sequences of a replica that batches `mixed`."""
    state = ReservingSet if replica.reserves_whole else PagedSet
    return state(replica, prompts, responses, longest_tokens)


class PrefillTokens:
    """Hold the prompt tokens that one step computes."""

    __slots__ = ("chunks", "complete", "computed", "pairs", "tokens")

    def __init__(self) -> None:
        self.chunks = self.tokens = self.computed = 0
        self.pairs = 0.0  # (query, key) pairs of their attention
        self.complete: list[tuple[int, int]] = []  # (sequence, its tokens)

    def add(self, computed: int, tokens: int) -> None:
        """Add tokens of a prompt behind those that are computed already."""
        self.chunks += 1
        self.tokens += tokens
        self.computed += computed
        self.pairs += tokens * (computed + tokens / 2)

    @property
    def of_mean(self) -> Chunks:
        """Return as many prompts of the mean of their tokens, whose attention has as many pairs."""
        mean = self.tokens / self.chunks
        return Chunks(self.chunks, mean, self.pairs / self.tokens - mean / 2)


class PagedSet(RunningSet):
    """Allocate KV blocks to sequences as they grow (paged attention), and preempt the latest when blocks run out.

    At most one sequence is prefilled in part: it has used the step's budget up, stands last among
    the running, and keeps its blocks.
    """

    part: tuple[int, int] | None = None  # sequence and its computed tokens
    part_blocks = 0

    @property
    def busy(self) -> bool:
        """Tell whether there are sequences to compute."""
        return bool(self.waiting or self.running or self.part)

    def withdraw(self, sequence: int) -> int:
        """Take a sequence out before its end; return the tokens of its response that were made."""
        if self.part is not None and self.part[0] == sequence:
            self._drop_part()
        return super().withdraw(sequence)

    def restart(self) -> int:
        """Throw all running sequences out, to be computed again first; return the tokens that they had."""
        computed = 0
        if self.part is not None:
            computed = self.part[1]
            self._drop_part()
        return computed + super().restart()

    def turn(self, most: int | None = None) -> DecodeSteps | None:
        """Take a step with prompts; where there are none, return the decode steps that come next."""
        preempted = False
        taken = PrefillTokens()
        if self.part is not None:
            preempted = self._make_room() or not self._continue_part(taken)
        if self.part is None and not self.closed and not preempted:
            self._admit(taken)
        if taken.chunks:
            self._mixed_step(taken)
            return None
        if not self.running:
            return None
        if self.lacks_blocks():
            self.preempt()
        # The scheduler admits nobody in the step in which it throws out, but in the next.
        return self.next_jump(1 if preempted else most)

    def needed_blocks(self, sequence: int, tokens: int) -> int:
        """Return the blocks that a sequence takes when its first `tokens` tokens are computed."""
        del sequence
        return -(-tokens // self.block) + self.held

    def _make_room(self) -> bool:
        """Throw out the sequence in part, then the latest, until the running ones can decode."""
        if not self.lacks_blocks():
            return False
        self._drop_part()
        if self.lacks_blocks():
            self.preempt()
        return True

    def _drop_part(self) -> None:
        assert self.part is not None
        self.waiting.appendleft(self.part[0])
        self.capacity += self.part_blocks
        self.part, self.part_blocks = None, 0
        self.preemptions += 1

    def _continue_part(self, taken: PrefillTokens) -> bool:
        """Compute the next chunk of the sequence in part; False if its blocks ran out."""
        if self.part is None:
            return True
        sequence, computed = self.part
        total = self.prompts[sequence] + self.done_tokens[sequence]
        tokens = min(total - computed, self.replica.max_batched_tokens - len(self.running))
        self.capacity += self.part_blocks
        self.part_blocks = 0
        if self.used_next() + self.needed_blocks(sequence, computed + tokens) > self.capacity:
            self._drop_part()
            return False
        self.take(taken, sequence, computed, tokens, total)
        return True

    def _admit(self, taken: PrefillTokens) -> None:
        """Begin with waiting sequences while slots, blocks and the step's budget last."""
        free = self.capacity - self.used_next()
        for each in taken.complete:
            free -= self.needed_blocks(*each)
        running = len(self.running)
        held = running + len(taken.complete)
        left = self.replica.max_batched_tokens - running - taken.tokens
        waiting, prompts, done = self.waiting, self.prompts, self.done_tokens
        while waiting and held < self.max_running:
            sequence = waiting[0]
            tokens = total = prompts[sequence] + done[sequence]
            # A prompt begins only when all of it fits, though it takes blocks chunk by chunk.
            needed = self.needed_blocks(sequence, total)
            if needed > free:
                break
            computed = self.cached_tokens(sequence)
            tokens -= computed
            if tokens > left:
                if self.replica.chunked_prefill:
                    tokens = left
                elif held:
                    return  # a prompt longer than the whole budget waits until it is alone
            if tokens <= 0:
                return
            waiting.popleft()
            self.take(taken, sequence, computed, tokens, total)
            if computed + tokens < total:
                return
            free -= needed
            held += 1
            left -= tokens
        # Slots, blocks or the queue are used up: so they stay until a sequence ends.
        self.closed = True

    def take(
        self, taken: PrefillTokens, sequence: int, computed: int, tokens: int, total: int
    ) -> None:
        """Compute a chunk of a sequence in a step.

        Args:
            computed: Tokens of it that are cached already.
            total: Tokens after which it decodes.
        """
        taken.add(computed, tokens)
        if computed + tokens == total:
            self.part = None
            taken.complete.append((sequence, total))
            return
        self.part = (sequence, computed + tokens)
        self.part_blocks = self.needed_blocks(sequence, computed + tokens)
        self.capacity -= self.part_blocks

    def _mixed_step(self, taken: PrefillTokens) -> None:
        running = len(self.running)
        cached = self.step + self.offset_sum / running if running else 0.0
        together = self.replica.mixed_seconds(running, cached, taken.of_mean)
        # The time that the step would have taken without newcomers counts as decoding.
        alone = self.run_seconds(running, cached, 1) if running else 0.0
        alone = min(alone, together)
        self.decode += alone
        self.prefill += together - alone
        if running:
            self.used = self.used_next()
        self.step += 1
        for sequence, tokens in taken.complete:
            self.enter(sequence, tokens)
        self.note_peaks()
        if self.ends and self.ends[0][0] <= self.step:
            self.complete()

    def note_peaks(self) -> None:
        """Remember how many sequences and blocks were held at most, the one in part included."""
        held = len(self.running) + (self.part is not None)
        self.peak_running = max(self.peak_running, held)
        self.peak_blocks = max(self.peak_blocks, self.used + self.part_blocks)


class ReservingSet(PagedSet):
    """Give a sequence all the blocks that it can ever need on admission; nothing is preempted."""

    growth = 0

    def needed_blocks(self, sequence: int, tokens: int) -> int:
        """Return the blocks of the whole sequence, however many of its tokens are computed."""
        del tokens
        return (
            blocks_of(self.prompts[sequence] + self.responses[sequence] - 1, self.block) + self.held
        )

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


# Prefills that go before decode steps and never share one.


class PrefillFirst(RunningSet):
    """Admit what fits whenever a sequence has ended, and prefill it before the others go on."""

    def turn(self, most: int | None = None) -> DecodeSteps | None:
        """Prefill newcomers; where there are none, return the decode steps that come next."""
        if not self.closed and (admitted := self._admit()):
            self.prefill += self._prefilling(admitted)
            self.note_peaks()
            self.complete()
            return None
        if self.lacks_blocks():
            self.preempt()
        return self.next_jump(most)

    def _admit(self) -> list[tuple[int, int]]:
        """Move sequences from the head of the queue into the running set while they fit.

        Returns:
            Of each of them the tokens that lie in the cache, and those that are prefilled.
        """
        self.closed = True
        free = self.replica.max_running - len(self.running)
        admitted: list[tuple[int, int]] = []
        while self.waiting and len(admitted) < free:
            sequence = self.waiting[0]
            tokens = self.prompts[sequence] + self.done_tokens[sequence]
            if self.used + blocks_of(tokens, self.block) + self.held > self.capacity:
                break
            self.waiting.popleft()
            cached = self.cached_tokens(sequence)
            admitted.append((cached, tokens - cached))
            self.enter(sequence, tokens)
        return admitted

    def _prefilling(self, admitted: list[tuple[int, int]]) -> float:
        """Return the seconds of prefilling what was admitted in order, in passes of `max_batched_tokens`.

        What lies in the cache as a whole, its first token with it, needs no pass.
        """
        seconds, taken = 0.0, PrefillTokens()
        for cached, tokens in admitted:
            if not tokens:
                continue
            if taken.chunks and taken.tokens + tokens > self.replica.max_batched_tokens:
                seconds += self._pass_seconds(taken)
                taken = PrefillTokens()
            taken.add(cached, tokens)
        return seconds + self._pass_seconds(taken)

    def _pass_seconds(self, taken: PrefillTokens) -> float:
        """Return the seconds of one pass; what it finds in the cache is attended to."""
        if not taken.chunks:
            return 0.0
        chunks = taken.of_mean
        if not taken.computed:
            return self.replica.prefill_seconds(chunks.parts, chunks.tokens)
        return self.replica.mixed_seconds(0, 0.0, chunks)
