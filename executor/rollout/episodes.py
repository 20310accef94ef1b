"""Episodes of several turns: what each sequence holds so far, and the next turn's wave."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from executor.data.batches import OBSERVATION, PADDING, PROMPT, RESPONSE, Array, left_padded
from executor.data.workload import most_observed_tokens
from executor.rollout.sampling import Sequences
from rlplan.workload.environment import Environment
from rlplan.workload.lengths import sample_lengths

# Seeds of turns lie apart from those of response lengths, which count iterations.
TURNS_SEED = 2**31


@dataclass(frozen=True, slots=True)
class Wave:
    """Hold the episodes that answer in a turn, left-padded as prompts are.

    Attributes:
        episodes: Their places. Shape (N,).
        tokens: All that they hold so far. Shape (N, P).
        present: Where there are tokens. Shape (N, P).
        lengths: Most tokens of each answer. Shape (N,).
    """

    episodes: Array
    tokens: Array
    present: Array
    lengths: Array


class Episodes:
    """Keep episodes from turn to turn.

    What is left of an episode's tokens is shared out evenly over the turns that are left.

    Args:
        prompts: Left-padded prompts. Shape (B, P).
        present: Where they have tokens. Shape (B, P).
        budgets: Most tokens that the model generates in all turns of each. Shape (B,).
        turns: Most turns of each. Shape (B,).
    """

    def __init__(self, prompts: Array, present: Array, budgets: Array, turns: Array) -> None:
        self._width = prompts.shape[1]
        self._held = [
            [(int(token), PROMPT, 0.0) for token in row[there]]
            for row, there in zip(prompts, present, strict=True)
        ]
        self._prompt_tokens = [len(held) for held in self._held]
        self._left, self._turns = budgets.astype(np.int64), turns.astype(np.int64)
        self._running = (self._left > 0) & (self._turns > 0)
        self.turns_taken = np.zeros(len(prompts), dtype=np.int64)

    def wave(self, places: Array) -> Wave | None:
        """Return the next turn of those of some episodes that go on; None where none does."""
        episodes = places[self._running[places]]
        if not episodes.size:
            return None
        held = [[token for token, _, _ in self._held[episode]] for episode in episodes]
        tokens, present = left_padded(held)
        turns_left = self._turns[episodes] - self.turns_taken[episodes]
        return Wave(episodes, tokens, present, -(-self._left[episodes] // turns_left))

    def add(self, wave: Wave, made: Sequences) -> list[list[int]]:
        """Append the answers of a wave; return their tokens."""
        first = wave.tokens.shape[1]
        tokens, parts, log_probs = (
            column[:, first:].cpu().numpy() for column in (made.tokens, made.parts, made.log_probs)
        )
        answers = []
        for row, episode in enumerate(wave.episodes):
            said = parts[row] == RESPONSE
            answer = tokens[row][said].tolist()
            each = zip(answer, log_probs[row][said].tolist(), strict=True)
            self._held[episode] += [(token, RESPONSE, log_prob) for token, log_prob in each]
            self._left[episode] -= len(answer)
            answers.append(answer)
        self.turns_taken[wave.episodes] += 1
        done = (self._left <= 0) | (self.turns_taken >= self._turns)
        self._running &= ~done
        return answers

    def goes_on(self, episode: int) -> bool:
        """Tell whether an episode has tokens and turns left."""
        return bool(self._running[episode])

    def observe(self, episode: int, tokens: Sequence[int]) -> None:
        """Append what the environment said."""
        self._held[episode] += [(token, OBSERVATION, 0.0) for token in tokens]

    def end(self, episode: int) -> None:
        """Let an episode have no further turn."""
        self._running[episode] = False

    def sequences(self, width: int) -> Sequences:
        """Return all episodes: left-padded prompts, and what followed in `width` columns behind them."""
        shape = len(self._held), self._width + width
        tokens, parts = np.zeros(shape, dtype=np.int64), np.full(shape, PADDING, dtype=np.int8)
        log_probs = np.zeros(shape, dtype=np.float32)
        for row, (own, prompt) in enumerate(zip(self._held, self._prompt_tokens, strict=True)):
            begin = self._width - prompt
            at = slice(begin, begin + len(own))
            tokens[row, at] = [token for token, _, _ in own]
            parts[row, at] = [part for _, part, _ in own]
            log_probs[row, at] = [log_prob for _, _, log_prob in own]
        made: tuple[Tensor, ...] = tuple(map(torch.from_numpy, (tokens, parts, log_probs)))
        return Sequences(*made)


def kinds_of(environments: Sequence[Environment], prompts: int) -> Array:
    """Return which environment plays each prompt of a batch, by their shares. Shape (prompts,)."""
    edges = np.cumsum([environment.share for environment in environments])[:-1]
    middles = (np.arange(prompts) + 0.5) / prompts
    return np.searchsorted(edges, middles, side="right")


def turns_of(environments: Sequence[Environment], kinds: Array, seed: int) -> Array:
    """Return the most turns of each episode, by its environment. Shape (episodes,)."""
    turns = np.zeros(len(kinds), dtype=np.int64)
    for kind, environment in enumerate(environments):
        drawn = sample_lengths(environment.turns, len(kinds), seed + TURNS_SEED + kind)
        turns = np.where(kinds == kind, drawn, turns)
    return turns


def columns_behind_prompts(environments: Sequence[Environment], budgets: Array) -> int:
    """Return the columns that any episode of a batch can fill behind its prompt: answers and observations."""
    return int(budgets.max()) + most_observed_tokens(environments)
