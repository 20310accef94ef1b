"""Sequences that arrive at a replica while it generates."""

from dataclasses import replace

from rlplan.simulator.generation.batching.joining import Calls, JoiningSet
from rlplan.simulator.generation.batching.mixed_steps import mixed_set
from rlplan.simulator.generation.batching.prefill_first import PrefillFirst
from rlplan.simulator.generation.batching.running import RunningSet
from rlplan.simulator.generation.playing import generate
from rlplan.simulator.generation.replica import Replica


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
