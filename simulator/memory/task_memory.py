"""The bytes that one task puts on a GPU, by term.

Resident terms stay while other tasks of the pool run; transient ones live as long as their task. Terms of
tasks that infer or train are worked out for many layouts at once; a single one is a table of one row. They are made
of what a stage keeps of its model's states (weights, gradients and what an optimizer steps, by format) and of what it
works on: activations and logits, at the moment when they are most. A training stage is fullest while a layer runs
backwards, while the loss does, or in the optimizer's step.
"""

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np

from rlplan.files.frozen import FrozenDict
from rlplan.models import (
    ALONE,
    FP32_BYTES,
    PRECISIONS,
    Batch,
    KeptBatch,
    is_narrow,
    layer_kinds,
)
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.simulator.columns import SHARD_COLUMNS, Flags, Floats, Ints
from rlplan.simulator.costs.teaching import loss_tensors_bytes
from rlplan.simulator.costs.towers import (
    is_frozen,
    layers_of,
    positions_per_token,
    tower_of,
    tower_shard,
)
from rlplan.simulator.generation.caching import (
    cached_blocks,
    held_sequences,
    kept_block_bytes,
)
from rlplan.simulator.generation.judging import judging
from rlplan.simulator.generation.playing import most_prompts
from rlplan.simulator.generation.speculation import draft_weight_bytes
from rlplan.simulator.memory.communicators import communicator_bytes
from rlplan.simulator.memory.terms import (
    EMPTY,
    LayoutMemory,
    ManyTerms,
    TaskMemory,
    Terms,
    gradients_term,
    optimizer_term,
    weights_term,
)
from rlplan.simulator.model import (
    OFFLOADED,
    kinds_of_stages,
    layer_activation_bytes,
    layer_adapter_parameters,
    layer_operators,
    layer_parameters,
    layer_peak_bytes,
    layers_experts,
    layers_parameters,
    logits_bytes,
    shard_parameters,
    sums_bytes,
    without_tower,
)
from rlplan.simulator.placed import PlacedTask, PlacedTasks, whole
from rlplan.simulator.workload import (
    fullest_tokens,
    held_by,
    least_shared_tokens,
    prompts_held,
    samples_sharing,
)
from rlplan.workload import longest

# Layers whose weights ZeRO stage 3 holds whole at a time: the running one and the prefetched one.
GATHERED_LAYERS = 2

CUT_COLUMNS = ("tp", "pp", "ep", "expert_tp", "first_stage_layers", "last_stage_layers")

GRADIENTS_SHARDED = 2  # the ZeRO stage from which on gradients are kept sharded


