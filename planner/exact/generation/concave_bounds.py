"""Seconds of a stage's matrix products where a step of few sequences takes more for each of them.

A mixture of experts reads the experts that a step's tokens reach: few tokens reach few of them, many reach
all, and then a token more takes next to nothing. Straight lines under such seconds lie far below them. Here
what lies below is a concave function f of the sequences n that a step gives a token each,

    f(n) = base + slope n + sum over corners k of weight_k min(n, k),   weight_k >= 0,

and the sums over steps of min(n, k) have lower bounds of their own, which no schedule undercuts (`Contexts`).
What a step computes of prompts beside these tokens takes at least `beyond` for each, wherever n stands on f.
Decision 7 has the argument in full.
"""

from dataclasses import dataclass

import numpy as np

from planner.exact.generation.loads import Load, least_steps
from simulator.placed.columns import Flags, Floats


@dataclass(frozen=True, slots=True, eq=False)
class Floors:
    """Hold concave functions below the seconds of a stage's step, one row each.

    Attributes:
        base: Seconds of a step. Shape (floors,), as those without another.
        slope: Seconds for each sequence.
        corners: Sequences up to which the weights count. Shape (corners,).
        weights: Seconds for each sequence up to a corner. Shape (floors, corners).
        beyond: Seconds for each token of a prompt, at least.
        steeper: Seconds for each of them, `less` seconds in each step taken off. Shape (lines,).
        less: Shape (floors, lines).
    """

    base: Floats
    slope: Floats
    corners: Floats
    weights: Floats
    beyond: Floats
    steeper: Floats
    less: Floats


def floors_under(tokens: Floats, seconds: Floats, most_sequences: float) -> Floors:
    """Return concave functions below seconds that are read off straight lines between nodes.

    Args:
        tokens: Of a step, from 1 to the most; below 1 it takes what 1 takes.
        seconds: Of the step. Shape as `tokens`.
        most_sequences: That a step gives tokens to; fewer than the most tokens.
    """
    # More tokens never take less than this.
    rising = np.minimum.accumulate(seconds[::-1])[::-1]
    last = max(1, int(np.searchsorted(tokens, most_sequences)))
    few, width = tokens[: last + 1], np.diff(tokens)
    slopes = np.diff(rising) / width
    # Less a straight line and made to rise again, seconds are followed as far as they bend downwards only.
    slope = np.unique(np.append(slopes[: last + 1], 0.0))
    rest = rising[: last + 1] - slope[:, None] * few
    rest = np.minimum.accumulate(rest[:, ::-1], axis=1)[:, ::-1]
    slope, rest = slope[rest[:, 0] >= 0], rest[rest[:, 0] >= 0]
    falling = np.concatenate([rest[:, :1] / few[0], np.diff(rest, axis=1) / width[:last]], axis=1)
    falling = np.minimum.accumulate(falling, axis=1)[:, 1:]
    base = rest[:, 0] - falling[:, 0] * few[0]
    below = np.cumsum(np.column_stack([rest[:, 0], falling * width[:last]]), axis=1)
    below = np.column_stack([base, below + slope[:, None] * few])
    chords = (rising[last + 1 :] - rising[last]) / (tokens[last + 1 :] - tokens[last])
    steeper = np.unique(slopes[last:])
    return Floors(
        base=base,
        slope=slope,
        corners=few[1:],
        weights=-np.diff(falling, axis=1, append=0.0),
        beyond=np.minimum(slope + falling[:, -1], chords.min()),
        steeper=steeper,
        less=_taken_off(np.append(0.0, tokens), np.append(rising[0], rising), below, steeper),
    )


def _taken_off(tokens: Floats, rising: Floats, below: Floats, steeper: Floats) -> Floats:
    """Return by how much lines from any place on a floor rise above the seconds. Shape (floors, lines).

    With n sequences and q tokens more, steeper q - (rising(n + q) - below(n)) is one term in n + q and one in
    n. Between two nodes of n + q both are at most the larger of their ends.
    """
    few = below.shape[1]
    own = below[:, None] - steeper[:, None] * tokens[:few]
    own = np.maximum.accumulate(own, axis=2)
    own = np.concatenate([own, np.repeat(own[:, :, -1:], len(tokens) - few, axis=2)], axis=2)
    whole = steeper[:, None] * tokens - rising
    both = np.maximum(whole[:, :-1], whole[:, 1:]) + own[:, :, 1:]
    return np.asarray(np.maximum(both.max(axis=2), 0.0))


