"""What a step of a generation engine takes: decoding and prefill, priced in parts and on grids.

Nothing here decides which sequences are in a step.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import NamedTuple

from rlplan.estimate import Estimate, Source, total
from rlplan.job import Speculation
from rlplan.layout import ModelCut
from rlplan.models import (
    FP32_BYTES,
    GROUPED_ATTENTION,
    NO_PART,
    Attention,
    Batch,
    Collective,
    Elementwise,
    Gemm,
    ModelArchitecture,
    Operators,
    Scan,
    layer_kinds,
    quantises_inputs,
)
from rlplan.parts import attention_core, read_bytes, state_bytes
from rlplan.probing import UNEVEN, ModelPass, PassName
from rlplan.profiles.tables.remembered import kept_with, remembered
from rlplan.sheets import EngineSheet
from rlplan.simulator.costs.pricing import (
    PassSeconds,
    in_wide_format,
    operator_seconds,
    pass_seconds,
    price,
)
from rlplan.simulator.costs.setting import Setting, in_fewest_stages, setting_of
from rlplan.simulator.costs.towers import seconds_per_prompt_token
from rlplan.simulator.generation.attention import LatentCosts, cached_value_bytes, of_prompts
from rlplan.simulator.generation.exchanges import exchanged
from rlplan.simulator.generation.expert_kernels import in_place
from rlplan.simulator.generation.nodes import NODES, corners, nodes, stretches
from rlplan.simulator.generation.replica import run_seconds
from rlplan.simulator.model import (
    NARROW_BYTES,
    embedding_operators,
    fullest_stage,
    head_operators,
    is_cast,
    kernels_of,
    kinds_of_stages,
    layer_operators,
    layer_parameters,
    with_input_casts,
)
from rlplan.simulator.placed import PlacedTask
from rlplan.simulator.workload import held_by


@dataclass(frozen=True, slots=True)
class ReplicaSetting:
    """Hold the setting of one replica of a generation engine.

    Attributes:
        copies: Replicas that work at the same time, where passes were measured with so many; else 1.
        gathering_gpus: GPUs over which the engine gathers its weights layer by layer; 0 if it does not.
        speculation: How it guesses tokens ahead; None where it does not, or that is not known well enough.
        tower_seconds: Of the tower of images, for each token that is prefilled.
    """

    model: ModelArchitecture
    engine: EngineSheet
    setting: Setting
    copies: int = 1
    gathering_gpus: int = 0
    speculation: Speculation | None = None
    tower_seconds: float = 0.0


def replica_setting_of(placed: PlacedTask) -> ReplicaSetting:
    """Return what decides the seconds of a generating task's steps."""
    said, setting = placed.job.speculation, setting_of(placed)
    has_tower = bool(held_by(placed.workload, placed.model))
    return ReplicaSetting(
        placed.model,
        placed.engine,
        setting,
        copies=1 if placed.device.profile is None else placed.layout.dp,
        gathering_gpus=placed.site.gpus if placed.engine.gathers_weights else 0,
        speculation=said if said is not None and said.tokens_per_step is not None else None,
        tower_seconds=seconds_per_prompt_token(setting, placed) if has_tower else 0.0,
    )


MOST_ROWS = 4096  # that a grid remembers


class CostQuality(NamedTuple):
    """Hold how well a cost is known.

    Attributes:
        spread: Standard deviation over the seconds.
    """

    spread: float
    source: Source
    outside_range: bool


NOTHING = CostQuality(0.0, Source.MEASURED, outside_range=False)


def note_of(estimate: Estimate) -> CostQuality:
    """Return how well an estimate is known; one of no seconds has nothing to know."""
    if estimate.seconds <= 0:
        return NOTHING
    spread = estimate.spread_seconds / estimate.seconds
    return CostQuality(spread, estimate.source, estimate.outside_range)


def worst_of(notes: Iterable[CostQuality]) -> CostQuality:
    """Return the largest spread and the weakest source of all."""
    every = (NOTHING, *notes)
    return CostQuality(
        max(note.spread for note in every),
        max(note.source for note in every),
        any(note.outside_range for note in every),
    )


