"""Bounds on generation that hands responses on as they end: what it takes for a batch in the long run.

Batches follow each other without a gap, and replicas take responses as they have room. So what bounds an iteration
is the mean over all replicas of what a batch's tokens take, none of them having to wait for a batch's
longest response: decision 7 says why the bounds of single batches hold for sums over many. Nothing is played
here: plans are simulated.
"""

from collections.abc import Hashable

import numpy as np

from planner.exact.generation.bounds import Asked, least_seconds
from planner.exact.generation.episode_loads import batch_load
from planner.exact.generation.generations import GenerationTable
from planner.exact.generation.loads import Load, load_of
from planner.exact.generation.options import Replicas, cut_of
from planner.layouts.option_table import OptionTable
from rlplan.algorithms import load_algorithm
from rlplan.transfers import TransitionName
from rlplan.workload.lengths import longest
from simulator.costs.calibrated import times_of
from simulator.generation.prices.stepping import EngineSteps
from simulator.generation.shares import longest_shares
from simulator.placed.columns import Floats
from simulator.workload.sequences import statistics_of


class StreamTable(GenerationTable):
    """Bound generation on sites, each layout and size of cache once."""

    def __init__(self, options: OptionTable, transition: TransitionName | None = None) -> None:
        super().__init__(options, transition)
        work = options.space.priced.workload
        statistics = statistics_of(work)
        (share, *_) = longest_shares(statistics, 1, work.samples_per_prompt)
        samples = work.samples_per_prompt if self.engine.shares_prompts else 1
        self._batch: Load | None = load_of(*share, samples, self.engine.kv_block_tokens)
        if work.environments:
            self._batch = batch_load(self.job, self.engine)
        self._tokens = tuple(np.sort(np.array(tokens)) for tokens in share)
        ends = [max(zip(*reversed(share), strict=True)), min(zip(*reversed(share), strict=True))]
        # Each turn's first token comes out of its prefill.
        turns = max((longest(each.turns) for each in work.environments), default=1)
        self._ends = [
            load_of((prompt,), (max(1, response + 1 - turns),)) for response, prompt in ends
        ]
        self._alone: dict[Hashable, tuple[float, float]] = {}

    def bounds(self, replicas: Replicas, cache_bytes: Floats) -> Floats:
        """Return seconds that a batch cannot beat in the long run; 0 of engines without running batches.

        And where limits end episodes.
        """
        if not self._is_continuous(replicas) or self._batch is None:
            return np.zeros(len(cache_bytes))
        # More than one batch is under way, so that more cache than one can use may be of use.
        whole = self.facts.device(replicas.site.device).sheet.memory_bytes
        most = np.where(cache_bytes >= replicas.useful_bytes, whole, cache_bytes)
        return super().bounds(replicas, most)

    def _bounds(self, replicas: Replicas, blocks: Floats, *, waits: bool = True) -> Floats:
        steps = self._steps(replicas)
        assert isinstance(steps, EngineSteps), "other engines are not bounded"
        assert self._batch is not None, "what limits end is not bounded"
        running = min(replicas.layout.max_running, self._most_running)
        asked = Asked(running, replicas.state_blocks, waits=waits, endless=True)
        times = times_of(self._placed(replicas.layout, replicas.site)) * self.task.batches
        return np.asarray(
            least_seconds(steps, self._batch, asked, blocks) * times / replicas.layout.dp
        )

    def alone_seconds(self, replicas: Replicas) -> tuple[float, float]:
        """Return what the longest and the shortest response take at least, each alone on its replica.

        Where responses are dropped, the longest ones are not waited for.
        """
        key = (cut_of(replicas.layout), replicas.site)
        if key not in self._alone:
            steps = self._steps(replicas)
            longest = shortest = 0.0
            if isinstance(steps, EngineSteps) and self._batch is not None:
                times = times_of(self._placed(replicas.layout, replicas.site))
                longest, shortest = (
                    float(least_seconds(steps, load, Asked(1), np.array([np.inf]))[0]) * times
                    for load in self._ends
                )
            waits = self.job.workload.over_provisioning == 1
            self._alone[key] = (longest if waits else 0.0, shortest)
        return self._alone[key]

    def last_share(self, pieces: int) -> float:
        """Return the least share of a batch's tokens that one of so many equal pieces of it has."""
        work = self.options.space.priced.workload
        unit = work.samples_per_prompt if load_algorithm(self.job.algorithm).groups else 1
        units = work.sequences // unit
        count = units // min(pieces, units) * unit
        least = sum(float(tokens[:count].sum()) for tokens in self._tokens)
        return least / sum(float(tokens.sum()) for tokens in self._tokens)

    def least_bound(self, replicas: Replicas) -> float:
        """Return seconds that a layout cannot beat, however large its cache."""
        return self.bound_alone(replicas)

    def seconds(self, replicas: Replicas, cache_bytes: float) -> float:
        """Return the bound: nothing is played."""
        return float(self.bounds(replicas, np.array([cache_bytes]))[0])

    def tighter(self, replicas: Replicas, cache_bytes: float) -> tuple[float, bool]:
        """Return the bound, which nothing but a simulation makes tighter."""
        return self.seconds(replicas, cache_bytes), True

    def known_bound(self, replicas: Replicas, cache_bytes: float) -> float:
        """Return nothing: nothing is played."""
        del replicas, cache_bytes
        return 0.0
