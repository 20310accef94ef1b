"""What the sequences of one generation replica ask for, all together and by how many run side by side."""

import heapq
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from rlplan.simulator.placed.columns import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Contexts:
    """Hold how long the contexts are in which tokens are given, and how long responses are.

    Attributes:
        responses: Their tokens, in the order in which they begin.
        longest: Tokens of the k longest responses, for k = 0, 1, ... Shape (sequences + 1,).
        below: Tokens that are given with fewer than so many tokens cached. Shape (longest context + 2,).
        cached_below: What is cached when they are given, summed over them. Shape as `below`.
        in_turn: Whether all are there from the start, so that they begin in turn and hold their slots.
    """

    responses: tuple[int, ...]
    longest: Floats
    below: Floats
    cached_below: Floats
    in_turn: bool = True

    def side_by_side(self, running: Floats) -> Floats:
        """Return tokens, summed over steps, that steps give at least to so many sequences each.

        A step gives a sequence one token, so the k longest responses take k places of as many steps as
        they have tokens, whenever they run: sum over steps of min(sequences, k) >= their tokens.
        """
        return np.asarray(np.interp(running, np.arange(len(self.longest)), self.longest))

    def in_cache(self, running: Floats, cache_tokens: Floats) -> Floats:
        """Return the same of a cache of so many tokens, which all sequences of a step fit into.

        Of a step's sequences with m cached tokens each, sum of min(1, k m / cache) <= min(sequences, k):
        the left side is at most their number, and at most k.

        Args:
            running: k; shape (numbers,).
            cache_tokens: Shape (caches,).

        Returns:
            Shape (caches, numbers).
        """
        share = cache_tokens[:, None] / np.maximum(running, 1e-9)
        place = np.minimum(np.ceil(share), len(self.below) - 1).astype(np.int64)
        few = self.cached_below[place] / np.maximum(share, 1e-9)
        return np.asarray(few + self.below[-1] - self.below[place])


@lru_cache(maxsize=4096)
def steps_in_turn(contexts: Contexts, running: int) -> int:
    """Return steps that no schedule undercuts which begins sequences in turn, so many at a time at most.

    A sequence first begins when fewer than `running` of those before it have not ended: who is thrown out
    waits before all who have not begun. So none ends earlier than where nothing else holds it up. Where
    sequences come by and by, all that holds is that a step gives each one token, and `running` at most.
    """
    responses = contexts.responses
    if not contexts.in_turn:
        return max(*responses, -(-sum(responses) // running))
    ends = list(responses[:running])
    if len(responses) > running:
        heapq.heapify(ends)
        for tokens in responses[running:]:
            heapq.heapreplace(ends, ends[0] + tokens)
    return max(ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Hold what the sequences of one replica ask for, all together.

    Attributes:
        prompt_tokens: That are computed once at least.
        shortest_prompt_tokens: The same of a sequence.
        steps: Steps that the longest response takes.
        decoded_tokens: Tokens that decode steps give.
        cached_tokens: Cached tokens that these read, summed over steps.
    """

    contexts: Contexts = field(compare=False, repr=False)

    sequences: int
    prompt_tokens: int
    shortest_prompt_tokens: int
    longest_prompt_tokens: int
    longest_tokens: int
    steps: int
    decoded_tokens: int
    cached_tokens: float


def least_steps(load: Load, running: int, *, endless: bool = False) -> float:
    """Return steps that no schedule of a load undercuts with so many running.

    Args:
        endless: Whether sequences of other loads run beside its own: a step then only gives as many tokens.
    """
    if endless:
        return (load.decoded_tokens + load.sequences) / running
    return float(steps_in_turn(load.contexts, running))


def load_of(
    prompts: tuple[int, ...], responses: tuple[int, ...], samples: int = 1, block_tokens: int = 1
) -> Load:
    """Return the load of a replica's sequences.

    Args:
        samples: Sequences in a row that have one prompt, of which all but the first find whole blocks of it in
            the cache.
    """
    prompt, response = np.array(prompts), np.array(responses)
    known = np.arange(len(prompt)) % samples > 0
    computed = np.where(known, (prompt - 1) % block_tokens + 1, prompt)
    decoded = response - 1
    # A sequence's k-th decode step reads its prompt and k - 1 tokens more.
    cached = decoded * prompt + decoded * (decoded - 1) / 2
    return Load(
        sequences=len(prompts),
        prompt_tokens=int(computed.sum()),
        shortest_prompt_tokens=int(computed.min()),
        longest_prompt_tokens=int(prompt.max()),
        longest_tokens=int((prompt + response).max()),
        steps=int(response.max()),
        decoded_tokens=int(decoded.sum()),
        cached_tokens=float(cached.sum()),
        contexts=_contexts(prompt, response),
    )


def _contexts(prompts: Ints, responses: Ints) -> Contexts:
    # A sequence's k-th token is given with its prompt and k - 1 tokens more in the cache.
    most = int((prompts + responses).max()) + 1
    begun = np.bincount(prompts, minlength=most)
    ended = np.bincount(prompts + responses, minlength=most)
    given = np.cumsum(begun - ended).astype(np.float64)
    cached = given * np.arange(most)
    return Contexts(
        responses=tuple(responses.tolist()),
        longest=np.concatenate([[0.0], np.cumsum(np.sort(responses)[::-1])]),
        below=np.concatenate([[0.0], np.cumsum(given)]),
        cached_below=np.concatenate([[0.0], np.cumsum(cached)]),
    )