class Grid:
    """Read costs off straight lines between nodes, in as many dimensions as the cost has."""

    def __init__(self, cost: Callable[..., Estimate]) -> None:
        self.at_node = cache(cost)  # what a node costs, asked once
        # By all coordinates but the last, which are nodes or lie between them.
        # Then by the place of the last coordinate's node in `NODES`.
        self._rows: dict[tuple[float, ...], dict[int, tuple[float, CostQuality]]] = {}

    def __call__(self, notes: set[CostQuality], *at: float) -> float:
        """Return seconds at a place that need not be a node.

        Args:
            notes: Gets how well the nodes around are known.
        """
        row = self._rows.get(at[:-1])
        if row is None:
            if len(self._rows) >= MOST_ROWS:
                self._rows.clear()
            row = self._rows[at[:-1]] = {}
        last = at[-1]
        place = bisect_right(NODES, last) - 1
        low = NODES[place]
        seconds, note = row.get(place) or self._fill(row, at[:-1], place)
        notes.add(note)
        if last == low:
            return seconds
        upper, note = row.get(place + 1) or self._fill(row, at[:-1], place + 1)
        notes.add(note)
        return seconds + (last - low) / (NODES[place + 1] - low) * (upper - seconds)

    def run(self, notes: set[CostQuality], sequences: int, first: float, steps: int) -> float:
        """Return seconds of steps at first, first + 1, ... tokens, exact between priced nodes."""
        seconds = 0.0
        for mean, count in stretches(first, steps):
            seconds += count * self(notes, sequences, mean)
        return seconds

    def _fill(
        self, row: dict[int, tuple[float, CostQuality]], first: tuple[float, ...], place: int
    ) -> tuple[float, CostQuality]:
        """Return seconds at a node of the last coordinate, and any place of the others; remember them."""
        notes: set[CostQuality] = set()
        seconds = 0.0
        for node, weight in corners(first):
            estimate = self.at_node(*node, NODES[place])
            seconds += weight * estimate.seconds
            notes.add(note_of(estimate))
        note = notes.pop() if len(notes) == 1 else worst_of(notes)
        found = row[place] = (seconds, note)
        return found


class MeasuredGrid(Grid):
    """Ask for a cost at the very numbers: measured passes interpolate by themselves."""

    def __call__(self, notes: set[CostQuality], *at: float) -> float:
        """Return seconds of a step of so many sequences with a mean of so many tokens each."""
        sequences, tokens = at
        estimate = self.at_node(int(sequences), round(tokens))
        notes.add(note_of(estimate))
        return estimate.seconds

    def run(self, notes: set[CostQuality], sequences: int, first: float, steps: int) -> float:
        """Return seconds of steps at first, first + 1, ... tokens."""
        return run_seconds(partial(self, notes), sequences, first, steps)


def noted(seconds: float, notes: Iterable[CostQuality], spread: float = 0.0) -> Estimate:
    """Return seconds that are summed over steps as an estimate.

    It has the weakest source and the largest relative spread of all steps asked for.

    Args:
        notes: How well each of the steps is known.
        spread: The relative spread, where it is known of the sum; 0 is that of the steps.
    """
    worst = worst_of(notes)
    return Estimate(seconds, seconds * (spread or worst.spread), worst.source, worst.outside_range)


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaSteps:
    """Hold both kinds of steps of a replica, by (sequences, tokens).

    Attributes:
        uneven: The same of waves whose rows are not all as long; None where they are not told apart.
    """

    prefill: Grid
    decode: Grid
    uneven: "ReplicaSteps | None" = None


def measured_steps(replica: ReplicaSetting) -> ReplicaSteps | None:
    """Return a replica's steps by measured passes, or None where they are missing."""
    setting = replica.setting
    if setting.pp * setting.shard.cp * setting.shard.ep > 1 or setting.adapter is not None:
        return None
    tp = setting.shard.tp
    if setting.device.measured_by_node and setting.site.ranks_per_node(tp) < tp:
        return None  # tensor-parallel ranks of a measured pass share a node

    def look_up(name: PassName, sequences: int, tokens: int) -> Estimate | None:
        alone = ModelPass(
            name=name,
            model=replica.model,
            head="lm",
            precision=setting.precision,
            tp=setting.shard.tp,
            sequences=max(1, sequences),
            tokens=max(1, tokens),
        )
        together = replace(alone, dp=replica.copies)
        return setting.device.model_pass(together) or setting.device.model_pass(alone)

    def cost_of_step(name: PassName) -> Callable[[int, int], Estimate]:
        def seconds(sequences: int, tokens: int) -> Estimate:
            found = look_up(name, sequences, tokens)
            assert found is not None, "what was measured once is found again"
            return found

        return seconds

    if look_up("prefill", 1, 1) is None or look_up("decode", 1, 1) is None:
        return None

    def steps(name: PassName) -> Grid:
        return MeasuredGrid(cost_of_step(name))

    told_apart = all(look_up(name, 1, 1) is not None for name in UNEVEN.values())
    uneven = ReplicaSteps(steps("prefill_uneven"), steps("decode_uneven")) if told_apart else None
    return ReplicaSteps(steps("prefill"), steps("decode"), uneven)


