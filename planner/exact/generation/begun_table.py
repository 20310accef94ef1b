"""How a pool can generate where a batch ends once enough of its responses have, and the others are dropped.

What can still win is played as it is simulated, every replica of it. Before that, which responses will end first is
not known, nor on which replicas: until then these give as many tokens together as all of `least_responses` have, and
one of them as many as the longest of these.
"""

import numpy as np

from planner.exact.generation.bounds import Asked, least_seconds
from planner.exact.generation.generations import GenerationTable
from planner.exact.generation.loads import load_of
from planner.exact.generation.options import Replicas
from planner.layouts.option_table import OptionTable
from rlplan.dataflow import begun_work
from rlplan.rules.batches import rank_sequences
from rlplan.transfers import TransitionName
from simulator.costs.calibrated import times_of
from simulator.generation.over_provisioning import begun, cost_until_enough
from simulator.generation.prices.stepping import EngineSteps
from simulator.generation.shares import ORDER_SEED, evenly_spread
from simulator.placed.columns import Floats
from simulator.stages import task_cost


class BegunTable(GenerationTable):
    """Cost generation on sites, each layout and size of cache once."""

    def __init__(self, options: OptionTable, transition: TransitionName | None = None) -> None:
        super().__init__(options, transition)
        work = options.space.priced.workload
        each, responses = evenly_spread(work, np.random.default_rng(ORDER_SEED))
        prompts = np.repeat(each, work.samples_per_prompt).astype(int)
        samples = work.samples_per_prompt if self.engine.shares_prompts else 1
        tokens = responses.astype(int)
        self._batch = load_of(
            tuple(prompts.tolist()), tuple(tokens.tolist()), samples, self.engine.kv_block_tokens
        )
        self._longest = load_of((int(prompts.min()),), (int(tokens.max()),))

    def _bounds(self, replicas: Replicas, blocks: Floats, *, waits: bool = True) -> Floats:
        steps = self._steps(replicas)
        assert isinstance(steps, EngineSteps), "other engines' generations are played"
        layout = replicas.layout
        local = rank_sequences(layout.dp, begun_work(self.job.workload), trains=False)
        asked = Asked(
            min(layout.max_running, local, self._most_running),
            replicas.state_blocks,
            waits,
            endless=True,
        )
        together = least_seconds(steps, self._batch, asked, blocks) / layout.dp
        longest = least_seconds(steps, self._longest, Asked(1), np.array([np.inf]))
        placed = self._placed(layout, replicas.site)
        whole = np.maximum(together, longest) * times_of(placed) + self._call_seconds(placed)
        return np.asarray(whole * self.task.batches)

    def _play(self, replicas: Replicas, cache_bytes: float) -> float:
        placed = self._placed(replicas.layout, replicas.site)
        cost = task_cost(begun(placed), cache_bytes)
        return cost_until_enough(cost, placed, cache_bytes).total.seconds
