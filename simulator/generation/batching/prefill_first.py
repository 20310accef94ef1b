"""Continuous batching whose prefills go before decode steps and never share one."""

from rlplan.simulator.generation.batching.running import DecodeSteps, RunningSet
from rlplan.simulator.generation.replica import blocks_of, prefill_passes


class PrefillFirst(RunningSet):
    """Admit what fits whenever a sequence has ended, and prefill it before the others go on."""

    def turn(self, most: int | None = None) -> DecodeSteps | None:
        """Prefill newcomers; where there are none, return the decode steps that come next."""
        if not self.closed and (admitted := self._admit()):
            self.prefill += prefill_passes(self.replica, admitted)
            self.note_peaks()
            self.complete()
            return None
        if self.lacks_blocks():
            self.preempt()
        return self.next_jump(most)

    def cached_tokens(self, sequence: int) -> int:
        """Return the tokens of a waiting sequence that need no prefill."""
        del sequence
        return 0

    def _admit(self) -> list[int]:
        """Move sequences from the head of the queue into the running set while they fit.

        Returns:
            The tokens that each of them prefills.
        """
        self.closed = True
        free = self.replica.max_running - len(self.running)
        admitted: list[int] = []
        while self.waiting and len(admitted) < free:
            sequence = self.waiting[0]
            tokens = self.prompts[sequence] + self.done_tokens[sequence]
            if self.used + blocks_of(tokens, self.block) + self.held > self.capacity:
                break
            self.waiting.popleft()
            admitted.append(tokens - self.cached_tokens(sequence))
            self.enter(sequence, tokens)
        return admitted