class ConcaveBound:
    """Bound the seconds that a stage computes a load's tokens and reads its cache, over all steps.

    Args:
        running: Most sequences of a step, of all stages' batches together.
        stages: Over which a step's sequences are shared out.
        read_seconds: Of one cached token.
        batched_tokens: Most tokens of prompts in a step.
        endless: Whether other loads' sequences run beside this one's.
    """

    def __init__(
        self,
        floors: Floors,
        load: Load,
        running: int,
        stages: int,
        read_seconds: float,
        batched_tokens: int,
        *,
        endless: bool = False,
    ) -> None:
        self.floors, self.load, self.stages = floors, load, stages
        given = load.decoded_tokens + load.sequences
        self.corners = np.minimum(floors.corners * stages, running)
        self.together = given * self.corners / running
        if not endless:  # the longest responses of several loads run side by side
            longest = load.contexts.side_by_side(self.corners)
            self.together = np.maximum(longest, self.together)
        self.given, self.running = given, running
        self.least_steps = least_steps(load, running, endless=endless)
        gained, covered = self._of_prompts(running, batched_tokens)
        cached = load.cached_tokens / stages
        each = floors.slope * given / stages
        self.read = each + gained.max(axis=1) + read_seconds * cached
        covering = gained + np.minimum(read_seconds, covered) * cached
        self.computed_again = each + covering.max(axis=1)
        self.lost = floors.base - read_seconds * batched_tokens / stages

    def _of_prompts(self, running: int, batched_tokens: int) -> tuple[Floats, Floats]:
        """Return seconds that prompts take beside the first tokens, and those for each token computed again.

        A line with `less` taken off holds for steps that compute tokens of prompts. Each of them ends one,
        or is filled up. What is computed again ends once more.

        Returns:
            By each way to tell, `beyond` and the lines: seconds, and seconds for each token of a sequence
            that is computed again, whatever it has. Shape (floors, ways).
        """
        floors, load, stages = self.floors, self.load, self.stages
        least, filled = load.shortest_prompt_tokens, batched_tokens - running
        first = floors.beyond[:, None]
        gained = first * (load.prompt_tokens - load.sequences) / stages
        covered = first * least / (least + 1)
        if filled <= 0:
            return gained, covered
        each = floors.steeper / stages - floors.less / filled  # for each token of a prompt
        once = floors.steeper / stages + floors.less  # taken off for each prompt
        holds = (each > 0) & (each * least >= once)
        lines = np.where(holds, each * load.prompt_tokens - once * load.sequences, 0.0)
        again = np.where(holds, (each - once / least) * stages, 0.0)
        return np.column_stack([gained, lines]), np.column_stack([covered, again])

    def seconds(self, cache_tokens: Floats, preempts: Flags) -> Floats:
        """Return the bounds for caches of so many tokens, in seconds. Shape as `cache_tokens`.

        Args:
            preempts: Where sequences may be thrown out: what is computed again is not read, but takes its
                own time, or what it has of each step.
        """
        contexts, floors = self.load.contexts, self.floors
        steps = np.maximum(contexts.cached_below[-1] / cache_tokens, self.least_steps)
        together = np.maximum(contexts.in_cache(self.corners, cache_tokens), self.together)
        # min(n, k) lies above the line from one sequence to all that may run.
        share = (self.corners - 1) / max(1, self.running - 1)
        together = np.maximum(together, steps[:, None] * (1 - share) + self.given * share)
        shared = floors.weights @ together.T / self.stages
        read = shared + self.read[:, None]
        found = read + floors.base[:, None] * steps
        if not preempts.any():
            return np.asarray(found.max(axis=0))
        again = shared + self.computed_again[:, None] + floors.base[:, None] * steps
        lost = np.where(self.lost[:, None] >= 0, read + self.lost[:, None] * steps, 0.0)
        return np.asarray(np.where(preempts, np.maximum(again, lost), found).max(axis=0))
