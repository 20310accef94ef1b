"""Steps of generation engines that batch continuously: priced in parts that add up.

A step's matrix products depend on its tokens alone, decode attention on the running sequences and
their cached tokens, prefill attention on the chunks. So each part is priced on a grid of its own,
and a step that mixes decoding and prefill is the sum of its parts. An engine's few constants turn
the device's operators into its own kernels.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from profiles.facts import Facts
from rlplan.estimate import ZERO, Estimate, Source, total
from rlplan.hardware import EngineSheet
from rlplan.model import ModelArchitecture
from rlplan.plan import TaskPlan
from rlplan.precision import PRECISIONS, Precision
from simulator.costs.derived import kernels_of
from simulator.costs.grids import Grid, Known, nodes, nodes_around, stretches
from simulator.costs.operators import (
    Attention,
    Batch,
    Collective,
    Operator,
    Operators,
    embedding_operators,
    head_operators,
    layer_operators,
    local_kv_heads,
)
from simulator.costs.pipeline import layers_of_stages
from simulator.costs.pricing import Setting, price, setting_of
from simulator.replica import Chunks
from simulator.site import Site

ALL_REDUCES = 2  # of a tensor-parallel layer

# A message so small that its time is the collective's fixed cost.
NEXT_TO_NO_BYTES = 1.0


@dataclass(frozen=True, eq=False)
class EngineSteps:
    """Price the parts of a replica's steps, in seconds; every part is remembered.

    A replica of p pipeline stages keeps p batches in flight: a step of all sequences takes the
    slowest stage's time once for each.
    """

    model: ModelArchitecture
    engine: EngineSheet
    setting: Setting
    dense_known: Known = field(default_factory=dict)
    head_known: Known = field(default_factory=dict)
    decode_known: Known = field(default_factory=dict)
    prefill_known: Known = field(default_factory=dict)

    @cached_property
    def stage_layers(self) -> int:
        """Return the layers of the fullest pipeline stage."""
        return layers_of_stages(self.model.num_layers, self.setting.pp)[0]

    def dense(self, tokens: int) -> Estimate:
        """Return what everything but attention and output head takes for so many tokens."""
        tokens = max(1, tokens)
        batch = Batch(sequences=tokens, tokens=tokens, sequence_tokens=1, head_tokens=0)
        layer = self._price(layer_operators(self.model, self.setting.shard, batch))
        first = self._price(embedding_operators(self.model, self.setting.shard, batch))
        gap = Estimate(self.engine.kernels.layer_gap_seconds, 0.0, Source.FITTED)
        num_bytes = tokens * self.model.hidden_size * self.setting.shard.value_bytes
        return (layer + gap) * self.stage_layers + first + self.setting.send(num_bytes)

    def head(self, tokens: int) -> Estimate:
        """Return what the output head and sampling take for so many tokens."""
        tokens = max(1, tokens)
        batch = Batch(sequences=tokens, tokens=tokens, sequence_tokens=1, head_tokens=tokens)
        setting = replace(self.setting, precision=wide(self.setting.precision))
        operators = head_operators(self.model, setting.shard, batch, "lm", sampling=True)
        return self._price(operators, setting)

    def decode_attention(self, running: int, cached: int) -> Estimate:
        """Return what all layers' attention takes for one new token of every running sequence."""
        share = self.engine.steps.cache_read_efficiency
        device, model, tp = self.setting.device, self.model, self.setting.shard.tp
        if not share:
            return self._attention(running, 1, max(1, cached)) * self.stage_layers
        value_bytes = cache_value_bytes(self.engine, self.setting.precision)
        keys = 2 * running * cached * local_kv_heads(model, tp) * model.head_dim
        fixed = self._attention(1, 1, 1)
        rate = device.sheet.memory_bytes_per_second * share
        reading = Estimate(keys * value_bytes / rate, 0.0, Source.FITTED)
        return (fixed + reading) * self.stage_layers

    def prefill_attention(self, count: int, seen: int, tokens: int) -> Estimate:
        """Return what all layers' attention takes for chunks of prompts."""
        return self._attention(count, tokens, seen) * self.stage_layers

    @cached_property
    def launch_seconds(self) -> float:
        """Return what the host takes to launch all layers' kernels, where that does not hide.

        The device works meanwhile, so a step takes the longer of both.
        """
        if self.engine.launches_hidden:
            return 0.0
        skew = self.engine.steps.launch_skew_seconds * math.log2(self.setting.shard.tp)
        return (self._layer_launch() + ALL_REDUCES * skew) * self.model.num_layers

    def _layer_launch(self) -> float:
        if self.engine.layer_launch_seconds:
            return self.engine.layer_launch_seconds
        batch = Batch(sequences=1, tokens=1, sequence_tokens=1, head_tokens=0)
        operators = layer_operators(self.model, self.setting.shard, batch)
        own = tuple(each for each in operators if not isinstance(each, Collective))
        return kernels_of(own) * self.setting.device.sheet.launch_seconds

    def host_seconds(self, sequences: float) -> float:
        """Return what the host does in a step of so many sequences."""
        engine, setting = self.engine, self.setting
        several = setting.shard.tp * setting.pp > 1
        worker = engine.steps.worker_seconds if several else 0.0
        return engine.step_seconds + worker + engine.steps.seconds_per_sequence * sequences

    def _attention(self, sequences: int, tokens: int, cached: int) -> Estimate:
        model, tp = self.model, self.setting.shard.tp
        heads = max(1, model.num_heads // tp)
        operator = Attention(
            "attention",
            max(1, sequences),
            max(1, tokens),
            cached,
            heads,
            local_kv_heads(model, tp),
            model.head_dim,
        )
        setting = replace(self.setting, precision=wide(self.setting.precision))
        return price(setting, (operator,), part="embedding").total

    def _price(self, operators: Operators, setting: Setting | None = None) -> Estimate:
        own = [each for each in operators if not isinstance(each, Attention)]
        return total(self._seconds(each, setting or self.setting) for each in own)

    def _seconds(self, operator: Operator, setting: Setting) -> Estimate:
        if isinstance(operator, Collective):
            return self._exchange(operator)
        return price(setting, (operator,), part="embedding").total

    def _exchange(self, operator: Collective) -> Estimate:
        """Price a collective; the engine's own all-reduce replaces its fixed time inside a node."""
        whole = price(self.setting, (operator,)).total
        own = self.engine.steps.all_reduce_seconds
        site, shard = self.setting.site, self.setting.shard
        inside = site.ranks_per_node(shard.tp, 1) == shard.tp
        if not own or operator.kind != "all_reduce" or operator.group != "tp" or not inside:
            return whole
        least = self.setting.collective("all_reduce", NEXT_TO_NO_BYTES, shard.tp, 1)
        moving = max(0.0, whole.seconds - least.seconds)
        return Estimate(own + moving, whole.spread_seconds, Source.FITTED)


class Stretch(NamedTuple):
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


class EngineClock:
    """Give seconds of steps for one generation, and remember how well they are known."""

    def __init__(self, steps: EngineSteps) -> None:
        self._steps = steps
        self._asked: list[Estimate] = []
        note = self._asked.append
        self._dense = Grid(steps.dense, steps.dense_known, note)
        self._head = Grid(steps.head, steps.head_known, note)
        self._decode = Grid(steps.decode_attention, steps.decode_known, note)
        self._prefill = Grid(steps.prefill_attention, steps.prefill_known, note)
        self._stages = steps.setting.pp
        self._lines: dict[tuple[int, int], tuple[float, float]] = {}  # by nodes
        self._latest: dict[int, Stretch] = {}  # by sequences
        self._overlap = steps.engine.steps.host_overlap
        self._launch = steps.launch_seconds

    def prefill(self, sequences: int, tokens: float) -> float:
        """Return seconds of a pass over whole prompts of a mean of `tokens` tokens."""
        return self.mixed(0, 0.0, Chunks(sequences, tokens, 0.0))

    def decode(self, running: int, cached: float) -> float:
        """Return seconds of a decode step of sequences with a mean of `cached` tokens."""
        return self.decode_run(running, cached, 1)

    def decode_run(self, running: int, first: float, steps: int) -> float:
        """Return seconds of decode steps with a mean of first, first + 1, ... cached tokens."""
        last = first + steps - 1
        stretch = self._latest.get(running)
        if stretch is not None and first >= stretch.low and last <= stretch.high:
            return self._on(stretch, steps, (first + last) / 2)
        return sum(
            self._on(self._stretch(running, mean), count, mean)
            for mean, count in stretches(first, steps)
        )

    prefill_run = None  # it has a KV cache

    def _on(self, stretch: "Stretch", steps: int, mean: float) -> float:
        """Return seconds of steps around a mean on a straight line, none shorter than the floor."""
        device = stretch.base + stretch.slope * mean
        margin = abs(stretch.slope) * (steps - 1) / 2
        if device - margin >= stretch.floor:
            return steps * (device + stretch.added)
        if device + margin <= stretch.floor:
            return steps * (stretch.floor + stretch.added)
        first = mean - (steps - 1) / 2
        each = (stretch.base + stretch.slope * (first + step) for step in range(steps))
        return sum(max(seconds, stretch.floor) for seconds in each) + steps * stretch.added

    def _stretch(self, running: int, cached: float) -> "Stretch":
        """Return the straight line on which a decode step lies, and remember it."""
        low, high = nodes_around(cached)
        each = -(-running // self._stages)
        fewer, more, share = nodes(each)
        base, slope = self._line(fewer, low, high)
        if share:
            other = self._line(more, low, high)
            base, slope = base + share * (other[0] - base), slope + share * (other[1] - slope)
        fixed = self._dense(each) + self._head(each)
        stages, host = self._stages, self._steps.host_seconds(running)
        stretch = self._latest[running] = Stretch(
            low,
            high,
            fixed * stages,
            (fixed + base) * stages,
            slope * stages,
            max(self._launch, host) if self._overlap else self._launch,
            0.0 if self._overlap else host,
        )
        return stretch

    def _line(self, sequences: int, low: int, high: int) -> tuple[float, float]:
        """Return decode attention between two nodes of cached tokens as base and slope."""
        line = self._lines.get((sequences, low))
        if line is None:
            at_low, at_high = self._decode(sequences, low), self._decode(sequences, high)
            slope = (at_high - at_low) / (high - low)
            line = self._lines[sequences, low] = (at_low - slope * low, slope)
        return line

    def mixed(self, running: int, cached: float, chunks: Chunks) -> float:
        """Return seconds of a step that decodes and prefills."""
        each, count = -(-running // self._stages), chunks.parts / self._stages
        device = self._dense(each + count * chunks.tokens) + self._head(each + count)
        device += self._prefill(count, chunks.seen, chunks.tokens)
        device *= self._stages
        if running:
            stretch = self._latest.get(running)
            if stretch is None or not stretch.low <= cached <= stretch.high:
                stretch = self._stretch(running, cached)
            device += stretch.base - stretch.fixed + stretch.slope * cached
        device = max(device, self._launch)
        host = self._steps.host_seconds(running + chunks.parts)
        return max(device, host) if self._overlap else device + host

    def estimates(self, prefill_seconds: float, decode_seconds: float) -> tuple[Estimate, Estimate]:
        """Return these seconds, summed over steps, as estimates.

        They have the weakest source of all parts asked for, and their largest relative spread, or
        the engine's own where its forecasts were held against measured generations.
        """
        asked = [each for each in self._asked if each.seconds > 0] or [ZERO]
        spread = self._steps.engine.forecast_spread or max(
            each.spread_seconds / each.seconds if each.seconds else 0.0 for each in asked
        )
        source = max(each.source for each in asked)
        outside = any(each.outside_range for each in asked)
        return (
            Estimate(prefill_seconds, prefill_seconds * spread, source, outside),
            Estimate(decode_seconds, decode_seconds * spread, source, outside),
        )


def engine_steps(
    model: ModelArchitecture, layout: TaskPlan, site: Site, precision: Precision, facts: Facts
) -> EngineSteps:
    """Return the parts of a replica's steps, by operators' times and the engine's constants."""
    setting = setting_of(layout, site, precision, facts)
    shard = replace(setting.shard, value_bytes=PRECISIONS[wide(precision)].weight_bytes)
    return EngineSteps(model, facts.engine(layout.engine), replace(setting, shard=shard))


def wide(precision: Precision) -> Precision:
    """Return the format of what an fp8 engine does not quantise.

    Activations between kernels, attention scores, embedding and output head stay in 16 bits
    (TensorRT-LLM's and vLLM's fp8 recipes leave `lm_head` out).
    """
    return "bf16" if precision == "fp8" else precision


def cache_value_bytes(engine: EngineSheet, precision: Precision) -> int:
    """Return the bytes of one value in an engine's KV cache."""
    return engine.cache_value_bytes or PRECISIONS[precision].weight_bytes