@dataclass(frozen=True, slots=True, eq=False)
class StageStates:
    """Hold the parameters of one GPU of a pipeline stage in each layout.

    Attributes:
        stage: Its place. Shape (layouts,), as all but `layers`.
        experts: Those of them that belong to experts, of which fewer ranks have copies.
        trained: Those of them that have gradients; with adapters these, beside frozen parameters.
        ends: Parameters outside its layers: embedding, head, last norm.
        layer: Parameters of the model's largest layer.
        trained_ends, trained_layer: Those of both that have gradients.
        layers: How many layers of each kind it has. Shape (kinds, layouts).
    """

    stage: Ints
    parameters: Ints
    experts: Ints
    trained: Ints
    ends: Ints
    layer: Ints
    trained_ends: Ints
    trained_layer: Ints
    layers: Ints

    def weights(self, table: PlacedTasks) -> Ints:
        """Return the bytes of the weights that it keeps."""
        columns = table.columns
        kept = self._shard(table, self.parameters, columns.state_ranks)
        sharded = kept * table.any.stored.weight_bytes
        whole_bytes = self.parameters * table.any.formats.weight_bytes
        return np.where(columns.zero == FULLY_SHARDED, sharded, whole_bytes)

    def gathered(self, table: PlacedTasks) -> Ints:
        """Return the bytes of what lies there whole for a while: some layers, and FSDP's embedding and head.

        The module that wraps the layers holds embedding and head, which stay gathered until its own
        backward pass is done (PyTorch, torch.distributed.fsdp, `fully_shard` of a root module).
        """
        ends = self.ends if table.any.engine.memory.root_stays_whole else 0
        held = GATHERED_LAYERS * self.layer + ends
        return np.where(gathers_weights(table), held * table.any.formats.weight_bytes, 0)

    def quantised(self, table: PlacedTasks) -> Ints:
        """Return the bytes of narrow copies of its layers for products, or of those that are gathered.

        Training has transposed ones as well: tensor cores take narrow inputs row by row only (Transformer
        Engine documentation, "Using FP8", weights that are cached over micro-batches).
        """
        held = np.where(
            gathers_weights(table), GATHERED_LAYERS * self.layer, self.parameters - self.ends
        )
        copies = 2 if table.any.trains else 1
        return np.asarray(held * copies * PRECISIONS[table.any.precision].weight_bytes)

    def unreduced(self, table: PlacedTasks) -> Ints:
        """Return the bytes of whole gradients: of a layer while it is reduced, of embedding and head.

        They come in the format of the products; those of a layer are copied to the format in which
        they are reduced.
        """
        formats, columns = table.any.formats, table.columns
        wire_bytes = table.any.engine.kernels.gradient_wire_bytes
        if table.any.options.gradients is not None or not wire_bytes:
            wire_bytes = table.any.stored.gradient_bytes
        copy = self.trained_layer * wire_bytes
        ends = self.trained_ends if table.any.engine.memory.root_stays_whole else 0
        held = (self.trained_layer + ends) * formats.weight_bytes + copy
        reduces = (columns.zero >= GRADIENTS_SHARDED) & (
            (columns.state_ranks > 1) | table.any.casts_weights
        )
        return np.where(reduces, held, 0)

    def waiting(self, table: PlacedTasks) -> Ints:
        """Return the bytes that whole gradients take more than their shards, while they wait for an update's last micro-batch.

        FSDP2 adds them up in the format in which it reduces, FSDP 1 in that of its products (PyTorch 2.11,
        torch/distributed/fsdp: _fully_shard/_fsdp_param.py, to_accumulated_grad_if_needed; _runtime_utils.py,
        _post_backward_hook). Shards lie there from the reduction on, and are counted as gradients.
        """
        columns, said = table.columns, table.any.options.waiting_gradients
        if said is None:
            return np.zeros(len(table), dtype=np.int64)
        whole_bytes = self.trained * ALONE[said].gradient_bytes
        shards = self.stepped(table) * table.any.stored.gradient_bytes
        waits = (columns.zero >= GRADIENTS_SHARDED) & (table.local > columns.micro_batch)
        return np.where(waits, np.maximum(whole_bytes - shards, 0), 0)

    def unreduced_in_loss(self, table: PlacedTasks) -> Ints:
        """Return the bytes of whole gradients while the loss runs: of the head, which is reduced with its module."""
        ends = self.trained_ends if table.any.engine.memory.root_stays_whole else 0
        return np.minimum(self.unreduced(table), ends * table.any.formats.weight_bytes)

    def stepped(self, table: PlacedTasks) -> Ints:
        """Return the parameters that its optimizer steps."""
        ranks = np.where(table.columns.zero > 0, table.columns.state_ranks, 1)
        return self._shard(table, self.trained, ranks)

    def _shard(self, table: PlacedTasks, parameters: Ints, ranks: Ints) -> Ints:
        """Return the parameters of one GPU that each rank keeps when states are sharded over `ranks`.

        Fewer ranks have copies of an expert than of other weights, so its states are sharded over fewer.
        """
        columns = table.columns
        spread = np.minimum(columns.expert_spread, ranks)
        adapts = table.any.adapter is not None and parameters is self.trained
        experts = 0 if adapts else self.experts  # adapters are of no expert
        return whole(np.ceil((parameters + experts * (spread - 1)) / ranks))

    def copied(self, table: PlacedTasks) -> Ints:
        """Return the bytes of weights that are stepped beside whole ones."""
        columns = table.columns
        copies = (columns.zero == GRADIENTS_SHARDED) & (columns.state_ranks > 1)
        if table.any.casts_weights:
            copies = columns.zero < FULLY_SHARDED
        return np.where(copies, self.stepped(table) * table.any.stored.weight_bytes, 0)


