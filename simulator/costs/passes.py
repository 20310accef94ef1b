"""Infer and train tasks: passes of micro-batches, their pipeline, what ranks exchange, measured passes.

Operators are priced in `rlplan.simulator.costs.pricing`; nothing here knows generation.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce

import numpy as np
import numpy.typing as npt

from rlplan.estimate import ZERO, Estimate, Source
from rlplan.models import (
    FP32_BYTES,
    WIDE,
    Batch,
    CollectiveKind,
    Head,
    ModelArchitecture,
    Shard,
    layer_kinds,
)
from rlplan.plan import Recompute
from rlplan.profiles.analytic.efficiencies import host_step
from rlplan.profiles.analytic.ordered import distinct
from rlplan.results.forecast import CALL
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.simulator.columns import SHARD_COLUMNS, Flags, Floats, Ints
from rlplan.simulator.costs.pricing import Direction, pass_seconds
from rlplan.simulator.costs.rows import batch_of, planned_seconds, waiting
from rlplan.simulator.costs.setting import Setting, setting_of, stages_apart
from rlplan.simulator.costs.taskcost import (
    DRIVER,
    GRADIENTS_TO_HOST,
    STATES_AWAY,
    STATES_BACK,
    WEIGHTS_BACK,
    call_of,
    driver_of,
    gradients_added_on_host,
    gradients_to_host,
    layers_from_host,
    moments_from_host,
    moments_to_host,
    parts_on_host,
    shard_from_host,
    states_from_host,
    states_to_host,
    stepped_parameters,
    stepping_ranks,
    weights_from_host,
)
from rlplan.simulator.costs.teaching import candidate_bytes, taught_bytes
from rlplan.simulator.costs.towers import training_passes
from rlplan.simulator.model import OFFLOADED, kinds_of_stages
from rlplan.simulator.placed import PlacedTask, PlacedTasks
from rlplan.simulator.workload import held_by
from rlplan.workload import longest

# Rows of the packed arrays. The first two are seconds; of the others sums keep the largest.
SECONDS, SPREAD, SOURCE, OUTSIDE = range(4)
NUMBERS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Hold estimates of any shape, one for each layout along the last axis.

    Attributes:
        packed: Seconds, their spread in seconds, the source's number, and 1 where a look-up left the
            measured range. Shape (4, ..., layouts).
    """

    packed: Floats

    @property
    def seconds(self) -> Floats:
        """Return the central values. Shape (..., layouts)."""
        return np.asarray(self.packed[SECONDS])

    def __getitem__(self, place: int) -> "Estimates":
        """Return one part of the first axis."""
        return Estimates(self.packed[:, place])

    def __add__(self, other: "Estimates") -> "Estimates":
        """Return the sums: spreads add up, the weakest source and any flag stay."""
        return Estimates(
            np.concatenate(
                (
                    self.packed[:SOURCE] + other.packed[:SOURCE],
                    np.maximum(self.packed[SOURCE:], other.packed[SOURCE:]),
                )
            )
        )

    def __mul__(self, factor: float | Floats | Ints) -> "Estimates":
        """Return the estimates repeated so many times; nothing is known of what is repeated never."""
        packed = self.packed.copy()
        packed[:SOURCE] *= factor
        packed[SOURCE:] *= np.asarray(factor) > 0
        return Estimates(packed)

    def where(self, chosen: Flags) -> "Estimates":
        """Return the estimates of the chosen layouts, and nothing for all others."""
        return Estimates(self.packed * chosen)

    def summed(self) -> "Estimates":
        """Return the sum over the first axis."""
        return Estimates(
            np.concatenate((self.packed[:SOURCE].sum(axis=1), self.packed[SOURCE:].max(axis=1)))
        )

    def with_spread(self, fraction: float, *, least_source: Source) -> "Estimates":
        """Return the estimates with another relative spread where their source is weak enough."""
        packed = self.packed.copy()
        weak = packed[SOURCE] >= least_source
        packed[SPREAD] = np.where(weak, packed[SECONDS] * fraction, packed[SPREAD])
        return Estimates(packed)

    def row(self, row: int) -> Estimate:
        """Return one layout's estimate."""
        seconds, spread, source, outside = self.packed[..., row].tolist()
        return Estimate(seconds, spread, Source(int(source)), bool(outside))