def operator_steps(replica: ReplicaSetting) -> ReplicaSteps:
    """Return a replica's steps by operators' times.

    A pipelined replica keeps as many batches in flight as it has stages: a step of all running
    sequences takes the slowest stage's time once per batch, and a prefill of p batches fills and
    drains the pipeline, so that it lasts 2 p - 1 of them. The host's work on a step falls to every batch.
    """
    setting, engine, model = replica.setting, replica.engine, replica.model
    stages = setting.pp
    host = Estimate(engine.step_seconds, 0.0, Source.DATASHEET)
    if engine.gathers_weights:
        host = host + _gathering(replica)

    def prefill(sequences: int, tokens: int) -> Estimate:
        count, length = max(1, sequences), max(1, tokens)
        batches = min(stages, count)
        each = -(-count // batches)
        batch = Batch(
            sequences=each, tokens=each * length, sequence_tokens=length, head_tokens=each
        )
        layers = _layers(setting, model, batch, layer_kinds(model).counts(0, model.num_layers))
        first, last = _ends(setting, model, batch)
        whole = (layers + first + last).total + _hops(setting, model, batch)
        if replica.tower_seconds:
            whole = whole + Estimate(count * length * replica.tower_seconds, 0.0, Source.FITTED)
        if batches == 1:
            return whole + host
        return whole + host + (_slowest_stage(setting, model, batch) + host) * (batches - 1)

    def decode(running: int, cached: int) -> Estimate:
        count = -(-max(1, running) // stages)
        batch = Batch(
            sequences=count,
            tokens=count,
            sequence_tokens=1,
            cached_tokens=max(1, cached),
            head_tokens=count,
        )
        return (_slowest_stage(setting, model, batch) + host) * stages

    return ReplicaSteps(Grid(prefill), Grid(decode))


def _gathering(replica: ReplicaSetting) -> Estimate:
    """Return seconds of gathering a stage's layers over all GPUs of the pool, one by one."""
    setting, shard = replica.setting, replica.setting.shard
    counts = fullest_stage(replica.model, setting.pp)
    gathers = (
        setting.collective(
            "all_gather",
            layer_parameters(kind, ModelCut(tp=shard.tp, ep=shard.ep)) * shard.value_bytes,
            replica.gathering_gpus,
            1,
        )
        * count
        for kind, count in zip(layer_kinds(replica.model).models, counts, strict=True)
    )
    return total(gathers)


def _slowest_stage(setting: Setting, model: ModelArchitecture, batch: Batch) -> Estimate:
    counts = kinds_of_stages(model, ModelCut(pp=setting.pp))
    first, last = _ends(setting, model, batch)
    if setting.pp == 1:
        return (_layers(setting, model, batch, counts[0]) + first + last).total
    stages = [
        (_layers(setting, model, batch, counts[0]) + first).total,
        (_layers(setting, model, batch, counts[-1]) + last).total,
    ]
    if len(counts[0]) > 1:
        between = dict.fromkeys(counts[1:-1])
        stages += [_layers(setting, model, batch, each).total for each in between]
    hop = _hops(setting, model, batch) * (1 / (setting.pp - 1))
    return max(stages, key=lambda stage: stage.seconds) + hop


def _layers(
    setting: Setting, model: ModelArchitecture, batch: Batch, counts: tuple[int, ...]
) -> PassSeconds:
    """Return what so many layers of each kind take, one after another."""
    whole = PassSeconds()
    for kind, count in zip(layer_kinds(model).models, counts, strict=True):
        whole += pass_seconds(setting, kind, "layer", batch) * count
    return whole


def _ends(
    setting: Setting, model: ModelArchitecture, batch: Batch
) -> tuple[PassSeconds, PassSeconds]:
    return (
        pass_seconds(setting, model, "embedding", batch),
        pass_seconds(setting, model, "sampling head", batch),
    )


def _hops(setting: Setting, model: ModelArchitecture, batch: Batch) -> Estimate:
    """Return seconds of handing a batch's activations from stage to stage."""
    num_bytes = batch.tokens * model.handed_size * setting.shard.value_bytes
    return setting.send(num_bytes) * (setting.pp - 1)


ALL_REDUCES = 2  # of a tensor-parallel layer
PIECES = 2  # of a layer: a graph between attentions, and what attention launches
# Kinds of attention whose layers have no norms of queries and keys, whatever the model's others have.
SCANNED = ("linear-attention", "kimi-delta-attention")


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
    # Of the tower of images, for each token that is prefilled.
    tower_seconds: float = field(default=0.0, kw_only=True)

    @property
    def tokens_per_step(self) -> float:
        """Return the tokens that a step gives each running sequence on average."""
        return 1.0

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

    @remembered
    def stretch(
        self, running: int, low: int, high: int
    ) -> tuple[SteppedInterval, frozenset[CostQuality]]:
        """Return the straight line on which decode steps lie between two nodes, and how well it is known."""
        notes: set[CostQuality] = set()
        stages, host = self.setting.pp, self.host_seconds(running)
        each = -(-running // stages)
        launch, fixed = self.floor_seconds(each), self.beside_attention(notes, each)
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

    def beside_attention(
        self, notes: set[CostQuality], sequences: int, tokens_each: int = 1
    ) -> float:
        """Return what a stage takes beside attention in a step that only decodes, filled up to what graphs were captured for.

        Args:
            tokens_each: That the step computes of each sequence.
        """
        costs = self.engine.steps
        tokens = costs.filled(sequences) * tokens_each
        fixed = self.dense_grid(notes, tokens) + self.head_grid(notes, tokens)
        if self.setting.adapter is not None:
            layers = sum(count for _, count in self.stage_layers)
            fixed += layers * sequences * tokens_each * costs.adapter_token_seconds
        return fixed

    @cached_property
    def overlaps(self) -> bool:
        """Tell whether the host prepares a step of this replica while the device computes the one before."""
        costs, gpus = self.engine.steps, self.setting.shard.tp * self.setting.pp
        states = self.engine.states
        if states is not None and states.steps_in_turn(self.model):
            return False
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
        near = self._near
        layers = [
            (near.layer(kind, tokens) + gap + self.latent.beside_products(kind)) * n
            for kind, n in self.dense_layers
            if n
        ]
        num_bytes = tokens * self.model.handed_size * shard.value_bytes
        return total([*layers, near.embedding(tokens), self.setting.send(num_bytes)])

    @cached_property
    def latent(self) -> LatentCosts:
        """Price kernels of latent attention."""
        return LatentCosts(self.engine.steps, self.setting.device.sheet, self.setting.shard.tp)

    @cached_property
    def _near(self) -> "EngineSteps":
        """Return the steps of fewest stages whose layers take the same: what they take is priced once."""
        return _steps_of(self.model, self.engine, in_fewest_stages(self.setting))

    @remembered
    def layer(self, kind: ModelArchitecture, tokens: int) -> Estimate:
        """Return what everything but attention takes in one layer of a kind."""
        return total([each for part in self._parts(kind) for each in self._part(part, tokens)])

    @remembered
    def _parts(self, kind: ModelArchitecture) -> tuple[ModelArchitecture, ...]:
        """Split a kind of layer into its attention alone and its feed-forward part alone.

        Kinds of layers that have a part in common, such as experts, share its price.
        """
        mixes = replace(kind, feed_forward=NO_PART, expert_details=None, window=None)
        return mixes, replace(kind, attention=NO_PART, window=None)

    @remembered
    def _part(self, part: ModelArchitecture, tokens: int) -> list[Estimate]:
        """Return what each operator of a kind of one part takes."""
        setting, batch = self.setting, _one_each(tokens)
        return self.prices(layer_operators(part, setting.shard, batch, setting.adapter), tokens)

    def prices(self, operators: Operators, tokens: int) -> list[Estimate]:
        """Return what each operator of a layer takes but for those of attention, with what quantises their inputs."""
        costs, narrow = self.engine.steps, quantises_inputs(self.setting.precision)
        if not narrow:
            operators, setting = in_place(costs, self.setting, self.model, operators, tokens)
            return self._prices(operators, setting)
        if costs.cast_bytes:
            operators = with_input_casts(operators, tokens, costs.cast_bytes)
        if self.setting.precision != "fp8":  # of no other format the rest was measured
            return self._prices(operators, self.setting)
        architecture, times = self.setting.device.sheet.architecture, 1.0
        if self.model.family in costs.triton_experts_of:
            times = costs.narrow_expert_times.get(architecture, 1.0)
        found = self._prices(operators, self.setting, expert_times=times)
        packed = costs.cast_seconds.get(architecture)
        if packed:
            casts = sum(
                isinstance(each, Gemm) and each.count == 1 and is_cast(each) for each in operators
            )
            found.append(Estimate(casts * packed, 0.0, Source.FITTED))
        return found

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
        setting, tp, device = self.setting, self.setting.shard.tp, self.setting.device
        value_bytes = cached_value_bytes(setting)
        rate = device.sheet.memory_bytes_per_second * share

        def reading(kind: ModelArchitecture) -> Estimate:
            num_bytes = running * read_bytes(kind, tp, value_bytes, cached)
            fastest, quantised = self._fastest_cache(kind, value_bytes)
            seconds = num_bytes / min(rate, fastest) + quantised
            beside = self.latent.beside_reading(kind, running, cached, seconds)
            return Estimate(seconds + beside, 0.0, Source.FITTED)

        def core(kind: ModelArchitecture) -> Estimate:
            # States are read and written whole for every sequence.
            sequences = running if state_bytes(kind, tp, value_bytes) else 1
            return self._attention(kind, sequences, 1, 1) + reading(kind)

        return self._layers(core)

    def _fastest_cache(self, kind: ModelArchitecture, value_bytes: int) -> tuple[float, float]:
        """Return the most bytes a second of a cache's kernels, and the seconds in a layer of those that quantise one in 8 bits."""
        steps, sheet = self.engine.steps, self.setting.device.sheet
        if kind.attention != GROUPED_ATTENTION:
            return self.latent.fastest_cache(kind, value_bytes), 0.0
        if value_bytes != NARROW_BYTES:
            return steps.tiled_cache_rate(sheet, value_bytes), 0.0
        rate = steps.narrow_cache_rate(sheet.architecture, kind.head_dim)
        return rate, steps.narrow_cache_seconds

    def prefill_attention(self, count: int, seen: int, tokens: int) -> Estimate:
        """Return what all layers' attention takes for chunks of prompts."""
        return self._layers(
            lambda kind: (
                self.latent.prompts(kind, count, tokens, seen)
                or self._attention(kind, count, tokens, seen)
            )
        )

    def _layers(self, cost: Callable[[ModelArchitecture], Estimate]) -> Estimate:
        """Return what attention takes in all layers of a stage, told what it does in one of each kind."""
        return total([cost(kind) * count for kind, count in self.attending_layers if count])

    def floor_seconds(self, tokens: float, *, prompts: bool = False) -> float:
        """Return what a step of so many tokens lasts at least: its launches, where no graph holds them.

        Args:
            prompts: Whether any of the tokens are a prompt's.
        """
        if prompts and tokens <= self.prompt_captured_tokens:
            sheet = self.setting.device.sheet
            return PIECES * self.model.num_layers * sheet.launch_seconds * sheet.host_times
        if prompts and self.engine.steps.prompt_launch_seconds:
            return self.launches(prompts=True)
        captured = self.engine.steps.captured_tokens
        if self.engine.launches_hidden and (not captured or tokens <= captured):
            return 0.0
        return self.launches()

    @cached_property
    def prompt_captured_tokens(self) -> int:
        """Return the most tokens of a step with prompts whose pieces between attentions graphs hold.

        0 where none do: not with images, adapters, pipelines and tokens that ranks exchange for their experts.
        """
        setting, shard = self.setting, self.setting.shard
        exchanged = shard.ep > 1 and not shard.sums_experts
        if self.model.vision_parameters or setting.adapter or setting.pp > 1 or exchanged:
            return 0
        held = self.engine.steps.prompt_captured_tokens
        kinds = {kind.attention for kind, _ in self.attending_layers}
        return min((held.get(kind, 0) for kind in kinds), default=0)

    @remembered
    def launches(self, *, prompts: bool = False) -> float:
        """Return what the host takes to launch all layers' kernels, where that does not hide: a step takes at least as long.

        Args:
            prompts: Whether the step has any, and graphs hold none.
        """
        skew = self.engine.steps.launch_skew_seconds * math.log2(self.setting.shard.tp)
        return layer_kinds(self.model).total(
            lambda kind: self._layer_launch(kind, prompts=prompts) + ALL_REDUCES * skew
        )

    def _layer_launch(self, kind: ModelArchitecture, *, prompts: bool) -> float:
        sheet, costs = self.setting.device.sheet, self.engine.steps
        experts = kind.feed_forward_part == "experts"
        if told := self.engine.launch_seconds_on(sheet, experts=experts):
            told = costs.prompt_launch_seconds if experts and prompts else told
            normed = kind.qk_norm and kind.attention not in SCANNED
            beside = costs.mixer_launch_seconds.get(kind.attention, 0.0)
            beside += 2 * costs.norm_launch_seconds if normed else 0.0
            if self.setting.adapter is not None:
                beside += costs.adapter_launch_seconds
            if prompts:
                beside += costs.prompt_mixer_seconds.get(kind.attention, 0.0)
            return (told + beside) * sheet.host_times
        batch = Batch(sequences=1, tokens=1, sequence_tokens=1, head_tokens=0)
        operators = layer_operators(kind, self.setting.shard, batch)
        own = tuple(each for each in operators if not isinstance(each, Collective))
        return kernels_of(own) * sheet.launch_seconds * sheet.host_times

    def host_seconds(self, sequences: float) -> float:
        """Return what the host does in a step of so many sequences."""
        return self._host_step_seconds + self.engine.steps.seconds_per_sequence * sequences

    @cached_property
    def _host_step_seconds(self) -> float:
        """Return what the host does in a step, however many sequences it has."""
        engine, setting = self.engine, self.setting
        step = engine.step_seconds
        step += engine.steps.worker_seconds if setting.shard.tp * setting.pp > 1 else 0.0
        dispatched = engine.steps.dispatch_seconds
        longer = step if dispatched is None else min(step, dispatched)
        return step + longer * (setting.device.sheet.host_times - 1)

    def _attention(
        self, kind: ModelArchitecture, sequences: int, tokens: int, cached: int
    ) -> Estimate:
        sizes = (self.setting.shard.tp, max(1, sequences), max(1, tokens), cached)
        setting = self._of_prompts if tokens > 1 else in_wide_format(self.setting)
        return price(setting, attention_core(kind, *sizes), part="embedding").total

    @cached_property
    def _of_prompts(self) -> Setting:
        return of_prompts(self.setting, self.engine.steps)

    def _price(self, operators: Operators, setting: Setting | None = None) -> Estimate:
        return total(self._prices(operators, setting or self.setting))

    def _prices(
        self, operators: Operators, setting: Setting, expert_times: float = 1.0
    ) -> list[Estimate]:
        """Return what each operator takes but for those of attention.

        Args:
            expert_times: Times as long as the products of experts take.
        """
        found: list[Estimate] = []
        for each in operators:
            if isinstance(each, Collective):
                found.append(exchanged(self.engine.steps, self.model.family, self.setting, each))
            elif not isinstance(each, Attention | Scan):
                seconds = operator_seconds(setting, each)
                experts = isinstance(each, Gemm) and each.count > 1
                found.append(seconds * expert_times if experts else seconds)
        return found


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


_steps_of = kept_with(lambda *asked, **_: asked[2].device)(EngineSteps)


def engine_steps(replica: ReplicaSetting) -> EngineSteps:
    """Return the parts of a replica's steps, by operators' times and the engine's constants."""
    return EngineSteps(
        replica.model, replica.engine, replica.setting, tower_seconds=replica.tower_seconds
    )
