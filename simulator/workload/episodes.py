"""Episodes of a usual batch: turns, observations and times of steps, each as often as its distribution has it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlplan.environment import Environment
from simulator.workload.usual import Floats, evenly, seconds_evenly

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Episodes:
    """Hold the episodes of a batch.

    Attributes:
        environment: Index of each one's environment. Shape (episodes,).
        turns: Of each. Shape (episodes,).
        first: Where the steps of each begin, and the end of all. Shape (episodes + 1,).
        step_seconds: Of every step, an episode's one after another. Shape (steps,).
        observation_tokens: That every step adds; none behind a last turn. Shape (steps,).
        reset_seconds: Of each episode. Shape (episodes,).
    """

    environment: Ints
    turns: Ints
    first: Ints
    step_seconds: Floats
    observation_tokens: Ints
    reset_seconds: Floats

    @property
    def observed_tokens(self) -> Ints:
        """Return the tokens that observations add to each episode. Shape (episodes,)."""
        return np.add.reduceat(self.observation_tokens, self.first[:-1])

    @property
    def outside_seconds(self) -> Floats:
        """Return what each spends in its environment, were there always cores. Shape (episodes,)."""
        return np.add.reduceat(self.step_seconds, self.first[:-1]) + self.reset_seconds


def usual_episodes(
    environments: Sequence[Environment],
    prompts: int,
    samples: int,
    generator: np.random.Generator,
) -> Episodes:
    """Return the episodes of a batch in which everything is as often as its distribution has it.

    Args:
        samples: Episodes in a row that begin with one prompt.
        generator: Of the order in which they come, and of what comes together with what.
    """
    bounds = np.rint(np.cumsum([each.share for each in environments]) * prompts).astype(np.int64)
    bounds[-1] = prompts
    kinds = np.searchsorted(bounds, np.arange(prompts), side="right")
    environment = np.repeat(generator.permutation(kinds), samples)
    turns = np.empty(len(environment), dtype=np.int64)
    resets = np.empty(len(environment))
    for index, each in enumerate(environments):
        here = environment == index
        count = int(here.sum())
        turns[here] = generator.permutation(evenly(each.turns, count)).astype(np.int64)
        resets[here] = generator.permutation(seconds_evenly(each.reset_seconds, count))
    first = np.concatenate([[0], np.cumsum(turns)])
    seconds, tokens = np.zeros(first[-1]), np.zeros(first[-1], dtype=np.int64)
    of_step, last = np.repeat(environment, turns), np.zeros(first[-1], dtype=bool)
    last[first[1:] - 1] = True
    for index, each in enumerate(environments):
        between, final = (of_step == index) & ~last, (of_step == index) & last
        limit, count = each.step_limit_seconds, int(between.sum())
        seconds[between] = generator.permutation(seconds_evenly(each.step_seconds, count, limit))
        judging = each.step_seconds if each.final_step_seconds is None else each.final_step_seconds
        drawn = seconds_evenly(judging, int(final.sum()), limit)
        seconds[final] = generator.permutation(drawn)
        if each.observation_tokens is not None:
            drawn = generator.permutation(evenly(each.observation_tokens, count))
            tokens[between] = drawn.astype(np.int64)
    return Episodes(environment, turns, first, seconds, tokens, resets)