def pack(estimates: Iterable[Estimate]) -> Floats:
    """Return estimates as they are held packed. Shape (4, estimates)."""
    each = [
        (one.seconds, one.spread_seconds, float(one.source), float(one.outside_range))
        for one in estimates
    ]
    return np.array(each, dtype=np.float64).reshape(-1, NUMBERS).T


@dataclass(frozen=True, slots=True)
class _Packed:
    """Answer with a function's estimates as they are held packed; of equal functions, alike."""

    estimate: Callable[[PlacedTask], Estimate | tuple[Estimate, ...]]

    def __call__(self, placed: PlacedTask) -> Floats:
        """Return the estimates of one layout. Shape (4,) or (4, estimates)."""
        found = self.estimate(placed)
        return pack((found,))[:, 0] if isinstance(found, Estimate) else pack(found)


def estimates_by(
    table: PlacedTasks,
    names: Sequence[str],
    estimate: Callable[[PlacedTask], Estimate | tuple[Estimate, ...]],
    *,
    of_any_lengths: bool = False,
) -> Estimates:
    """Return estimates that depend on some columns only, made once for each of their values.

    Args:
        of_any_lengths: Whether they do not depend on how long prompts and responses are.
    """
    return Estimates(table.by(names, _Packed(estimate), of_any_lengths=of_any_lengths))


def _of_states(
    table: PlacedTasks, estimate: Callable[[PlacedTask], Estimate | tuple[Estimate, ...]]
) -> Estimates:
    """Return estimates that depend on the states which a rank holds, and not on what is computed with them."""
    return estimates_by(table, STATE_COLUMNS, estimate, of_any_lengths=True)


def constant(seconds: npt.ArrayLike, source: Source) -> Estimates:
    """Return seconds that have no spread."""
    known = np.atleast_1d(np.asarray(seconds, dtype=np.float64))
    rest = np.zeros_like(known)
    return Estimates(np.stack((known, rest, np.full_like(known, source), rest)))


def either(chosen: Flags, one: Estimates, other: Estimates) -> Estimates:
    """Return the one estimates where chosen, and the others elsewhere."""
    return Estimates(np.where(chosen, one.packed, other.packed))


Parts = dict[str, Estimates]

# Each of the packed passes, a layer's of each kind, the embedding's and the head's: three directions.
PASS_SHAPE = (3, 2)
# Columns that decide how long ranks wait for the one with the most tokens.
WAITING_COLUMNS = ("dp", "micro_batch", "token_budget")
MIDDLE_STAGES = 2  # more stages than so many have one between the first and the last


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """Hold what one micro-batch costs in each layout's pipeline.

    Attributes:
        passes: On the slowest stage, by direction (forward, backward, repeated) and by what it computes
            and what it exchanges with its group. Shape (3, 2, layouts).
        others: All other stages' work on the micro-batch: what filling and draining waits for.
        send: Handing activations to the next stage, one way.
    """

    passes: Estimates
    others: Estimates
    send: Estimates

    @property
    def compute(self) -> Estimates:
        """Return what is computed in each direction. Shape (3, layouts)."""
        return Estimates(self.passes.packed[:, :, 0])

    @property
    def collectives(self) -> Estimates:
        """Return what is exchanged in each direction. Shape (3, layouts)."""
        return Estimates(self.passes.packed[:, :, 1])

    def where(self, chosen: Flags) -> "Slots":
        """Return the slots of the chosen layouts, and nothing for all others."""
        return Slots(self.passes.where(chosen), self.others.where(chosen), self.send.where(chosen))


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatches:
    """Hold the micro-batches that a rank passes through the pipeline: full ones, and a smaller rest.

    Attributes:
        full: The cost of a full one, or of the only one where there are fewer sequences than that.
        count: How many are full.
        rest: The cost of the smaller last one; nothing where there is none.
        has_rest: Whether there is one.
    """

    full: Slots
    count: Ints
    rest: Slots
    has_rest: Ints

    @property
    def total_count(self) -> Ints:
        """Return how many micro-batches there are."""
        return np.asarray(self.count + self.has_rest)

    def summed(self, amount: Callable[[Slots], Estimates]) -> Estimates:
        """Return an amount of all micro-batches together."""
        return amount(self.full) * self.count + amount(self.rest)

    @property
    def last_backward(self) -> Estimates:
        """Return the backward pass of the last micro-batch."""
        return either(self.has_rest > 0, self.rest.compute[1], self.full.compute[1])


