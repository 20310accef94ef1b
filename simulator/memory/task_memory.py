"""The bytes that one task puts on a GPU, by term.

Resident terms stay while other tasks of the pool run; transient ones live as long as their task. Terms of
tasks that infer or train are worked out for many layouts at once; a single one is a table of one row.
"""

from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from rlplan.files.frozen import FrozenDict
from rlplan.model import layer_kinds
from rlplan.rules.layouts import FULLY_SHARDED
from simulator.generation.waves import most_prompts
from simulator.model.activations import layer_activation_bytes, logits_bytes
from simulator.model.weights import (
    kinds_of_stages,
    largest_shard,
    layer_parameters,
    shard_parameters,
)
from simulator.placed.columns import Floats, Ints
from simulator.placed.task import PlacedTask, PlacedTasks
from simulator.workload.shared_prompts import least_shared_tokens, samples_sharing

# Share of activations and logits that is lost between blocks of PyTorch's caching allocator: 15 %
# on average and up to 33 % were measured in training (Guo et al. 2024, GMLake, arXiv:2401.08156,
# abstract); expandable segments, the usual setting since, give back part of it.
FRAGMENTATION_FRACTION = 0.10

# Layers whose weights ZeRO stage 3 holds whole at a time: the running one and the prefetched one.
GATHERED_LAYERS = 2

GRADIENTS_SHARDED = 2  # the ZeRO stage from which on gradients are kept sharded

ACTIVATIONS = "activations"
CONTEXT = "context and libraries"
FRAGMENTATION = "fragmentation margin"
KV_CACHE = "KV cache"
LOGITS = "logits"

Terms = dict[str, int]
ManyTerms = dict[str, Ints]
EMPTY: FrozenDict[str, int] = FrozenDict()


@dataclass(frozen=True, slots=True)
class TaskMemory:
    """Hold the bytes that a task puts on its fullest GPU, by term."""

    resident: FrozenDict[str, int] = EMPTY
    transient: FrozenDict[str, int] = EMPTY

    @property
    def resident_bytes(self) -> int:
        """Return the bytes that stay while other tasks run."""
        return sum(self.resident.values())

    @property
    def transient_bytes(self) -> int:
        """Return the bytes that live as long as the task."""
        return sum(self.transient.values())


@dataclass(frozen=True, slots=True, eq=False)
class LayoutMemory:
    """Hold the bytes that a task puts on its fullest GPU in each of many layouts, by term.

    Attributes:
        weights_term: The resident term that tasks of one role share.
        resident, transient: By term, shape (layouts,); 0 where a layout does not have it.
    """

    weights_term: str
    resident: ManyTerms
    transient: ManyTerms

    @property
    def weights_bytes(self) -> Ints:
        """Return the resident weights, which tasks of one role share. Shape (layouts,)."""
        return self.resident[self.weights_term]

    @property
    def resident_bytes(self) -> Ints:
        """Return the bytes that stay while other tasks run. Shape (layouts,)."""
        return np.asarray(np.sum(list(self.resident.values()), axis=0, dtype=np.int64))

    @property
    def transient_bytes(self) -> Ints:
        """Return the bytes that live as long as the task. Shape (layouts,)."""
        return np.asarray(np.sum(list(self.transient.values()), axis=0, dtype=np.int64))

    def row(self, row: int) -> TaskMemory:
        """Return one layout's terms."""
        return TaskMemory(_row_terms(self.resident, row), _row_terms(self.transient, row))


def _row_terms(terms: ManyTerms, row: int) -> FrozenDict[str, int]:
    return FrozenDict({name: int(sizes[row]) for name, sizes in terms.items() if sizes[row]})


def weights_term(role: str, *, generating: bool = False) -> str:
    """Return the name of the term that holds a role's weights."""
    return f"{role} weights for generation" if generating else f"{role} weights"


def passes_memory(placed: PlacedTask) -> TaskMemory:
    """Return what an infer or train task holds on its fullest pipeline stage."""
    return layout_memory(PlacedTasks.of(placed)).row(0)


def layout_memory(table: PlacedTasks) -> LayoutMemory:
    """Return what infer or train tasks hold on their fullest pipeline stage.

    It is the first or the last, or with layers of unlike kinds the one whose layers have most parameters.
    """
    shards = _whole(table.by(("tp", "pp", "ep"), _stage_shards))
    names = ("tp", "cp", "ep", "dp", "micro_batch", "recompute")
    working = _whole(table.by(names, _micro_batch_bytes))
    candidates = shards.reshape(-1, len(working) + 1, len(table))
    return reduce(_fuller, (_stage_memory(table, candidate, working) for candidate in candidates))


