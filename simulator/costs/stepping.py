"""Steps of generation engines that batch continuously: priced in parts that add up.

A step's matrix products depend on its tokens alone, decode attention on the running sequences and
their cached tokens, prefill attention on the chunks. So each part is priced on a grid of its own,
and a step that mixes decoding and prefill is the sum of its parts. An engine's few constants turn
the device's operators into its own kernels.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

from profiles.facts import Facts
from rlplan.estimate import ZERO, Estimate, Source, total
from rlplan.hardware import EngineSheet
from rlplan.model import ModelArchitecture
from rlplan.plan import TaskPlan
from rlplan.precision import PRECISIONS, Precision
from simulator.costs.grids import Grid, Known
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
        self._batches: dict[int, tuple[int, float, float]] = {}
        self._overlap = steps.engine.steps.host_overlap

    def prefill(self, sequences: int, tokens: float) -> float:
        """Return seconds of a pass over whole prompts of a mean of `tokens` tokens."""
        return self.mixed(0, 0.0, Chunks(sequences, tokens, 0.0))

    def decode(self, running: int, cached: float) -> float:
        """Return seconds of a decode step of sequences with a mean of `cached` tokens."""
        batch = self._batches.get(running)
        if batch is None:
            each = -(-running // self._stages)
            device = self._dense(each) + self._head(each)
            batch = self._batches[running] = (each, device, self._steps.host_seconds(running))
        each, device, host = batch
        device = (device + self._decode(each, cached)) * self._stages
        return max(device, host) if self._overlap else device + host

    def mixed(self, running: int, cached: float, chunks: Chunks) -> float:
        """Return seconds of a step that decodes and prefills."""
        each, count = -(-running // self._stages), chunks.parts / self._stages
        device = self._dense(each + count * chunks.tokens) + self._head(each + count)
        if running:
            device += self._decode(each, cached)
        device += self._prefill(count, chunks.seen, chunks.tokens)
        return self._with_host(device, running + chunks.parts)

    def _with_host(self, device_seconds: float, sequences: int) -> float:
        device = device_seconds * self._stages
        host = self._steps.host_seconds(sequences)
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