def micro_batches_of(table: PlacedTasks) -> MicroBatches:
    """Return what the micro-batches of all layouts cost."""
    size, local = table.columns.micro_batch, table.local
    full_size = np.minimum(size, local)
    rest_size = local % full_size
    has_rest = rest_size > 0
    full = _slots(_sized(table, full_size))
    rest = full.where(has_rest)
    if np.any(has_rest):
        rest = _slots(_sized(table, np.where(has_rest, rest_size, full_size))).where(has_rest)
    return MicroBatches(full, local // full_size, rest, has_rest.astype(np.int64))


def _sized(table: PlacedTasks, size: Ints) -> PlacedTasks:
    return table.with_columns(table.columns.changed(micro_batch=size))


def _slots(table: PlacedTasks) -> Slots:
    columns, model = table.columns, table.any.model
    layers, first, last = _passes(table)
    cut = ("pp", "first_stage_layers", "last_stage_layers")
    counts = table.by(cut, partial(_stage_layers, _middles(table)))
    counts = counts.reshape(-1, len(layers), len(table))
    alone = columns.pp == 1
    # Stages that differ: the first, the last, and those between them.
    stages = np.stack(
        [
            (_of_layers(layers, counts[0]) + first + last.where(alone)).packed,
            (_of_layers(layers, counts[1]) + last).packed,
            *(_of_layers(layers, middle).packed for middle in counts[2:]),
        ],
        axis=1,
    )
    whole = stages[0].sum(axis=(1, 2))
    whole[1, alone] = -np.inf
    whole[2:, columns.pp <= MIDDLE_STAGES] = -np.inf
    slowest = np.argmax(whole, axis=0)
    chosen = Estimates(np.take_along_axis(stages, slowest[None, None, None, None], axis=1)[:, 0])
    kinds = layer_kinds(model).counts(0, model.num_layers)
    everything = (_of_layers(layers, kinds) + first + last).summed().summed()
    least = np.divide(whole.max(axis=0), everything.seconds)
    others = everything * np.where(alone, 0.0, np.maximum(0.0, 1 - least))
    return Slots(chosen, others, _sends(table))


def _of_layers(layers: Sequence[Estimates], counts: Sequence[int] | Floats) -> Estimates:
    each = (layer * count for layer, count in zip(layers, counts, strict=True))
    passes: Estimates = reduce(Estimates.__add__, each)
    return passes


def _passes(table: PlacedTasks) -> tuple[list[Estimates], Estimates, Estimates]:
    """Return the passes of a layer of each kind, the embedding's and the head's, of shape (3, 2, layouts)."""
    # Where a stage stands matters to groups beyond a tensor-parallel one only, as far as they share nodes.
    columns, per_node = table.columns, table.any.site.gpus_per_node
    apart = stages_apart(columns.tp, per_node)
    beyond = (columns.cp * columns.ep > 1) & (not table.any.engine.stages_outermost)
    stages = np.where(beyond, np.minimum(columns.pp, apart), 1)
    # A rank that has all of a model's states gathers none.
    zero = np.where(columns.state_ranks > 1, columns.zero, 0)
    placed = table.with_columns(columns.changed(pp=stages, zero=zero))
    names: tuple[str, ...] = (*SHARD_COLUMNS, "pp", "micro_batch", "recompute")
    if placed.any.options.fills_budgets or placed.any.framework.pads_counted:
        names += ("token_budget",)
    if placed.any.options.adapters_apart or placed.any.engine.unit_gather_seconds:
        names += ("zero",)
    if placed.any.engine.padding == "rank":
        names += ("dp",)
    packed = placed.by(names, _packed_passes, on_any_site=True, of_any_role=True).reshape(
        NUMBERS, -1, *PASS_SHAPE, len(table)
    )
    *layers, first, last = (Estimates(packed[:, place]) for place in range(packed.shape[1]))
    return layers, first, last


def _packed_passes(placed: PlacedTask) -> Floats:
    batch = batch_of(placed)
    recompute = placed.recompute if placed.trains else None
    setting, beside, gathered = setting_of(placed), _padded_bytes(placed, batch), 0.0
    if placed.job.top_tokens or placed.job.compares_all:
        positions = batch.head_tokens / placed.layout.cp
        forward, backward = taught_bytes(placed, positions)
        beside = beside[0] + forward, beside[1] + backward
        gathered = candidate_bytes(placed, positions)
    waits = recompute == OFFLOADED and placed.engine.copies_inputs_in_turn
    copied = _row_bytes(setting.shard, placed.model, batch) if waits else 0
    model, head = placed.computed_model, placed.task.head
    packed = _packed(setting, model, batch, head, recompute, beside, gathered, copied)
    if not held_by(placed.workload, placed.model):
        return packed
    return _with_tower(packed, placed, setting, batch, recompute)


def _with_tower(
    packed: Floats, placed: PlacedTask, setting: Setting, batch: Batch, recompute: Recompute | None
) -> Floats:
    """Return packed passes with those of the tower of images in the embedding's."""
    directions: tuple[Direction, ...] = ("forward",)
    if recompute is not None:
        directions = ("forward", "backward", recompute)
    found: list[Estimate] = []
    for direction in directions:
        each = training_passes(setting, placed, batch.sequences, direction)
        found += [each.compute, each.collectives]
    numbers = math.prod(PASS_SHAPE)
    tower = pack([*found, *[ZERO] * (numbers - len(found))])
    embedding = packed.shape[1] - 2 * numbers
    rows = slice(embedding, embedding + numbers)
    whole = packed.copy()
    whole[:, rows] = (Estimates(packed[:, rows]) + Estimates(tower)).packed
    return whole


def _row_bytes(shard: Shard, model: ModelArchitecture, batch: Batch) -> int:
    """Return the bytes of hidden states between two layers."""
    num_bytes = -(-batch.tokens // shard.cp) * model.handed_size * shard.value_bytes
    return num_bytes // shard.tp if shard.splits_sequence else num_bytes


def _padded_bytes(placed: PlacedTask, batch: Batch) -> tuple[float, float]:
    """Return the bytes that padded logits of a micro-batch move forwards and backwards."""
    each = placed.engine.padded_logits
    if each is None or placed.task.head != "lm":
        return 0.0, 0.0
    work = placed.workload
    width = work.longest_sequence_tokens if each.prompts else longest(work.response_tokens)
    rows = batch.sequences * width / placed.layout.cp
    logits = rows * -(-placed.model.vocab_size // placed.layout.tp)
    if not placed.trains:
        return logits * each.infer_bytes, 0.0
    return logits * each.forward_bytes, logits * each.backward_bytes


@lru_cache(maxsize=8192)
def _packed(
    setting: Setting,
    model: ModelArchitecture,
    batch: Batch,
    head: Head,
    recompute: Recompute | None,
    beside: tuple[float, float],
    gathered: float,
    copied: int,
) -> Floats:
    """Return (layers by kind, embedding, head) x (forward, backward, repeated) x (compute, collectives).

    Args:
        beside: Bytes that padded logits, and a teacher's likeliest tokens, move beside the head forwards and backwards.
        gathered: Bytes that tensor-parallel ranks gather of those tokens.
        copied: Bytes of a layer's input that go to the host and come back while nothing is computed.
    """
    directions: tuple[Direction, ...] = ("forward",)
    if recompute is not None:
        directions = ("forward", "backward", recompute)
    found: list[Estimate] = []
    for kind in layer_kinds(model).models:
        for direction in directions:
            each = pass_seconds(setting, kind, "layer", batch, direction)
            if recompute == "alternate" and direction == recompute:
                each = each * 0.5
            found += [each.compute, each.collectives]
            if copied and direction == recompute:
                found[-2] += _there_and_back(setting, copied)
        found += [ZERO] * (-len(found) % 6)
    # Embedding and head are outside the layers, and no mode computes them again.
    for direction in directions[:2]:
        end = pass_seconds(setting, model, "embedding", batch, direction)
        found += [end.compute, end.collectives]
    found += [ZERO] * (-len(found) % 6)
    for direction, num_bytes in zip(directions[:2], beside, strict=False):
        end = pass_seconds(setting, model, "head", batch, direction, head)
        moved = setting.device.memory_bound(num_bytes) if num_bytes else ZERO
        exchanged = ZERO
        if direction == "forward":
            exchanged = setting.collective("all_gather", gathered, setting.shard.tp)
        found += [end.compute + moved, end.collectives + exchanged]
    found += [ZERO] * (-len(found) % 6)
    return pack(found)


def _there_and_back(setting: Setting, num_bytes: int) -> Estimate:
    away = setting.device.copy(num_bytes, "device_to_host")
    return away + setting.device.copy(num_bytes, "host_to_device")


def _middles(table: PlacedTasks) -> int:
    """Return how many unlike stages lie between the first and the last, at most."""
    model = table.any.model
    if len(layer_kinds(model).models) == 1:
        return 1  # the fullest of them is the second
    cuts = (table.any.cut._replace(pp=stages) for stages in distinct(table.columns.pp).tolist())
    return max([1, *(len(set(kinds_of_stages(model, cut)[1:-1])) for cut in cuts)])


def _stage_layers(middles: int, placed: PlacedTask) -> Floats:
    """Return the layers of each kind on the first, on the last, and on so many stages between them.

    Returns:
        Shape ((2 + middles) * kinds,); stages are repeated where fewer are unlike.
    """
    stages = kinds_of_stages(placed.model, placed.cut)
    second = stages[min(1, len(stages) - 1)]
    between = list(dict.fromkeys(stages[1:-1])) if middles > 1 else []
    between += [second] * (middles - len(between))
    return np.array([stages[0], stages[-1], *between], dtype=np.float64).ravel()


def _sends(table: PlacedTasks) -> Estimates:
    """Return the seconds of a send, which depends on pp by whether a boundary crosses nodes."""
    columns, per_node = table.columns, table.any.site.gpus_per_node
    crossing = np.where(columns.tp * columns.pp > per_node, per_node + 1, 2)
    placed = table.with_columns(columns.changed(pp=np.where(columns.pp == 1, 1, crossing)))
    names: tuple[str, ...] = ("tp", "cp", "pp", "micro_batch")
    if table.any.options.fills_budgets:
        names += ("token_budget",)
    return Estimates(placed.by(names, _Packed(_send), of_any_role=True))


def _send(placed: PlacedTask) -> Estimate:
    """Return seconds of handing one micro-batch's activations to the next stage, tp ranks away.

    Ranks that each send a share gather the whole there (Narayanan et al. 2021, section 4.1), unless
    they need but their part of the sequence.
    """
    setting = setting_of(placed)
    if setting.pp == 1:
        return ZERO
    shard = setting.shard
    batch = batch_of(placed)
    num_bytes = _row_bytes(shard, placed.model, batch)
    if shard.splits_sequence:
        return setting.send(num_bytes)
    if setting.splits_sends:
        gathered = setting.collective("all_gather", num_bytes, shard.tp, 1)
        return setting.send(num_bytes // shard.tp) + gathered
    return setting.send(num_bytes)


def pipeline_parts(table: PlacedTasks, batches: MicroBatches) -> Parts:
    """Return seconds by cause of passing all micro-batches through the pipeline once.

    With m micro-batches, 1F1B (Narayanan et al. 2021, arXiv:2104.04473, section 2.2) lasts as the
    slowest stage's m slots, and one slot of every other stage to fill and drain: with equal stages
    (m + p - 1) slots, a bubble of (p - 1) / m. Stages of several chunks of layers fill and drain
    by chunks, and hand activations on once per chunk (section 2.2.2).
    """
    columns = table.columns
    chunks = columns.chunks if table.any.trains else np.ones_like(columns.chunks)
    compute = batches.summed(lambda slots: slots.compute)
    collectives = batches.summed(lambda slots: slots.collectives.summed())
    each, once = send_counts(columns.pp, chunks, 2 if table.any.trains else 1)
    if table.any.trains and table.any.options.overlaps_sends:
        each = np.where(
            chunks > 1, 0, each
        )  # but while it fills and drains a stage has others to compute
    parts = {
        "forward": compute[0],
        "backward": compute[1],
        "recompute": compute[2],
        "tensor-parallel collectives": collectives,
        "pipeline bubble": batches.full.others * (1 / chunks),
        "pipeline sends": batches.full.send * once
        + batches.summed(lambda slots: slots.send) * each,
    }
    # Who meets in a group that shares out experts matters where there are any, and stages where packs are padded.
    names: tuple[str, ...] = WAITING_COLUMNS
    if table.any.model.num_experts:
        names += (*SHARD_COLUMNS, "pp")
    elif table.any.framework.pads_packs:
        names += ("pp",)
    uneven = table.by(names, waiting, of_any_role=True)[0]
    work = compute.summed() + collectives
    return parts | {"uneven lengths": work * uneven}


def send_counts(stages: Ints, chunks: Ints, ways: int) -> tuple[Ints, Ints]:
    """Return how often a stage sends per micro-batch, and what filling and draining adds.

    A stage between others sends in every way (activations on, gradients back), one of two stages
    in one way only, unless several chunks of layers make it both the first and a later one.

    Args:
        ways: 2 where a backward pass follows, else 1.
    """
    several = stages > 1
    each = np.where((chunks > 1) | (stages > MIDDLE_STAGES), ways, 1)
    once = ways * (stages - 1) - each
    return np.where(several, each * chunks, 0), np.where(several, once, 0)


# Columns that decide which states a rank holds, and with whom it shares them.
STATE_COLUMNS = (
    "tp",
    "pp",
    "ep",
    "expert_tp",
    "first_stage_layers",
    "last_stage_layers",
    "dp",
    "cp",
    "zero",
    "shard_ranks",
)


def gradient_exchanges(table: PlacedTasks, batches: MicroBatches) -> dict[str, Estimates]:
    """Return seconds by cause of what data-parallel ranks exchange in one update, nothing hidden.

    ZeRO stages as Rajbhandari et al. 2020 (arXiv:1910.02054), section 7: 0 all-reduces gradients;
    1 reduce-scatters them and gathers the updated weights; from 2 on gradients are kept sharded, so
    every micro-batch's are reduced unless whole ones wait for the last; 3 also gathers the weights for each forward and
    each backward.
    """
    zero, count = table.columns.zero, batches.total_count
    waits = table.any.options.waiting_gradients is not None
    reduced = np.ones_like(count) if waits else count
    once = _of_states(table, gradient_exchange)
    parts = {
        "gradient reduction": once[0] * np.where(zero > 1, reduced, 1),
        "weight gathers": once[1] * np.where(zero == FULLY_SHARDED, 2 * count, 1),
    }
    if table.any.options.host_optimizer and not table.any.engine.keeps_gradients:
        # Sharded ones lie in host memory from the first micro-batch on: those of each later one are added on the GPU,
        # where the sum comes and whence it goes (DeepSpeed 0.13, runtime/zero/stage3.py, partition_grads).
        ways = np.where(zero > 1, 2 * count - 1, 1)
        parts[GRADIENTS_TO_HOST] = _of_states(table, gradients_to_host) * ways
    if table.any.options.host_states:
        # What is gathered comes from the host each time, and what is reduced goes there with every micro-batch, to be added to
        # what the ones before left (PyTorch 2.11, torch/distributed/fsdp/_fully_shard: _fsdp_param.py, all_gather_inputs).
        ways = np.where(zero == FULLY_SHARDED, 2 * count, count)
        parts[WEIGHTS_BACK] = _of_states(table, layers_from_host) * ways
        added = _of_states(table, gradients_added_on_host) * (reduced - 1)
        parts[GRADIENTS_TO_HOST] = _of_states(table, gradients_to_host) + added
    return parts


def gradient_exchange(placed: PlacedTask) -> tuple[Estimate, Estimate]:
    """Return one reduction of gradients, and one gather of weights.

    Groups that shard states among themselves (hybrid sharding; Zhao et al. 2023, arXiv:2304.11277, section
    3.2.2) all-reduce what each rank has of the gradients with the other groups.
    """
    layout, setting = placed.layout, setting_of(placed)
    ranks = placed.state_ranks
    groups = layout.dp * layout.cp // ranks
    if ranks * groups == 1:
        return ZERO, ZERO
    sizes = placed.formats
    wire_bytes = placed.gradient_bytes
    if placed.options.gradients is None:
        wire_bytes = setting.kernels.gradient_wire_bytes or wire_bytes
    gradients = placed.trained_parameters * wire_bytes
    gathered = placed.trained_parameters  # what was stepped; frozen weights are where they were
    if layout.zero == FULLY_SHARDED:
        gathered = placed.parameters + placed.adapter_parameters
    weights = gathered * sizes.weight_bytes
    if layout.zero == 0:
        return _among_copies(placed, setting, "all_reduce", gradients), ZERO
    reduced = _among_copies(placed, setting, "reduce_scatter", gradients)
    if groups > 1:
        stride = layout.tp * setting.block_stages * ranks
        reduced = reduced + setting.collective("all_reduce", gradients / ranks, groups, stride)
    return reduced, _among_copies(placed, setting, "all_gather", weights)


def _among_copies(
    placed: PlacedTask, setting: Setting, kind: CollectiveKind, num_bytes: float
) -> Estimate:
    """Return seconds of a collective of a device's states: fewer ranks have copies of its experts."""
    layout, ranks = placed.layout, placed.state_ranks
    stride, copies = layout.tp * setting.block_stages, placed.expert_copies(ranks)
    if copies == ranks or placed.adapter is not None:
        return setting.collective(kind, num_bytes, ranks, stride)
    experts = num_bytes * placed.expert_parameters / placed.parameters
    rest = setting.collective(kind, num_bytes - experts, ranks, stride)
    apart = max(1, stride * layout.expert_ranks // layout.tp)
    return rest + setting.collective(kind, experts, copies, apart)


def weight_gathers(table: PlacedTasks, batches: MicroBatches) -> dict[str, Estimates]:
    """Return seconds of gathering fully sharded weights for each forward pass, nothing hidden; from the host, where they live there."""
    gathered, any_ = _of_states(table, _weight_gather), table.any
    found = {"weight gathers": gathered * batches.total_count}
    if any_.options.host_states:
        found[WEIGHTS_BACK] = _of_states(table, layers_from_host) * batches.total_count
    elif any_.framework.gathers_from_host and not any_.trains_role:
        found[WEIGHTS_BACK] = _copied(table, shard_from_host) * batches.total_count
    return found


def _weight_gather(placed: PlacedTask) -> Estimate:
    layout, ranks = placed.layout, placed.state_ranks
    if layout.zero < FULLY_SHARDED or ranks == 1:
        return ZERO
    weights = (placed.parameters + placed.adapter_parameters) * placed.formats.weight_bytes
    return _among_copies(placed, setting_of(placed), "all_gather", weights)


def exposed(
    exchanges: Mapping[str, Estimates], overlap_fraction: float, hideable: Estimates
) -> dict[str, Estimates]:
    """Return what of each exchange does not hide; at most the hideable compute's length does."""
    whole = sum(part.seconds for part in exchanges.values())
    hidden = np.minimum(overlap_fraction * whole, hideable.seconds)
    left = 1 - np.divide(hidden, whole, out=np.zeros_like(hidden), where=whole > 0)
    return {name: part * left for name, part in exchanges.items()}


def infer_parts(table: PlacedTasks) -> Parts:
    """Return what an infer task costs on operators' times: forward passes of a global batch."""
    engine, batches = table.any.engine, micro_batches_of(table)
    parts = pipeline_parts(table, batches)
    parts["host work"] = _host_work(table, batches)
    gathers = weight_gathers(table, batches)
    parts |= exposed(gathers, engine.overlap_fraction, parts["forward"])
    if WEIGHTS_BACK not in parts:
        parts[WEIGHTS_BACK] = _copied(table, weights_from_host)
    return parts | {CALL: estimates_by(table, ("dp",), call_of)}


def train_parts(table: PlacedTasks) -> Parts:
    """Return what a train task costs on operators' times: all its updates and epochs."""
    workload = table.any.workload
    updates = workload.updates * workload.epochs
    whole = {name: part * updates for name, part in update_parts(table).items()}
    if np.any(table.columns.offload) and not table.any.options.host_states:
        whole[STATES_BACK] = _copied(table, states_from_host)
        whole[STATES_AWAY] = _copied(table, states_to_host)
        if table.any.framework.loads_for_step and updates > 1:
            whole[STATES_BACK] += _copied(table, moments_from_host) * (updates - 1)
            whole[STATES_AWAY] += _copied(table, moments_to_host) * (updates - 1)
    whole[CALL] = estimates_by(table, ("dp",), call_of)
    return whole | {DRIVER: estimates_by(table, (), driver_of)}


def update_parts(table: PlacedTasks) -> Parts:
    """Return what one update costs: its micro-batches, what they exchange, the optimizer's step.

    It is an iteration of pre-training too, when the job's global batch is one update.
    """
    engine, batches = table.any.engine, micro_batches_of(table)
    parts = pipeline_parts(table, batches)
    parts["host work"] = _host_work(table, batches)
    exchanges = gradient_exchanges(table, batches)
    parts |= exposed(exchanges, engine.overlap_fraction, _hideable(table, batches))
    # A step asks whether optimizer states are sharded, not what else is.
    sharded = table.columns.changed(zero=np.minimum(table.columns.zero, 1))
    states = table.with_columns(sharded)
    parts["optimizer"] = _of_states(states, _optimizer_step)
    spread = engine.passes_spread(table.any.model)
    if not spread:
        return parts
    kept = parts_on_host(table.any.options)
    return {
        name: part if name in kept else part.with_spread(spread, least_source=Source.MEASURED)
        for name, part in parts.items()
    }


def _host_work(table: PlacedTasks, batches: MicroBatches) -> Estimates:
    engine, count = table.any.engine, batches.total_count
    planned = planned_seconds(table, count)
    return constant(engine.step_seconds * count + planned, Source.DATASHEET)


def _hideable(table: PlacedTasks, batches: MicroBatches) -> Estimates:
    """Return the compute seconds behind which communication can hide.

    Reductions of whole gradients start in the last micro-batch's backward pass; sharded ones run
    behind every micro-batch's, and gathers of sharded weights behind the forward pass too.
    """
    zero = table.columns.zero
    everything = batches.summed(lambda slots: slots.compute.summed())
    backward = batches.summed(lambda slots: slots.compute[1])
    behind = either(zero == FULLY_SHARDED, everything, backward)
    return either(zero <= 1, batches.last_backward, behind)


def _optimizer_step(placed: PlacedTask) -> Estimate:
    """Return seconds of one optimizer step on the local shard, with the gradients' norm before it.

    What steps on the host is stepped by the rank's process, after what steps on the GPU.
    """
    setting, local = setting_of(placed), stepped_parameters(placed)
    norm = setting.device.memory_bound(local * placed.gradient_bytes)
    away = 1.0 if placed.options.host_states else placed.options.host_optimizer
    step = norm
    if away < 1:
        on_gpu = math.ceil(local * (1 - away))
        step = setting.device.optimizer_step(on_gpu, WIDE[placed.precision]) + norm
    step = step * (1 / setting.kernels.optimizer_rate) + _norm_sum(placed, setting)
    return step + host_step(local * away) if away else step


def _norm_sum(placed: PlacedTask, setting: Setting) -> Estimate:
    """Return seconds of adding up the squared norms of all ranks that hold different gradients."""
    ranks = placed.layout.tp * placed.layout.pp * stepping_ranks(placed)
    return setting.collective("all_reduce", FP32_BYTES, ranks, 1) if ranks > 1 else ZERO


def _copied(table: PlacedTasks, seconds: Callable[[PlacedTask], Estimate]) -> Estimates:
    """Return seconds of what lives in host memory between uses, where it does."""
    away = table.columns.offload > 0
    if not np.any(away):
        return constant(np.zeros(len(table)), Source.MEASURED)
    return _of_states(table, seconds).where(away)