def _fuller(one: LayoutMemory, other: LayoutMemory) -> LayoutMemory:
    """Return the terms of the stage that holds more in each layout."""
    more = other.resident_bytes + other.transient_bytes > one.resident_bytes + one.transient_bytes
    return LayoutMemory(
        one.weights_term,
        {name: np.where(more, sizes, one.resident[name]) for name, sizes in other.resident.items()},
        {
            name: np.where(more, sizes, one.transient[name])
            for name, sizes in other.transient.items()
        },
    )


def _stage_memory(table: PlacedTasks, shard: Ints, working: Ints) -> LayoutMemory:
    """Return what one GPU of a pipeline stage of each layout holds.

    Args:
        shard: As `_stage_shards` has one stage, shape (3 + kinds of layers, layouts).
        working: As `_micro_batch_bytes` has them, shape (2 + kinds of layers, layouts).
    """
    columns, any_, sizes = table.columns, table.any, table.any.formats
    stage, parameters, gathered, *layers = shard
    ranks, zero, away = columns.state_ranks, columns.zero, columns.offload > 0
    sharded = -(-parameters // ranks)
    weights = np.where(zero == FULLY_SHARDED, sharded, parameters) * sizes.weight_bytes
    stays = np.ones_like(away) if any_.trains else ~away
    gathers = (zero == FULLY_SHARDED) & (ranks > 1)
    term = weights_term(any_.task.role)
    resident: ManyTerms = {term: np.where(stays, weights, 0)}
    transient: ManyTerms = {
        term: np.where(stays, 0, weights),
        "gathered weights": np.where(gathers, gathered * sizes.weight_bytes, 0),
    }
    if any_.trains:
        role = any_.task.role
        shared = np.where(zero >= GRADIENTS_SHARDED, sharded, parameters)
        gradients = resident if any_.engine.keeps_gradients else transient
        gradients[f"{role} gradients"] = shared * sizes.gradient_bytes
        if not sizes.master_bytes:
            copied = (zero == GRADIENTS_SHARDED) & (ranks > 1)
            stepped = np.where(copied, shared * sizes.weight_bytes, 0)
            resident[f"{role} weights that are stepped"] = stepped
        states = np.where(zero > 0, sharded, parameters) * sizes.optimizer_bytes
        resident[f"{role} optimizer states"] = np.where(away, 0, states)
        transient[f"{role} optimizer states"] = np.where(away, states, 0)
    transient |= _working_terms(table, stage, np.array(layers), working)
    transient[CONTEXT] = np.full_like(stage, any_.device.context_bytes)
    return LayoutMemory(term, resident, transient)


def _stage_shards(placed: PlacedTask) -> Floats:
    """Return each stage that may be the fullest: place, parameters, gathered layers' and layers of each kind.

    Returns:
        Shape (stages * (3 + kinds),).
    """
    layout, model = placed.layout, placed.model
    counts = kinds_of_stages(model, layout.pp)
    shards = [
        shard_parameters(model, placed.task.head, layout.tp, layout.pp, stage, layout.ep)
        for stage in range(layout.pp)
    ]
    gathered = GATHERED_LAYERS * layer_parameters(model, layout.tp, layout.ep)
    stages = [0, layout.pp - 1]
    if len(counts[0]) > 1:
        stages.append(shards.index(max(shards)))
    held = [(stage, shards[stage], gathered, *counts[stage]) for stage in stages]
    return np.array(held, dtype=np.float64).ravel()


def _working_terms(table: PlacedTasks, stage: Ints, layers: Ints, working: Ints) -> ManyTerms:
    """Return activations and logits of the longest micro-batches that can occur.

    A stage of a 1F1B pipeline holds as many micro-batches as stages follow it, itself included
    (Narayanan et al. 2021, section 2.2.1). On top comes one layer's whole set: what is computed
    again, or the gradients of what was kept. A forward pass keeps nothing but that.
    """
    columns = table.columns
    whole, logits, *kept = working
    num_passes = -(-table.local // columns.micro_batch) * columns.chunks
    held = np.minimum(num_passes, passes_in_flight(columns.pp, stage, columns.chunks))
    activations = (np.array(kept) * layers).sum(axis=0) * held // columns.chunks + whole
    logits = np.where(stage == columns.pp - 1, logits, 0)
    margin = np.rint(FRAGMENTATION_FRACTION * (activations + logits)).astype(np.int64)
    return {ACTIVATIONS: activations, LOGITS: logits, FRAGMENTATION: margin}


def passes_in_flight(stages: Ints, stage: Ints, chunks: Ints) -> Ints:
    """Return the passes through one chunk of layers whose activations a stage holds at most.

    In a plain 1F1B schedule as many as stages follow it, itself included. An interleaved one warms
    up with 2 (p - s - 1) + (v - 1) p passes and runs one more, which on the first stage is
    1 + (p - 1) / (p v) of a plain one's activations (Korthikanti et al. 2022, section 4.2.3).
    """
    interleaved = 2 * (stages - stage - 1) + (chunks - 1) * stages + 1
    return np.where(chunks == 1, stages - stage, interleaved)


def _micro_batch_bytes(placed: PlacedTask) -> tuple[int, ...]:
    """Return a layer's whole set of a micro-batch, the logits, and what a layer of each kind keeps."""
    model, shard, layout, engine = placed.model, placed.shard, placed.layout, placed.engine
    longest = placed.statistics.longest_tokens
    sequences = min(layout.micro_batch, placed.local)
    shared = least_shared_tokens(engine, placed.workload, sequences)
    held = partial(
        layer_activation_bytes,
        shard=shard,
        sequences=sequences,
        sequence_tokens=longest,
        fused_attention=engine.fused_attention,
        shared_tokens=shared,
    )
    kinds = layer_kinds(model).models
    kept = (held(kind, recompute=layout.recompute) if placed.trains else 0 for kind in kinds)
    logits = 0
    if placed.task.head == "lm":
        width = -(-(sequences * longest - shared) // layout.cp)
        logits = logits_bytes(model, layout.tp, width, shard.value_bytes, backward=placed.trains)
    return max(held(kind, recompute="none") for kind in kinds), logits, *kept


def _whole(numbers: Floats) -> Ints:
    """Return whole numbers, which floats of 53 bits carry exactly."""
    return numbers.astype(np.int64)


def generate_memory(placed: PlacedTask) -> TaskMemory:
    """Return what a generating task needs at least: a whole copy of its weights and one longest sequence.

    `simulator.timeline.pool_memory` knows what it shares with the training task and fills the cache up.
    """
    terms = {
        weights_term(placed.task.role, generating=True): generation_weight_bytes(placed),
        KV_CACHE: least_kv_bytes(placed),
        **generation_terms(placed),
    }
    return TaskMemory(EMPTY, FrozenDict(terms))


def generation_terms(placed: PlacedTask) -> Terms:
    """Return what a generation engine holds beside its weights and its KV cache.

    One layer's activations of its largest prefill pass, which has each prompt once where samples share
    it, and the logits of all running sequences.
    """
    model, engine, shard = placed.model, placed.engine, placed.shard
    prompt = placed.statistics.longest_prompt_tokens
    if engine.batching == "none":
        prompt = placed.statistics.longest_tokens  # its last pass is its longest
    prompts = most_prompts(placed.running, samples_sharing(engine, placed.workload))
    together = max(1, min(prompts, engine.max_batched_tokens // prompt))
    activations = max(
        layer_activation_bytes(
            kind, shard, together, prompt, "none", fused_attention=engine.fused_attention
        )
        for kind in layer_kinds(model).models
    )
    logits = logits_bytes(
        model, placed.layout.tp, placed.running, shard.value_bytes, backward=False
    )
    return {
        ACTIVATIONS: activations,
        LOGITS: logits,
        FRAGMENTATION: round(FRAGMENTATION_FRACTION * (activations + logits)),
        CONTEXT: placed.device.context_bytes,
    }


def generation_weight_bytes(placed: PlacedTask) -> int:
    """Return the weight bytes of one GPU of a generation layout.

    An engine that gathers layer by layer holds a few at a time, beside the shard of training.
    """
    model, layout = placed.model, placed.layout
    parameters = largest_shard(model, "lm", layout.tp, layout.pp, layout.ep)
    if placed.engine.gathers_weights:
        parameters = GATHERED_LAYERS * layer_parameters(model, layout.tp, layout.ep)
    return parameters * placed.formats.weight_bytes


def least_kv_bytes(placed: PlacedTask) -> int:
    """Return the KV-cache bytes of one longest sequence on one GPU: with less nothing runs."""
    return _kv_bytes_of(1, placed)


def useful_kv_bytes(placed: PlacedTask) -> int:
    """Return the KV-cache bytes beyond which all running sequences fit at their longest."""
    return _kv_bytes_of(placed.running, placed)


def _kv_bytes_of(sequences: int, placed: PlacedTask) -> int:
    if placed.engine.batching == "none":
        return 0  # it keeps no cache: every step computes the whole sequences again
    block_tokens = placed.engine.kv_block_tokens
    blocks = -(-placed.statistics.longest_tokens // block_tokens) + placed.state_blocks
    return sequences * blocks * placed.block_bytes
