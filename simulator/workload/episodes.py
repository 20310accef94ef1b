"""Episodes of a usual batch: turns, observations and times of steps, each as often as its distribution has it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlplan.simulator.workload.usual import Floats, evenly, seconds_evenly
from rlplan.workload.environment import Environment
from rlplan.workload.latencies import Seconds
from rlplan.workload.lengths import Lengths
from rlplan.workload.work import Workload

Ints = npt.NDArray[np.int64]

# Of each distribution, from which a batch with its luck is drawn: its one in ten thousand is among them.
LUCK_VALUES = 16384


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


class Drawing:
    """Draw lengths and times of a batch: each as often as its distribution has it, or as a batch happens to have it.

    Args:
        generator: Of the order in which they come, and of what comes together with what.
    """

    def __init__(self, generator: np.random.Generator, *, lucky: bool = False) -> None:
        self.generator, self.lucky = generator, lucky

    def lengths(self, lengths: Lengths, count: int) -> Ints:
        """Return so many lengths in tokens, or turns. Shape (count,)."""
        found = self._order(evenly(lengths, LUCK_VALUES if self.lucky else count), count)
        return found.astype(np.int64)

    def seconds(self, seconds: Seconds, count: int, most: float | None = None) -> Floats:
        """Return so many times in seconds. Shape (count,).

        Args:
            most: A limit after which each is broken off.
        """
        values = seconds_evenly(seconds, LUCK_VALUES if self.lucky else count, most)
        return self._order(values, count)

    def _order(self, values: Floats, count: int) -> Floats:
        if self.lucky:
            return self.generator.choice(values, count)
        return self.generator.permutation(values)


def usual_episodes(
    environments: Sequence[Environment],
    prompts: int,
    samples: int,
    generator: np.random.Generator,
) -> Episodes:
    """Return the episodes of a batch in which everything is as often as its distribution has it.

    Args:
        samples: Episodes in a row that begin with one prompt.
    """
    return drawn_episodes(environments, prompts, samples, Drawing(generator))


def drawn_episodes(
    environments: Sequence[Environment], prompts: int, samples: int, drawing: Drawing
) -> Episodes:
    """Return the episodes of a batch, whose environments share the prompts out.

    Args:
        samples: Episodes in a row that begin with one prompt.
    """
    bounds = np.rint(np.cumsum([each.share for each in environments]) * prompts).astype(np.int64)
    bounds[-1] = prompts
    kinds = np.searchsorted(bounds, np.arange(prompts), side="right")
    environment = np.repeat(drawing.generator.permutation(kinds), samples)
    turns = np.empty(len(environment), dtype=np.int64)
    resets = np.empty(len(environment))
    for index, each in enumerate(environments):
        here = environment == index
        count = int(here.sum())
        turns[here] = drawing.lengths(each.turns, count)
        resets[here] = drawing.seconds(each.reset_seconds, count)
    first = np.concatenate([[0], np.cumsum(turns)])
    seconds, tokens = np.zeros(first[-1]), np.zeros(first[-1], dtype=np.int64)
    of_step, last = np.repeat(environment, turns), np.zeros(first[-1], dtype=bool)
    last[first[1:] - 1] = True
    for index, each in enumerate(environments):
        between, final = (of_step == index) & ~last, (of_step == index) & last
        limit, count = each.step_limit_seconds, int(between.sum())
        seconds[between] = drawing.seconds(each.step_seconds, count, limit)
        judging = each.step_seconds if each.final_step_seconds is None else each.final_step_seconds
        seconds[final] = drawing.seconds(judging, int(final.sum()), limit)
        if each.observation_tokens is not None:
            tokens[between] = drawing.lengths(each.observation_tokens, count)
    return Episodes(environment, turns, first, seconds, tokens, resets)


def longest_seconds_luck(workload: Workload, batches: int) -> tuple[float, float]:
    """Return what the longest episode of a usual batch spends in its environment, and how far other batches differ.

    Args:
        batches: Others that are drawn, with fixed seeds.

    Returns:
        Seconds, and the root of their differences' mean square.
    """
    environments, samples = workload.environments, workload.samples_per_prompt

    def longest(drawing: Drawing) -> float:
        drawn = drawn_episodes(environments, workload.prompts, samples, drawing)
        return float(drawn.outside_seconds.max())

    usual = longest(Drawing(np.random.default_rng(0)))
    others = [
        longest(Drawing(np.random.default_rng(number), lucky=True)) for number in range(batches)
    ]
    return usual, float(np.sqrt(np.mean((np.array(others) - usual) ** 2)))
