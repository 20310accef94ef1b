"""What a task that infers or trains works on: activations and logits, at the moment when they are most.

A training stage is fullest while a layer runs backwards, while the loss does, or in the optimizer's step.
"""

import math

import numpy as np

from rlplan.models import ALONE, Batch, KeptBatch, layer_kinds
from rlplan.simulator.memory.states import StageStates
from rlplan.simulator.model import (
    OFFLOADED,
    layer_activation_bytes,
    layer_operators,
    layer_peak_bytes,
    logits_bytes,
    sums_bytes,
)
from rlplan.simulator.placed import Ints, PlacedTask, PlacedTasks
from rlplan.simulator.workload import least_shared_tokens
from rlplan.workload import longest

ACTIVATIONS = "activations"
FRAGMENTATION = "fragmentation margin"
LOGITS = "logits"
STEP = "optimizer step"
GATHERED = "gathered weights"
UNREDUCED = "gradients before they are reduced"

# Rows of hidden states that the loss holds beside the logits: the last layer's output, its norm's, and
# the gradients of both.
HEAD_ROWS = 4
# Columns of layouts that decide what a micro-batch works on, of no more sequences than a rank has.
WORKING_COLUMNS = ("tp", "cp", "ep", "expert_tp", "micro_batch", "token_budget", "recompute")

ManyTerms = dict[str, Ints]


def working_terms(
    table: PlacedTasks, states: StageStates, working: Ints, stepped: Ints
) -> ManyTerms:
    """Return what passes and the step have on the GPU beside states, at the fullest moment of the fullest micro-batch.

    A stage of a 1F1B pipeline holds as many micro-batches as stages follow it, itself included
    (Narayanan et al. 2021, section 2.2.1). On top comes what runs: a layer, or the loss on the last
    stage. A forward pass keeps nothing but that. When the optimizer steps, nothing is gathered and all gradients
    are reduced.

    Args:
        working: As `micro_batch_bytes` has them. Shape (3 + kinds of layers, layouts).
        stepped: Parameters that each GPU steps. Shape (layouts,).
    """
    columns, memory, stage = table.columns, table.any.engine.memory, states.stage
    layer, rows, logits, *kept = working
    num_passes = -(-table.local // columns.micro_batch) * columns.chunks
    held = np.minimum(num_passes, passes_in_flight(columns.pp, stage, columns.chunks))
    stays = (np.array(kept) * states.layers).sum(axis=0) * held // columns.chunks
    loss = np.where(stage == columns.pp - 1, rows + logits, 0)
    in_layer, whole = np.zeros_like(layer), np.zeros_like(layer)
    if table.any.trains:
        in_layer, whole = states.unreduced(table), states.unreduced_in_loss(table)
    in_loss = loss + whole > layer + in_layer
    passes = {
        GATHERED: states.gathered(table),
        UNREDUCED: np.where(in_loss, whole, in_layer),
        ACTIVATIONS: stays + np.where(in_loss, rows, layer),
        LOGITS: np.where(in_loss, logits, 0),
    }
    margin = memory.slack_fraction * (passes[ACTIVATIONS] + passes[LOGITS])
    passes[FRAGMENTATION] = np.rint(margin).astype(np.int64)
    # Temporaries of the step are of the format of the states.
    stored = table.any.options.weights
    scale = 1.0 if stored is None else ALONE[stored].optimizer_bytes / ALONE["fp32"].optimizer_bytes
    step = np.rint(stepped * memory.step_bytes * scale).astype(np.int64)
    in_step = step > np.sum(list(passes.values()), axis=0)
    terms = {term: np.where(in_step, 0, size) for term, size in passes.items()}
    return terms | {STEP: np.where(in_step, step, 0)}


def passes_in_flight(stages: Ints, stage: Ints, chunks: Ints) -> Ints:
    """Return the passes through one chunk of layers whose activations a stage holds at most.

    In a plain 1F1B schedule as many as stages follow it, itself included. An interleaved one warms
    up with 2 (p - s - 1) + (v - 1) p passes and runs one more, which on the first stage is
    1 + (p - 1) / (p v) of a plain one's activations (Korthikanti et al. 2022, section 4.2.3).
    """
    interleaved = 2 * (stages - stage - 1) + (chunks - 1) * stages + 1
    return np.where(chunks == 1, stages - stage, interleaved)


def micro_batch_bytes(placed: PlacedTask) -> tuple[int, ...]:
    """Return what a layer holds beside what it keeps, the loss's rows, the logits, and what each kind keeps."""
    model, shard = placed.computed_model, placed.shard
    layout, engine = placed.layout, placed.engine
    held, recompute = kept_batch(placed), placed.recompute
    kinds, tokens = layer_kinds(model).models, held.tokens
    rows = row = tokens * model.hidden_size * shard.value_bytes
    if placed.trains:
        rows = HEAD_ROWS * row
        kept = [layer_activation_bytes(kind, held, recompute) for kind in kinds]
        peaks = [layer_peak_bytes(kind, held) for kind in kinds]
        layer = max(max(0, peak - own) for peak, own in zip(peaks, kept, strict=True))
        layer += _adapter_sums(placed, held)
        if recompute == OFFLOADED:
            layer += engine.memory.layers_under_way * row
    else:
        kept = [0] * len(kinds)
        layer = max(layer_activation_bytes(kind, held, "none") for kind in kinds)
    logits = 0
    if placed.task.head == "lm":
        logits = logits_bytes(
            model,
            layout.tp,
            _tokens_of_logits(placed, tokens),
            shard.value_bytes,
            engine.memory,
            placed.logit_tensors,
            backward=placed.trains,
        )
    return layer, rows, logits, *kept


def _tokens_of_logits(placed: PlacedTask, tokens: int) -> int:
    """Return the tokens of a micro-batch whose logits are made: all, or those of responses, as large a share as at most."""
    way, work = placed.logit_tensors, placed.job.workload
    if way is None or not way.of_responses:
        return tokens
    share = longest(work.response_tokens) / work.longest_sequence_tokens
    return math.ceil(tokens * min(1.0, share))


def kept_batch(placed: PlacedTask) -> KeptBatch:
    """Return the micro-batch that has most tokens."""
    sequences, longest = placed.fullest_micro_batch
    shared = least_shared_tokens(placed.engine, placed.workload, sequences)
    return KeptBatch(placed.shard, sequences, longest, placed.engine.fused_attention, shared)


def _adapter_sums(placed: PlacedTask, held: KeptBatch) -> int:
    """Return the bytes of what adapters add in the layer where that is most; 0 without any."""
    if placed.adapter is None:
        return 0
    longest, shard = placed.statistics.longest_tokens, placed.shard
    tokens = held.sequences * held.sequence_tokens - held.shared_tokens
    batch = Batch(sequences=held.sequences, tokens=tokens, sequence_tokens=longest, head_tokens=0)
    return max(
        sums_bytes(layer_operators(kind, shard, batch, placed.adapter), shard.value_bytes)
        for kind in layer_kinds(placed.model).models
    )