def gathers_weights(table: PlacedTasks) -> Flags:
    """Tell where weights are gathered from shards, or copied to the format of the products."""
    alone = table.columns.state_ranks == 1
    copies = table.any.trains and table.any.casts_weights
    return np.asarray((table.columns.zero == FULLY_SHARDED) & (~alone | copies), dtype=np.bool_)


def states_of_stages(table: PlacedTasks, kinds: int) -> list[StageStates]:
    """Return each stage that may be the fullest of each layout.

    Args:
        kinds: Kinds of layers that the model has.
    """
    found = whole(
        table.by(CUT_COLUMNS, _stage_shards, on_any_site=True, of_any_lengths=True)
    ).reshape(-1, 5 + kinds, len(table))
    adapters = None
    if table.any.adapter is not None:
        adapters = whole(table.by(("tp", "ep", "expert_tp"), _layer_adapters))
    frozen = np.zeros(len(table), dtype=np.int64)
    if table.any.options.freezes_tower:
        frozen = whole(table.by(("tp",), lambda placed: (_frozen_tower(placed),))[0])
    return [_stage_states(shard, adapters, frozen) for shard in found]


def _stage_states(shard: Ints, adapters: Ints | None, frozen: Ints) -> StageStates:
    """Return a stage's parameters, those that are trained among them.

    Args:
        shard: As `_stage_shards` has one stage. Shape (5 + kinds, layouts).
        adapters: Parameters of the adapters of a layer of each kind; None where the model is trained.
            Shape (kinds, layouts), as `layers`.
        frozen: Parameters of a tower that does not learn, on the first stage. Shape (layouts,).
    """
    stage, parameters, experts, ends, layer = shard[:5]
    layers = shard[5:]
    frozen = np.where(stage == 0, frozen, 0)
    trained, trained_ends, trained_layer = parameters - frozen, ends - frozen, layer
    if adapters is not None:
        trained, trained_ends = (layers * adapters).sum(axis=0), np.zeros_like(ends)
        trained_layer = adapters.max(axis=0)
    return StageStates(
        stage, parameters, experts, trained, ends, layer, trained_ends, trained_layer, layers
    )


def _frozen_tower(placed: PlacedTask) -> int:
    """Return the parameters of a tower on a device of the first stage that do not learn beside those that do."""
    model, cut = placed.model, placed.cut
    first, rest = (
        shard_parameters(each, placed.task.head, cut, 0) for each in (model, without_tower(model))
    )
    return first - rest


def _layer_adapters(placed: PlacedTask) -> tuple[int, ...]:
    """Return the parameters of the adapters of one layer of each kind."""
    adapter = placed.adapter
    assert adapter is not None, "only tasks with adapters are asked"
    kinds = layer_kinds(placed.model).models
    return tuple(layer_adapter_parameters(kind, adapter, placed.cut) for kind in kinds)


def _stage_shards(placed: PlacedTask) -> Floats:
    """Return each stage that may be the fullest: place, parameters, experts', ends', a layer's, layers of each kind.

    Returns:
        Shape (stages * (5 + kinds),).
    """
    model, cut = placed.model, placed.cut
    counts = kinds_of_stages(model, cut)
    shards = [shard_parameters(model, placed.task.head, cut, stage) for stage in range(cut.pp)]
    layer = layer_parameters(model, cut)
    stages = [0, cut.pp - 1]
    if len(counts[0]) > 1 or cut.first_layers:
        stages.append(shards.index(max(shards)))
    held = [
        (
            stage,
            shards[stage],
            layers_experts(model, counts[stage], cut),
            shards[stage] - layers_parameters(model, counts[stage], cut),
            layer,
            *counts[stage],
        )
        for stage in stages
    ]
    return np.array(held, dtype=np.float64).ravel()


