"""Replicas that read prompts for others (prefill apart from decode), as SGLang's and vLLM's disaggregated engines do.

A prompt waits for a replica that reads, which computes what it has not read before and hands the whole cache of the context
over the network to the replica that writes; that one computes none of it, and its steps are decode steps alone. What a
replica that reads keeps is its own: prompts and contexts as it has read them, without the tokens that were written elsewhere,
which it computes on the next turn (SGLang, disaggregation/prefill.py and decode.py: caches go from prefill to decode alone;
decode servers keep no prefixes).

Each replica that writes has its share of those that read; prompts are read one behind another, in passes that are full where
others wait. What is left out: routers that send a turn to another replica than the one that knows its context, caches that are
sent layer by layer while others are computed, and links that are shared with others.
"""

import math
from collections import OrderedDict
from typing import Literal

from rlplan.simulator.environments import HostShare, InstanceSlots
from rlplan.simulator.generation.replica import Chunks, Replica, blocks_of

# What a job without environments is played with: nothing holds a core or waits for an instance.
NO_ENVIRONMENTS = HostShare(
    cores=0.0,
    seats=(
        InstanceSlots(
            cores=0.0,
            workers=math.inf,
            slowdown=1.0,
            instances=math.inf,
            sharing=1.0,
            limit_seconds=math.inf,
        ),
    ),
)


class PrefillQueue:
    """Read contexts one behind another on a replica's share of those that read."""

    def __init__(self, replica: Replica) -> None:
        assert replica.prefillers is not None, "asked of replicas that others read for"
        self.replica, self.own = replica, replica.prefillers
        self.free_seconds = 0.0  # when the next context may begin
        # Tokens that were read, of a prompt (for all of its samples) or of an episode with its prompt; the oldest first.
        self.kept: OrderedDict[tuple[Literal["prompt", "episode"], int], int] = OrderedDict()
        self.used = 0  # blocks

    def read(self, number: int, prompt: int, context: int, now: float, *, first: bool) -> float:
        """Read a context of an episode; return when its cache has come.

        Args:
            first: Whether it is a prompt alone.
        """
        known = max(self.kept.get(("episode", number), 0), self.kept.get(("prompt", prompt), 0))
        known = min(known, context - 1) // self.replica.block_tokens * self.replica.block_tokens
        begun = max(self.free_seconds, now)
        seconds = self._computing(context - known, known, waited=begun > now)
        moving = context * self.own.token_seconds + self.own.fixed_seconds
        # The link and the GPUs work at the same time, on different contexts.
        self.free_seconds = begun + max(seconds, moving) / self.own.share
        self._keep(("prompt", prompt) if first else ("episode", number), context)
        return begun + seconds / min(1.0, self.own.share) + moving

    def forget(self) -> None:
        """Forget all that was read: weights are new."""
        self.kept.clear()
        self.used = 0

    def _computing(self, tokens: int, known: int, *, waited: bool) -> float:
        """Return seconds of computing so many tokens behind known ones; where others wait, its share of a full pass."""
        most, seconds = self.replica.max_batched_tokens, 0.0
        while tokens > 0:
            part = min(tokens, most)
            together = max(1, most // part) if waited else 1
            seconds += self.replica.mixed_seconds(0, 0.0, Chunks(together, part, known)) / together
            tokens, known = tokens - part, known + part
        return seconds

    def _keep(self, key: tuple[Literal["prompt", "episode"], int], context: int) -> None:
        """Keep a context until there is no room for it; what was read longest ago goes first."""
        block = self.replica.block_tokens
        self.used += blocks_of(context, block) - blocks_of(self.kept.pop(key, 0), block)
        self.kept[key] = context
        while self.used > self.own.blocks and len(self.kept) > 1:
            _, tokens = self.kept.popitem(last=False)
            self.used -= blocks_of(tokens, block)
