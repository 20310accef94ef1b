"""Steps of generation engines that batch continuously: priced in parts that add up.

A step's matrix products depend on its tokens alone, decode attention on the running sequences and
their cached tokens, prefill attention on the chunks. So each part is priced on a grid of its own,
and a step that mixes decoding and prefill is the sum of its parts. An engine's few constants turn
the device's operators into its own kernels.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from rlplan.estimate import Estimate, Source, total
from rlplan.models.model import NO_PART, ModelArchitecture, layer_kinds
from rlplan.models.operators import (
    FP32_BYTES,
    Attention,
    Batch,
    Collective,
    Elementwise,
    Operator,
    Operators,
    Scan,
)
from rlplan.models.precision import PRECISIONS
from rlplan.parts import attention_core, read_bytes, state_bytes
from rlplan.profiles.tables.remembered import remembered
from rlplan.sheets.hardware import EngineSheet
from rlplan.simulator.costs.pricing import (
    Setting,
    in_fewest_stages,
    in_wide_format,
    operator_seconds,
    price,
)
from rlplan.simulator.generation.prices.grids import CostQuality, Grid, nodes, nodes_around
from rlplan.simulator.generation.prices.setting import ReplicaSetting
from rlplan.simulator.model.derived import kernels_of
from rlplan.simulator.model.operators import (
    embedding_operators,
    head_operators,
    layer_operators,
)
from rlplan.simulator.model.weights import fullest_stage

ALL_REDUCES = 2  # of a tensor-parallel layer

# A message so small that its time is the collective's fixed cost.
NEXT_TO_NO_BYTES = 1.0


class SteppedInterval(NamedTuple):
    """Hold what decode steps of one number of sequences take between two nodes of cached tokens.

    Attributes:
        low: Cached tokens from which on the line holds.
        high: Up to which it holds.
        fixed: Seconds of the device for all but attention.
        base: Seconds of the device, were there no cached tokens.
        slope: Seconds for each token more.
        floor: What a step takes at least, however fast the device is.
        added: What comes on top.
    """

    low: int
    high: int
    fixed: float
    base: float
    slope: float
    floor: float
    added: float


@dataclass(frozen=True, eq=False)
class EngineSteps:
    """Price the parts of a replica's steps, in seconds; every part is remembered.

    A replica of p pipeline stages keeps p batches in flight: a step of all sequences takes the
    slowest stage's time once for each.
    """

    model: ModelArchitecture
    engine: EngineSheet
    setting: Setting

    @cached_property
    def dense_grid(self) -> Grid:
        """Read `dense` between nodes."""
        return Grid(self.dense)

    @cached_property
    def head_grid(self) -> Grid:
        """Read `head` between nodes."""
        return Grid(self.head)

    @cached_property
    def decode_grid(self) -> Grid:
        """Read `decode_attention` between nodes."""
        return Grid(self.decode_attention)

    @cached_property
    def prefill_grid(self) -> Grid:
        """Read `prefill_attention` between nodes."""
        return Grid(self.prefill_attention)

    def stretch(
        self, running: int, cached: float
    ) -> tuple[SteppedInterval, frozenset[CostQuality]]:
        """Return the straight line on which a decode step lies, and how well it is known."""
        return self._stretch(running, *nodes_around(cached))

    @remembered
    def _stretch(
        self, running: int, low: int, high: int
    ) -> tuple[SteppedInterval, frozenset[CostQuality]]:
        notes: set[CostQuality] = set()
        stages, host = self.setting.pp, self.host_seconds(running)
        each = -(-running // stages)
        launch = self.floor_seconds(each)
        fixed = self.dense_grid(notes, each) + self.head_grid(notes, each)
        fewer, more, share = nodes(each)
        base, slope = self._line(notes, fewer, low, high)
        if share:
            other = self._line(notes, more, low, high)
            base, slope = base + share * (other[0] - base), slope + share * (other[1] - slope)
        overlap = self.overlaps
        stretch = SteppedInterval(
            low,
            high,
            fixed * stages,
            (fixed + base) * stages,
            slope * stages,
            max(launch, host) if overlap else launch,
            0.0 if overlap else host,
        )
        return stretch, frozenset(notes)

    @cached_property
    def overlaps(self) -> bool:
        """Tell whether the host prepares a step of this replica while the device computes the one before."""
        costs, gpus = self.engine.steps, self.setting.shard.tp * self.setting.pp
        return costs.host_overlap and (not costs.overlap_gpus or gpus <= costs.overlap_gpus)

    def _line(
        self, notes: set[CostQuality], sequences: int, low: int, high: int
    ) -> tuple[float, float]:
        """Return decode attention between two nodes of cached tokens as base and slope."""
        at_low = self.decode_grid(notes, sequences, low)
        slope = (self.decode_grid(notes, sequences, high) - at_low) / (high - low)
        return at_low - slope * low, slope

    @cached_property
    def stage_layers(self) -> tuple[tuple[ModelArchitecture, int], ...]:
        """Return the kinds of layers of the fullest pipeline stage, with how many it has of each."""
        counts = fullest_stage(self.model, self.setting.pp)
        return tuple(zip(layer_kinds(self.model).models, counts, strict=True))

    @cached_property
    def dense_layers(self) -> tuple[tuple[ModelArchitecture, int], ...]:
        """Return the kinds that differ in more than how far they attend, with their layers of that stage."""
        return _merged(
            (kind, replace(kind, window=None), count) for kind, count in self.stage_layers
        )

    @cached_property
    def attending_layers(self) -> tuple[tuple[ModelArchitecture, int], ...]:
        """Return the kinds that differ in how they attend, with their layers of that stage."""
        return _merged(
            (kind, replace(kind, feed_forward=NO_PART), count) for kind, count in self.stage_layers
        )

    def dense(self, tokens: int) -> Estimate:
        """Return what everything but attention and output head takes for so many tokens."""
        tokens, shard = max(1, tokens), self.setting.shard
        gap = Estimate(self.setting.kernels.layer_gap_seconds, 0.0, Source.FITTED)
        layers = total(
            (self._near.layer(kind, tokens) + gap) * count
            for kind, count in self.dense_layers
            if count
        )
        first = self._near.embedding(tokens)
        num_bytes = tokens * self.model.hidden_size * shard.value_bytes
        return layers + first + self.setting.send(num_bytes)

    @cached_property
    def _near(self) -> "EngineSteps":
        """Return the steps of fewest stages whose layers take the same: what they take is priced once."""
        return _steps_of(self.model, self.engine, in_fewest_stages(self.setting))

    @remembered
    def layer(self, kind: ModelArchitecture, tokens: int) -> Estimate:
        """Return what everything but attention takes in one layer of a kind."""
        setting, batch = self.setting, _one_each(tokens)
        return self._price(layer_operators(kind, setting.shard, batch, setting.adapter))

    @remembered
    def embedding(self, tokens: int) -> Estimate:
        """Return what the embedding takes."""
        return self._price(embedding_operators(self.model, self.setting.shard, _one_each(tokens)))

    def head(self, tokens: int) -> Estimate:
        """Return what the output head and sampling take for so many tokens."""
        tokens = max(1, tokens)
        batch = Batch(sequences=tokens, tokens=tokens, sequence_tokens=1, head_tokens=tokens)
        setting = in_wide_format(self.setting)
        operators = head_operators(self.model, setting.shard, batch, "lm", sampling=True)
        entry_bytes = self.engine.steps.sampling_bytes
        if entry_bytes:
            # Every rank samples from the logits of all.
            num_bytes = tokens * self.model.vocab_size * entry_bytes
            passes = round(entry_bytes / FP32_BYTES)
            operators = (*operators, Elementwise("sampling", num_bytes, kernels=passes))
        return self._price(operators, setting)

    def decode_attention(self, running: int, cached: int) -> Estimate:
        """Return what all layers' attention takes for one new token of every running sequence."""
        share = self.engine.steps.cache_read_efficiency
        if not share:
            return self._layers(lambda kind: self._attention(kind, running, 1, max(1, cached)))
        tp, device = self.setting.shard.tp, self.setting.device
        usual_bytes = PRECISIONS[self.setting.precision].weight_bytes
        value_bytes = self.setting.cache_value_bytes or usual_bytes
        rate = device.sheet.memory_bytes_per_second * share

        def reading(kind: ModelArchitecture) -> Estimate:
            num_bytes = running * read_bytes(kind, tp, value_bytes, cached)
            return Estimate(num_bytes / rate, 0.0, Source.FITTED)

        def core(kind: ModelArchitecture) -> Estimate:
            # States are read and written whole for every sequence.
            sequences = running if state_bytes(kind, tp, value_bytes) else 1
            return self._attention(kind, sequences, 1, 1) + reading(kind)

        return self._layers(core)

    def prefill_attention(self, count: int, seen: int, tokens: int) -> Estimate:
        """Return what all layers' attention takes for chunks of prompts."""
        return self._layers(lambda kind: self._attention(kind, count, tokens, seen))

    def _layers(self, cost: Callable[[ModelArchitecture], Estimate]) -> Estimate:
        """Return what attention takes in all layers of a stage, told what it does in one of each kind."""
        return total(cost(kind) * count for kind, count in self.attending_layers if count)

    def floor_seconds(self, tokens: float) -> float:
        """Return what a step of so many tokens lasts at least: its launches, where no graph holds them."""
        captured = self.engine.steps.captured_tokens
        if self.engine.launches_hidden and (not captured or tokens <= captured):
            return 0.0
        return self.launch_seconds

    @cached_property
    def launch_seconds(self) -> float:
        """Return what the host takes to launch all layers' kernels, where that does not hide.

        The device works meanwhile, so a step takes the longer of both.
        """
        skew = self.engine.steps.launch_skew_seconds * math.log2(self.setting.shard.tp)
        return layer_kinds(self.model).total(
            lambda kind: self._layer_launch(kind) + ALL_REDUCES * skew
        )

    def _layer_launch(self, kind: ModelArchitecture) -> float:
        if self.engine.layer_launch_seconds:
            return self.engine.layer_launch_seconds
        batch = Batch(sequences=1, tokens=1, sequence_tokens=1, head_tokens=0)
        operators = layer_operators(kind, self.setting.shard, batch)
        own = tuple(each for each in operators if not isinstance(each, Collective))
        return kernels_of(own) * self.setting.device.sheet.launch_seconds

    def host_seconds(self, sequences: float) -> float:
        """Return what the host does in a step of so many sequences."""
        return self._host_step_seconds + self.engine.steps.seconds_per_sequence * sequences

    @cached_property
    def _host_step_seconds(self) -> float:
        """Return what the host does in a step, however many sequences it has."""
        engine, setting = self.engine, self.setting
        several = setting.shard.tp * setting.pp > 1
        worker = engine.steps.worker_seconds if several else 0.0
        return (engine.step_seconds + worker) * setting.device.sheet.host_times

    def _attention(
        self, kind: ModelArchitecture, sequences: int, tokens: int, cached: int
    ) -> Estimate:
        sizes = (self.setting.shard.tp, max(1, sequences), max(1, tokens), cached)
        setting = in_wide_format(self.setting)
        return price(setting, attention_core(kind, *sizes), part="embedding").total

    def _price(self, operators: Operators, setting: Setting | None = None) -> Estimate:
        own = [each for each in operators if not isinstance(each, Attention | Scan)]
        return total(self._seconds(each, setting or self.setting) for each in own)

    def _seconds(self, operator: Operator, setting: Setting) -> Estimate:
        if isinstance(operator, Collective):
            return self._exchange(operator)
        return operator_seconds(setting, operator)

    def _exchange(self, operator: Collective) -> Estimate:
        """Price a collective; the engine's own kernel replaces its fixed time inside a node."""
        whole = price(self.setting, (operator,)).total
        own = self.engine.steps.all_reduce_seconds
        site, shard = self.setting.site, self.setting.shard
        reduces = operator.kind == "all_reduce" and operator.group == "tp"
        ranks = shard.tp if reduces else max(shard.tp, shard.ep)
        # A kernel that maps the others' memory needs one host, wherever else the fast link leads.
        host = self.setting.device.sheet.gpus_per_node or site.gpus_per_node
        inside = site.ranks_per_node(min(ranks, host), 1) == ranks
        if not own or not (reduces or operator.group == "ep") or not inside:
            return whole
        ranks = shard.tp if reduces else shard.ep
        least = self.setting.collective(operator.kind, NEXT_TO_NO_BYTES, ranks, 1)
        moving = max(0.0, whole.seconds - least.seconds)
        return Estimate(own + moving, whole.spread_seconds, Source.FITTED)


def _merged(
    layers: Iterable[tuple[ModelArchitecture, ModelArchitecture, int]],
) -> tuple[tuple[ModelArchitecture, int], ...]:
    """Return one kind for all that are alike in what matters, with the layers of all of them.

    Args:
        layers: A kind, what matters of it, and how many layers are of it.
    """
    first: dict[ModelArchitecture, ModelArchitecture] = {}
    counts: dict[ModelArchitecture, int] = {}
    for kind, matters, count in layers:
        first.setdefault(matters, kind)
        counts[matters] = counts.get(matters, 0) + count
    return tuple((first[matters], count) for matters, count in counts.items())


def _one_each(tokens: int) -> Batch:
    return Batch(sequences=tokens, tokens=tokens, sequence_tokens=1, head_tokens=0)


_steps_of = lru_cache(maxsize=4096)(EngineSteps)


def engine_steps(replica: ReplicaSetting) -> EngineSteps:
    """Return the parts of a replica's steps, by operators' times and the engine's constants."""
    return EngineSteps(replica.model, replica.engine, replica.setting)