ACTIVATIONS = "activations"
FRAGMENTATION = "fragmentation margin"
LOGITS = "logits"
STEP = "optimizer step"
GATHERED = "gathered weights"
UNREDUCED = "gradients before they are reduced"
EMBEDDED = "inputs of earlier micro-batches"

# Rows of hidden states that the loss holds beside the logits: the last layer's output, its norm's, and
# the gradients of both.
HEAD_ROWS = 4
# Columns of layouts that decide what a micro-batch works on, of no more sequences than a rank has.
WORKING_COLUMNS = (*SHARD_COLUMNS, "micro_batch", "token_budget", "recompute")


def working_terms(
    table: PlacedTasks, states: StageStates, working: Ints, stepped: Ints, moments: Ints
) -> tuple[ManyTerms, Flags]:
    """Return what passes and the step have on the GPU beside states, at the fullest moment of the fullest micro-batch, and where this is the step.

    A stage of a 1F1B pipeline holds as many micro-batches as stages follow it, itself included
    (Narayanan et al. 2021, section 2.2.1). On top comes what runs: a layer, or the loss on the last
    stage. A forward pass keeps nothing but that. When the optimizer steps, nothing is gathered and all gradients
    are reduced.

    Args:
        working: As `micro_batch_bytes` has them. Shape (3 + kinds of layers, layouts).
        stepped: Parameters that each GPU steps. Shape (layouts,).
        moments: Bytes of what the optimizer keeps beside weights, where they are on the GPU in the step alone. Shape (layouts,).
    """
    columns, memory, stage = table.columns, table.any.engine.memory, states.stage
    layer, rows, logits, *kept = working
    num_passes = -(-table.local // columns.micro_batch) * columns.chunks
    held = np.minimum(num_passes, passes_in_flight(columns.pp, stage, columns.chunks))
    stays = (np.array(kept) * states.layers).sum(axis=0) * held // columns.chunks
    loss = np.where(stage == columns.pp - 1, rows + logits, 0)
    in_layer, whole = np.zeros_like(layer), np.zeros_like(layer)
    if table.any.trains:
        waiting = states.waiting(table)
        in_layer = states.unreduced(table) + waiting
        whole = states.unreduced_in_loss(table) + waiting
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
    in_step = step + moments > np.sum(list(passes.values()), axis=0)
    terms = {term: np.where(in_step, 0, size) for term, size in passes.items()}
    return terms | {STEP: np.where(in_step, step, 0)}, in_step


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
    rows = row = tokens * model.hidden_size * held.residual_bytes
    if placed.trains:
        rows = HEAD_ROWS * row
        kept = [layer_activation_bytes(kind, held, recompute) for kind in kinds]
        peaks = [layer_peak_bytes(kind, held) for kind in kinds]
        layer = max(max(0, peak - own) for peak, own in zip(peaks, kept, strict=True))
        layer += _adapter_sums(placed, held)
        towers = kept_by_tower(placed, held)
        layer, rows = layer + towers, rows + towers
        if recompute == OFFLOADED:
            layer += engine.memory.layers_under_way * row * (model.streams or 1)
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
        if placed.job.top_tokens:
            logits += loss_tensors_bytes(placed, tokens)
    return layer, rows, logits, *kept


def _tokens_of_logits(placed: PlacedTask, tokens: int) -> int:
    """Return the tokens of a micro-batch whose logits are made: all, or those of responses, as large a share as at most."""
    way, work = placed.logit_tensors, placed.workload
    if way is not None and way.of_all_ranks:
        tokens *= placed.layout.cp
    if way is None or not way.of_responses:
        return tokens
    share = longest(work.response_tokens) / work.longest_sequence_tokens
    return math.ceil(tokens * min(1.0, share))


def fullest_micro_batch(placed: PlacedTask) -> tuple[int, int]:
    """Return the sequences of the micro-batch that has most tokens, and the tokens of each.

    Padded ones may have all sequences at their limit; of packed ones it is the fullest of a run. Where samples share
    prompts, each still has its own here.
    """
    statistics, layout, engine = placed.statistics, placed.layout, placed.engine
    longest_tokens, sequences = statistics.longest_tokens, min(layout.micro_batch, placed.local)
    counted = layout.token_budget is None and placed.framework.pads_counted
    shares = engine.shares_prompts and not shares_unpadded(placed)
    if engine.padding != "none" or shares or counted:
        if layout.token_budget is not None:
            return 1, max(longest_tokens, layout.token_budget)
        return sequences, longest_tokens
    if layout.token_budget is None:
        return sequences, -(-fullest_tokens(statistics, sequences) // sequences)
    held = layout.token_budget if placed.options.fills_budgets else placed.most_local_tokens
    fullest = min(layout.token_budget, held)
    return 1, max(fullest_tokens(statistics, 1), fullest)


def shares_unpadded(placed: PlacedTask) -> bool:
    """Tell whether micro-batches are counted, packed, and share prompts for attention too."""
    shares = placed.engine.shares_attention and placed.engine.padding == "none"
    return shares and placed.layout.token_budget is None and not placed.framework.pads_counted


def kept_batch(placed: PlacedTask) -> KeptBatch:
    """Return the micro-batch that has most tokens; in fp32 there is nothing to cast."""
    sequences, longest = fullest_micro_batch(placed)
    # The fullest micro-batch of a run may have short prompts: as many tokens as the shortest have are spared.
    prompt = int(placed.statistics.ordered("prompts")[0]) if shares_unpadded(placed) else None
    shared = least_shared_tokens(placed.engine, placed.workload, sequences, prompt)
    fused = placed.engine.fused_attention
    kernels = placed.engine.memory.layers if placed.trains else "fused"
    if kernels == "autocast" and placed.shard.value_bytes == FP32_BYTES:
        kernels = "eager"
    return KeptBatch(placed.shard, sequences, longest, fused, shared, kernels)


def kept_by_tower(placed: PlacedTask, held: KeptBatch) -> int:
    """Return the bytes that towers keep of a micro-batch until their backward pass, which is the last of all."""
    inputs = held_by(placed.workload, placed.model)
    if not inputs:
        return 0
    kept, shard, prompts = 0, tower_shard(held.shard), held.sequences
    samples = samples_sharing(placed.engine, placed.workload)
    if (
        not prompts % samples or not samples % prompts
    ):  # otherwise prompts are cut, and more of them have a piece
        prompts = prompts_held(prompts, samples)
    for kind, each in inputs:
        if is_frozen(placed, kind):
            continue
        tower = tower_of(placed.model, kind)
        positions = each.tokens * positions_per_token(tower)
        number = math.ceil(prompts * each.per_prompt)
        batch = held._replace(
            shard=shard, sequences=number, sequence_tokens=positions, shared_tokens=0
        )
        kept += sum(
            layer_activation_bytes(layer, batch, placed.recompute) * count
            for layer, count in layers_of(tower)
        )
    return kept


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


CONTEXT = "context and libraries"
KV_CACHE = "KV cache"
QUANTISED = "quantised weights"
STAYING_COPIES = "quantised copies"
DRAFT = "weights that guess tokens"
COMMUNICATORS = "communicators"

# NCCL's buffers of one communicator of several GPUs after its first collective: 688 MB on A100 (NCCL issue 964).
COMMUNICATOR_BYTES = 688 * 10**6


def passes_memory(placed: PlacedTask) -> TaskMemory:
    """Return what an infer or train task holds on its fullest pipeline stage."""
    return layout_memory(PlacedTasks.of(placed)).row(0)


def layout_memory(table: PlacedTasks) -> LayoutMemory:
    """Return what infer or train tasks hold on their fullest pipeline stage.

    It is the first or the last, or with layers of unlike kinds the one whose layers have most parameters. A reward
    model that generates holds what its engine does, with room for one longest sequence at least.
    """
    if table.any.job.serves and judging(table.any) is not None:
        return _judged_memory(table)
    held, fits = table, np.minimum(table.columns.micro_batch, table.local)
    budgets = table.columns.token_budget
    if np.any(budgets) and not table.any.options.fills_budgets:
        most = whole(table.by(("dp",), lambda placed: (placed.most_local_tokens,))[0])
        budgets = np.minimum(budgets, most)
    if np.any(fits < table.columns.micro_batch) or np.any(budgets < table.columns.token_budget):
        columns = table.columns.changed(micro_batch=fits, token_budget=budgets)
        held = table.with_columns(columns)
    working = whole(held.by(WORKING_COLUMNS, micro_batch_bytes, on_any_site=True))
    kinds = len(layer_kinds(table.any.model).models)
    stages = states_of_stages(table, kinds)
    return reduce(_fuller, (_stage_memory(table, stage, working) for stage in stages))


# What of a layout a judge's engine reads.
JUDGED_COLUMNS = ("tp", "pp", "dp", "ep", "expert_tp")


def _judged_memory(table: PlacedTasks) -> LayoutMemory:
    """Return what the engine of a reward model that generates holds, in each layout."""
    found = whole(table.by(JUDGED_COLUMNS, _judged_bytes))
    weights, terms = found[0], dict(zip((KV_CACHE, ACTIVATIONS, CONTEXT), found[1:], strict=True))
    term, away = weights_term(table.any.task.role), table.columns.offload > 0
    transient: ManyTerms = {term: np.where(away, weights, 0), **terms}
    transient[COMMUNICATORS] = communicator_bytes(table)
    return LayoutMemory(term, {term: np.where(away, 0, weights)}, transient, {})


def _judged_bytes(placed: PlacedTask) -> tuple[int, ...]:
    judge = judging(placed)
    assert judge is not None, "asked of what engines serve"
    terms = generation_terms(judge)
    context = terms.pop(CONTEXT)
    return generation_weight_bytes(judge), least_kv_bytes(judge), sum(terms.values()), context


def _fuller(one: LayoutMemory, other: LayoutMemory) -> LayoutMemory:
    """Return the terms of the stage that holds more in each layout."""
    more = other.resident_bytes + other.transient_bytes > one.resident_bytes + one.transient_bytes

    def chosen(mine: ManyTerms, others: ManyTerms) -> ManyTerms:
        return {name: np.where(more, sizes, mine[name]) for name, sizes in others.items()}

    resident = chosen(one.resident, other.resident)
    transient = chosen(one.transient, other.transient)
    return LayoutMemory(one.weights_term, resident, transient, chosen(one.waiting, other.waiting))


def _stage_memory(table: PlacedTasks, states: StageStates, working: Ints) -> LayoutMemory:
    """Return what one GPU of a pipeline stage of each layout holds.

    Args:
        working: As `micro_batch_bytes` has them, shape (3 + kinds of layers, layouts).
    """
    columns, any_ = table.columns, table.any
    term = weights_term(any_.task.role)
    away = columns.offload > 0
    weights = states.weights(table)
    leaves = any_.off_loadable if any_.trains_role else ("weights",)
    stays = ~away if "weights" in leaves else np.ones_like(away)
    if any_.trains_role and not any_.trains and "weights" in leaves:
        # Whether they are away is said by the layout in which they train: there they are resident, if not.
        stays = np.zeros_like(away)
    kept, made = _quantised_terms(table, states)
    readied, leaving = _readied_terms(table, states, stays)
    resident: ManyTerms = {term: np.where(stays, weights, 0), **kept, **readied}
    transient: ManyTerms = {term: np.where(stays, 0, weights), **made, **leaving}
    stepped = np.zeros_like(states.parameters)
    if any_.trains:
        on_gpu = 1 - any_.options.host_optimizer
        stepped = whole(np.rint(states.stepped(table) * on_gpu))
        stay, leave = _trained_terms(table, states, stepped)
        resident |= stay
        transient |= leave
    if any_.options.host_states:  # layers come to the GPU as they are needed, and step on the host
        resident, transient = (
            {name: np.zeros_like(size) for name, size in terms.items()}
            for terms in (resident, transient)
        )
        stepped = np.zeros_like(stepped)
    if any_.trains and any_.adapter is not None and any_.options.keeps_embedded:
        transient[EMBEDDED] = _embedded_bytes(table)
    transient[COMMUNICATORS] = communicator_bytes(table)
    optimizer, moments = optimizer_term(any_.task.role), np.zeros_like(stepped)
    if any_.trains and any_.framework.loads_for_step:
        sizes = any_.stored
        moments = stepped * (sizes.optimizer_bytes - sizes.master_bytes)
        moments = np.minimum(moments, transient[optimizer])
    terms, in_step = working_terms(table, states, working, stepped, moments)
    transient |= terms
    waiting = {optimizer: np.where(in_step, 0, moments)}
    if optimizer in transient:
        transient[optimizer] = transient[optimizer] - waiting[optimizer]
    transient[CONTEXT] = np.full_like(states.stage, any_.device.context_bytes)
    return LayoutMemory(term, resident, transient, waiting)


def quantised_term(role: str) -> str:
    """Return the name of the narrow copies of a role's weights that stay."""
    return f"{role} {STAYING_COPIES}"


def _quantised_terms(table: PlacedTasks, states: StageStates) -> tuple[ManyTerms, ManyTerms]:
    """Return the narrow copies of weights that a task's products read: what stays of them, and what goes.

    Copies that stay are those of an update, which passes of the same role read again.
    """
    any_ = table.any
    if not is_narrow(any_.precision) or any_.engine.narrow_products:
        return {}, {}
    if not (any_.framework.quantised_stay and any_.trains_role):
        return {}, {QUANTISED: states.quantised(table)}
    term = quantised_term(any_.task.role)
    return ({term: states.quantised(table)} if any_.trains else {}), {}


def _readied_terms(
    table: PlacedTasks, states: StageStates, stays: Flags
) -> tuple[ManyTerms, ManyTerms]:
    """Return buffers for gradients of a model that is not trained, where its trainer makes them all the same: what stays, and what goes with its weights."""
    any_ = table.any
    if not (any_.framework.readies_gradients and any_.engine.keeps_gradients) or any_.trains_role:
        return {}, {}
    term, size = gradients_term(any_.task.role), states.trained * any_.stored.gradient_bytes
    return {term: np.where(stays, size, 0)}, {term: np.where(stays, 0, size)}


def _embedded_bytes(table: PlacedTasks) -> Ints:
    """Return what stays of all micro-batches of an update: a row of hidden states for each token, and one of gradients."""
    tokens = whole(table.by(("dp",), lambda placed: (placed.most_local_tokens,))[0])
    row = 2 * table.any.model.hidden_size * table.any.formats.weight_bytes
    return np.asarray(row * tokens // table.columns.cp, dtype=np.int64)


def _trained_terms(
    table: PlacedTasks, states: StageStates, on_gpu: Ints
) -> tuple[ManyTerms, ManyTerms]:
    """Return what a stage keeps of gradients and of what its optimizer steps: what stays, and what leaves.

    Args:
        on_gpu: Parameters that are stepped on each GPU. Shape (layouts,).
    """
    columns, any_ = table.columns, table.any
    role, sizes, leaves = any_.task.role, any_.stored, any_.off_loadable
    stepped, away = states.stepped(table), columns.offload > 0
    resident: ManyTerms = {}
    transient: ManyTerms = {}
    if any_.adapter is not None:
        held = np.where(columns.zero == FULLY_SHARDED, stepped, states.trained)
        resident[f"{role} adapters"] = held * sizes.weight_bytes
    sharded = np.where(columns.zero >= GRADIENTS_SHARDED, stepped, states.trained)
    gradients = sharded * sizes.gradient_bytes
    if any_.options.host_optimizer == 1 and not any_.engine.keeps_gradients:
        # What is stepped on the host is reduced into its memory (ZeRO-Offload; Ren et al. 2021, section 3).
        gradients = np.where(columns.zero >= GRADIENTS_SHARDED, 0, gradients)
    kept = any_.engine.keeps_gradients & ~(away & ("gradients" in leaves))
    resident[gradients_term(role)] = np.where(kept, gradients, 0)
    transient[gradients_term(role)] = np.where(kept, 0, gradients)
    if not sizes.master_bytes:
        resident[f"{role} weights that are stepped"] = states.copied(table)
    states_leave = away & ("optimizer" in leaves)
    optimizer = on_gpu * sizes.optimizer_bytes
    resident[optimizer_term(role)] = np.where(states_leave, 0, optimizer)
    leaving = optimizer
    if any_.options.masters_stay:
        masters = on_gpu * sizes.master_bytes
        resident[f"{role} master weights"] = np.where(states_leave, masters, 0)
        leaving = optimizer - masters
    transient[optimizer_term(role)] = np.where(states_leave, leaving, 0)
    return resident, transient


def generate_memory(placed: PlacedTask) -> TaskMemory:
    """Return what a generating task needs at least: a whole copy of its weights and one longest sequence.

    `rlplan.simulator.timeline.pool_memory` knows what it shares with the training task and fills the cache up.
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
    prompt, whole = placed.statistics.longest_prompt_tokens, placed.statistics.longest_tokens
    if engine.batching == "none":
        prompt = whole  # its last pass is its longest
    elif placed.workload.environments:  # whose later turns prefill all that came before
        prompt = min(whole, engine.max_batched_tokens) if engine.chunked_prefill else whole
    prompts = most_prompts(placed.running, samples_sharing(engine, placed.workload))
    together = max(1, min(prompts, engine.max_batched_tokens // prompt))
    batch = KeptBatch(shard, together, prompt, engine.fused_attention)
    activations = max(
        layer_activation_bytes(kind, batch, "none") for kind in layer_kinds(model).models
    )
    logits = logits_bytes(
        model, placed.layout.tp, placed.running, shard.value_bytes, backward=False
    )
    drafted = 0 if placed.job.speculation is None else draft_weight_bytes(placed)
    return {
        **({DRAFT: drafted} if drafted else {}),
        ACTIVATIONS: activations,
        LOGITS: logits,
        FRAGMENTATION: round(engine.memory.slack_fraction * (activations + logits)),
        CONTEXT: placed.device.context_bytes,
    }


def generation_weight_bytes(placed: PlacedTask) -> int:
    """Return the weight bytes of one GPU of a generation layout.

    An engine that gathers layer by layer holds a few at a time, beside the shard of training.
    """
    if not placed.engine.gathers_weights:
        return placed.weight_bytes
    layer = layer_parameters(placed.model, placed.cut)
    return GATHERED_LAYERS * layer * placed.formats.weight_bytes


def least_kv_bytes(placed: PlacedTask) -> int:
    """Return the KV-cache bytes of one longest sequence on one GPU: with less nothing runs."""
    return _kv_bytes_of(1, placed)


def useful_kv_bytes(placed: PlacedTask) -> int:
    """Return the KV-cache bytes beyond which all sequences that are in it at a time fit at their longest."""
    return _kv_bytes_of(held_sequences(placed), placed)


def _kv_bytes_of(sequences: int, placed: PlacedTask) -> int:
    if placed.engine.batching == "none":
        return 0  # it keeps no cache: every step computes the whole sequences again
    return cached_blocks(placed, sequences) * kept_block_bytes(placed)
