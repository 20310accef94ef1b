"""What a model computes, holds and exchanges on one device: operators, parameters, adapters, kept activations.

It prices nothing: seconds are the business of `rlplan.simulator.costs`.
"""

import math
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from rlplan import parts
from rlplan.dataflow import Task
from rlplan.job import Job
from rlplan.layout import WHOLE_MODEL, ModelCut, layers_of_stages
from rlplan.models import (
    FP32_BYTES,
    NO_PART,
    PRECISIONS,
    SCALE_BYTES,
    WIDE,
    Adapter,
    Attention,
    Batch,
    Collective,
    CollectiveKind,
    Elementwise,
    Gemm,
    Head,
    KeptBatch,
    ModelArchitecture,
    Operator,
    Operators,
    Precision,
    Scan,
    Shard,
    is_narrow,
    layer_kinds,
)
from rlplan.parts import CachedSequence, LayerPart, attention_of, parts_of
from rlplan.plan import Recompute, TaskPlan
from rlplan.sheets import USUAL_MEMORY, EngineSheet, ExpertLoop, LogitTensors, TrainerMemory

ROUTER = "router"
# Matrices that choose experts stay as they are: neither trainers nor engines have adapters for them.
UNTOUCHED = (ROUTER,)

# What ends the names of an adapter's two products.
ADAPTER_IN, ADAPTER_OUT = "adapter in", "adapter out"
SUMMED_TENSORS = 2  # an adapter's product, and the same scaled


def with_adapters(operators: Operators, adapter: Adapter, value_bytes: int) -> Operators:
    """Return frozen operators of a part with adapters beside each linear layer: x W + x A B.

    A matrix that is split by columns has its A on every rank and its B split by columns; one that is split
    by rows has its A split by rows and its B on every rank: no exchange more than without them. What they
    add is read, added and written.
    """
    found: list[Operators] = []
    for operator in operators:
        found.append(frozen((operator,)))
        if isinstance(operator, Gemm) and operator.name not in UNTOUCHED:
            m, k, n, count = operator.m, operator.k, operator.n, operator.count
            found.append(
                (
                    Gemm(
                        f"{operator.name} {ADAPTER_IN}",
                        m,
                        k,
                        operator.matrices * adapter.rank,
                        count,
                    ),
                    Gemm(f"{operator.name} {ADAPTER_OUT}", m, adapter.rank, n, count),
                    Elementwise(f"{operator.name} adapter sum", 3 * m * n * count * value_bytes),
                )
            )
    return tuple(operator for some in found for operator in some)


def sums_bytes(operators: Operators, value_bytes: int) -> int:
    """Return the bytes of what adapters add where a layer with them is widest: products and scaled copies.

    Both lie beside a matrix's own output until they are added to it (PEFT, `peft/tuners/lora/layer.py`,
    `Linear.forward`).

    Args:
        operators: Of a layer, as `with_adapters` has them.
    """
    widest = 0
    for own, next_one in pairwise(each for each in operators if isinstance(each, Gemm)):
        if own.frozen and not next_one.frozen:
            widest = max(widest, own.m * own.n // own.matrices * own.count)
    return SUMMED_TENSORS * widest * value_bytes


def frozen(operators: Operators) -> Operators:
    """Return the operators of weights without gradients."""
    return tuple(
        replace(operator, frozen=True) if isinstance(operator, Gemm) else operator
        for operator in operators
    )


def layer_operators(
    model: ModelArchitecture, shard: Shard, batch: Batch, adapter: Adapter | None = None
) -> Operators:
    """Return the forward operators of one layer on one device: its parts between norms and residuals.

    Args:
        adapter: What is trained beside its frozen weights.
    """
    tokens = -(-batch.tokens // shard.cp)
    row_bytes = tokens * model.hidden_size * shard.value_bytes
    outside = row_bytes / shard.tp if shard.splits_sequence else row_bytes
    norms = model.norms_per_part or 1
    operators: list[Operator] = []
    for part in parts_of(model):
        own = part.operators(model, shard, batch, tokens)
        operators += (
            Elementwise("norm", norms * 2 * outside, kernels=norms),
            *_enter(shard, row_bytes),
            *_adapted(part, model, own, shard, adapter),
            *_gathered(part, model, shard, adapter, row_bytes),
            *_leave(shard, row_bytes),
            *_residual(model, shard, tokens, outside, adapter),
        )
    return tuple(operators)


def _residual(
    model: ModelArchitecture,
    shard: Shard,
    tokens: int,
    row_bytes: float,
    adapter: Adapter | None,
) -> Operators:
    """Return the adding of a part's output to what it came from.

    Of several streams, weights are made from all of them; they are joined for the part's input, and each becomes a mix of
    all and of the part's output. Where adapters are trained the weights' matrix is frozen. Of streams that are predicted
    and corrected, once each in a layer of two parts, a router makes the weights from one of them.
    """
    streams = model.streams
    if model.block_layers is not None:  # all blocks' sums are read with that of this one
        rows = model.handed_size / model.hidden_size
        return (Elementwise("blocks", (rows + 3) * row_bytes, kernels=2),)
    if streams is None:
        return (Elementwise("residual", 3 * row_bytes),)
    own = -(-tokens // shard.tp) if shard.splits_sequence else tokens
    weights = Gemm("stream weights", own, model.handed_size, (2 + streams) * streams)
    if model.laurel_rank is not None:
        weights = Gemm("stream weights", own, model.hidden_size, streams)
    mixed = Elementwise("streams", (3 * streams + 2) * row_bytes, kernels=2)
    return (*((weights,) if adapter is None else frozen((weights,))), mixed)


def _adapted(
    part: LayerPart,
    model: ModelArchitecture,
    operators: Operators,
    shard: Shard,
    adapter: Adapter | None,
) -> Operators:
    if adapter is None:
        return operators
    if _has_adapters(part, model, adapter):
        return with_adapters(operators, adapter, shard.value_bytes)
    return frozen(operators)


def _has_adapters(part: LayerPart, model: ModelArchitecture, adapter: Adapter) -> bool:
    """Tell whether the products of a layer's part have adapters."""
    kind = "attention" if part is attention_of(model) else "feed-forward"
    return adapter.targets in {kind, "all-linear"}


def _gathered(
    part: LayerPart,
    model: ModelArchitecture,
    shard: Shard,
    adapter: Adapter | None,
    num_bytes: float,
) -> Operators:
    """Return the gathering of what an adapter adds to a part's output, which its last product makes column by column.

    Where ranks split sequences between parts, each has some columns of all tokens, gathers the others, and keeps its own tokens;
    backwards it gathers the tokens (Megatron-Bridge, peft/utils.py: ParallelLinearAdapter with `input_is_parallel`).
    """
    if adapter is None or not shard.splits_sequence or not _has_adapters(part, model, adapter):
        return ()
    return (Collective("adapter gather", "all_gather", num_bytes),)


def _enter(shard: Shard, num_bytes: float) -> Operators:
    return (Collective("all-gather", "all_gather", num_bytes),) if shard.splits_sequence else ()


def _leave(shard: Shard, num_bytes: float) -> Operators:
    if shard.tp == 1:
        return ()
    if shard.splits_sequence:
        return (Collective("reduce-scatter", "reduce_scatter", num_bytes),)
    return (Collective("all-reduce", "all_reduce", num_bytes),)


def embedding_operators(model: ModelArchitecture, shard: Shard, batch: Batch) -> Operators:
    """Return the forward operators of the token embedding on the first pipeline stage."""
    tokens = -(-batch.tokens // shard.cp)
    row_bytes = tokens * model.hidden_size * shard.value_bytes
    found: Operators = (
        Elementwise("embedding", 2 * row_bytes),
        *_leave(shard, row_bytes),
        *_parted_streams(model, shard, tokens),
    )
    if model.layer_inputs is None:
        return found
    width = model.num_layers * model.layer_inputs.size
    read = Elementwise("layer inputs", 5 * tokens * width * shard.value_bytes, kernels=3)
    return (*found, Gemm("layer inputs", tokens, model.hidden_size, width), read)


def _parted_streams(model: ModelArchitecture, shard: Shard, tokens: int) -> Operators:
    """Return what makes streams of an embedding, or joins them behind the last layer: a matrix each, and their magnitudes."""
    predicted = 0 if model.laurel_rank is None else (model.streams or 1) - 1
    if not predicted:
        return ()
    row_bytes = predicted * tokens * model.hidden_size * shard.value_bytes
    return (
        Gemm("streams", tokens, model.hidden_size, predicted * model.hidden_size),
        Elementwise("stream magnitudes", 4 * row_bytes, kernels=3),
    )


def head_operators(
    model: ModelArchitecture, shard: Shard, batch: Batch, head: Head, *, sampling: bool = False
) -> Operators:
    """Return the forward operators after the last layer: norm, output matrix, log-probabilities.

    A language-model head is split by vocabulary; its softmax runs in fp32 over the local part, with
    three small all-reduces (maximum, sum, the target's logit). When `sampling`, the logits of all
    ranks are gathered instead.
    """
    tokens = -(-batch.head_tokens // shard.cp)
    row_bytes = tokens * model.hidden_size * shard.value_bytes
    norm_bytes = 2 * row_bytes / (shard.tp if shard.splits_sequence else 1)
    norm: Operators = (
        *_parted_streams(model, shard, tokens),
        Elementwise("final norm", norm_bytes),
        *_enter(shard, row_bytes),
    )
    if head == "scalar":
        return (*norm, Gemm("value head", tokens, model.hidden_size, 1))
    width = -(-model.vocab_size // shard.tp)
    # Logits are read once and widened to fp32, which is written, reduced, and normalised in place.
    softmax = Elementwise(
        "log-probabilities", tokens * width * (shard.value_bytes + 4 * FP32_BYTES), 3
    )
    gemm = Gemm("output matrix", tokens, model.hidden_size, width)
    if shard.tp == 1:
        return (*norm, gemm, softmax)
    if sampling:
        gathered = Collective("logits", "all_gather", tokens * model.vocab_size * shard.value_bytes)
        return (*norm, gemm, gathered, softmax)
    statistics = Collective("vocabulary statistics", "all_reduce", 3 * tokens * FP32_BYTES)
    return (*norm, gemm, softmax, statistics)


# Forward reads an input and writes an output; backward reads the saved input and the gradient and
# writes a gradient: three tensors for two.
BACKWARD_BYTES_RATIO = 1.5

NARROW_BYTES = 1  # of a value that is quantised for a product

TRANSPOSED_COLLECTIVE: dict[CollectiveKind, CollectiveKind] = {
    "all_reduce": "all_reduce",
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_to_all": "all_to_all",
}


def backward_operators(forward: Operators) -> Operators:
    """Return the backward operators of a forward list; attention and scans keep their shape.

    Every matrix product has two, the gradient of its input and of its weight; frozen weights have no
    gradient. A row-parallel
    output's all-reduce has its counterpart at the column-parallel input (Shoeybi et al. 2019,
    section 3), so that their number is the same in both directions.
    """
    return tuple(operator for each in forward for operator in _backward(each))


def _backward(operator: Operator) -> Operators:
    if isinstance(operator, Gemm):
        m, k, n = operator.m, operator.k, operator.n
        of_input = Gemm(f"{operator.name} input gradient", m, n, k, operator.count)
        if operator.frozen:
            return (of_input,)
        return (of_input, Gemm(f"{operator.name} weight gradient", k, m, n, operator.count))
    if isinstance(operator, Elementwise):
        num_bytes = operator.num_bytes * BACKWARD_BYTES_RATIO
        return (Elementwise(operator.name, num_bytes, operator.kernels, operator.permutes),)
    if isinstance(operator, Collective):
        return (replace(operator, kind=TRANSPOSED_COLLECTIVE[operator.kind]),)
    return (operator,)


# Products whose weights and inputs keep 16 bits beside others in 8 (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.1).
WIDE_PRODUCTS: Final = (ROUTER,)


def with_casts(forward: Operators, value_bytes: int, *, experts: bool = True) -> Operators:
    """Return a forward list in which kernels of their own quantise every product's input.

    Scaling dynamically reads it twice, for its largest value and for the quotient, and writes it once in
    8 bits (torchao, `torchao.float8`, README: dynamic scaling). Weights change once an update only.

    Args:
        experts: Whether inputs of a layer's experts are among them; kernels before them may do it on their way.
    """
    found: list[Operator] = []
    for operator in forward:
        if isinstance(operator, Gemm) and (experts or operator.count == 1):
            values = operator.m * operator.k * operator.count
            num_bytes = values * (2 * value_bytes + NARROW_BYTES)
            found.append(Elementwise(f"{operator.name} cast", num_bytes, kernels=2))
        found.append(operator)
    return tuple(found)


def is_cast(product: Gemm) -> bool:
    """Tell whether a product's input is quantised where its layer's weights are narrow: those of routers and adapters are not."""
    return product.name not in WIDE_PRODUCTS and not product.name.endswith(
        (ADAPTER_IN, ADAPTER_OUT)
    )


def with_input_casts(operators: Operators, tokens: int, cast_bytes: float) -> Operators:
    """Return a layer's operators in an engine that generates, each product behind the kernel that quantises its input.

    Of experts' first products each token is quantised once, whatever experts it goes to; routers and adapters keep 16 bits.

    Args:
        cast_bytes: Read and written for each value.
    """
    found: list[Operator] = []
    for operator in operators:
        if isinstance(operator, Gemm) and is_cast(operator):
            rows = operator.m * operator.count
            if operator.count > 1 and operator.matrices > 1:
                rows = min(rows, tokens)
            num_bytes = round(rows * operator.k * cast_bytes)
            found.append(Elementwise(f"{operator.name} cast", num_bytes))
        found.append(operator)
    return tuple(found)


def gradient_accumulation(forward: Operators, bytes_per_weight: float) -> Operators:
    """Return the adding up of the weight gradients of all matrix products, if there are any."""
    weights = sum(
        each.k * each.n * each.count
        for each in forward
        if isinstance(each, Gemm) and not each.frozen
    )
    if not weights:
        return ()
    return (Elementwise("gradient accumulation", weights * bytes_per_weight),)


def recomputed_operators(forward: Operators, recompute: str, *, fused_attention: bool) -> Operators:
    """Return what the backward pass of a layer computes again.

    `full` repeats the whole layer from its input, wherever that is kept, and so does `alternate` for
    every other layer. `selective` repeats what is cheap to compute and big to keep: memory-bound operators, except
    those that bring tokens to experts, whose inputs are kept; and the attention core, unless a fused kernel
    recomputes it anyway (Korthikanti et al. 2022, section 5). `experts` repeats that, and all of a layer's experts
    from their router on. `attention` repeats the attention core, by a fused kernel too (Megatron-Core,
    transformer/attention.py, checkpoint_core_attention).
    """
    if recompute == "none":
        return ()
    if recompute == "attention":
        return tuple(each for each in forward if isinstance(each, Attention))
    if recompute in ("full", "full-offload", "alternate"):
        return forward
    if recompute == "experts":
        names = [operator.name for operator in forward]
        first = names.index(ROUTER) if ROUTER in names else len(names)
        cheap = recomputed_operators(forward[:first], "selective", fused_attention=fused_attention)
        return cheap + forward[first:]
    return tuple(
        operator
        for operator in forward
        if (isinstance(operator, Elementwise) and not operator.permutes)
        or isinstance(operator, Scan)
        or (isinstance(operator, Attention) and not fused_attention)
    )


def flops_of(operators: Operators) -> float:
    """Return the floating point operations of the matrix products, of (causal) attention and of scans.

    A scan writes each token into its states and reads them for it, however it goes about that.
    """
    count = 0.0
    for operator in operators:
        if isinstance(operator, Gemm):
            count += 2.0 * operator.m * operator.k * operator.n * operator.count
        elif isinstance(operator, Attention):
            seen_tokens = operator.cached_tokens + (operator.query_tokens + 1) / 2
            pairs = operator.batch * operator.query_tokens * seen_tokens
            count += 4.0 * pairs * operator.q_heads * operator.head_dim
        elif isinstance(operator, Scan):
            tokens = operator.sequences * operator.query_tokens * operator.heads
            count += 4.0 * tokens * operator.key_dim * operator.value_dim
    return count


def inferred_model(model: ModelArchitecture, loop: ExpertLoop | None) -> ModelArchitecture:
    """Return a model as passes without gradients compute it: with all experts where a loop is for gradients alone."""
    if loop is None or model.family not in loop.stacked:
        return model
    return replace(model, experts_per_token=model.num_experts)


def kernels_of(operators: Operators) -> int:
    """Return how many kernels the operators launch; grouped products and fused kernels are one."""
    return sum(each.kernels if isinstance(each, Elementwise) else 1 for each in operators)


# Four projections and two norms; mixers of other kinds have about as many.
ATTENTION_TENSORS: Final = 6
# Enough tokens that all experts of a rank are reached.
MANY_TOKENS = Batch(sequences=1, tokens=1 << 24, sequence_tokens=1, head_tokens=0)


def kinds_of_stages(model: ModelArchitecture, cut: ModelCut) -> tuple[tuple[int, ...], ...]:
    """Return how many layers of each kind (`rlplan.models.layer_kinds`) each pipeline stage has."""
    return _kinds_of_stages(model, cut.of_stages)


@lru_cache(maxsize=16384)
def _kinds_of_stages(model: ModelArchitecture, cut: ModelCut) -> tuple[tuple[int, ...], ...]:
    kinds = layer_kinds(model)
    layers = layers_of_stages(model.num_layers, cut.pp, cut.first_layers, cut.last_layers)
    bounds = accumulate(layers, initial=0)
    return tuple(kinds.counts(first, last) for first, last in pairwise(bounds))


def fullest_stage(model: ModelArchitecture, stages: int) -> tuple[int, ...]:
    """Return the layers of each kind on the pipeline stage whose layers have most parameters."""
    counts = kinds_of_stages(model, ModelCut(pp=stages))
    if len(counts[0]) == 1:
        return counts[0]
    return max(counts, key=lambda each: layers_parameters(model, each, WHOLE_MODEL))


@lru_cache(maxsize=65536)
def shard_parameters(model: ModelArchitecture, head: Head, cut: ModelCut, stage: int) -> int:
    """Return the parameters of one device of a pipeline stage.

    Norms and routers are copied to every tensor-parallel rank; a tied embedding is copied to the
    last stage when it is not also the first. What turns images into tokens lies with the embedding.
    """
    layers = kinds_of_stages(model, cut)[stage]
    count = layers_parameters(model, layers, cut)
    if stage == 0:
        count += _vocabulary_parameters(model, cut.tp)
        count += -(-model.front_parameters // cut.tp)
    if stage == cut.pp - 1:
        held = head == "lm" and (cut.pp > 1 or not model.tied_embeddings)
        norm = model.hidden_size + model.joining_parameters
        scores = model.head_parameters(head) - norm if head == "scalar" else 0
        count += norm + scores + (_vocabulary_parameters(model, cut.tp) if held else 0)
    return count


def _vocabulary_parameters(model: ModelArchitecture, tp: int) -> int:
    """Return a rank's parameters of the embedding or of a language model's head: whole rows, at most so many."""
    return -(-model.vocab_size // tp) * model.hidden_size


def layers_parameters(model: ModelArchitecture, counts: tuple[int, ...], cut: ModelCut) -> int:
    """Return the parameters of so many layers of each kind on one device of a cut."""
    whole = 0
    for kind, count in zip(layer_kinds(model).models, counts, strict=True):
        whole += layer_parameters(kind, cut) * count
    return whole


def layer_parameters(model: ModelArchitecture, cut: ModelCut) -> int:
    """Return the parameters of one layer, the largest of its model, on one device of a cut."""
    return _layer_parameters(model, cut.of_layers)


@lru_cache(maxsize=16384)
def _layer_parameters(model: ModelArchitecture, cut: ModelCut) -> int:
    return max(parts.layer_parameters(kind, cut) for kind in layer_kinds(model).models)


def layer_adapter_parameters(model: ModelArchitecture, adapter: Adapter, cut: ModelCut) -> int:
    """Return the parameters of the adapters of one layer of a kind on one device of a cut.

    Whatever its operators multiply by and do not hold frozen.
    """
    return _layer_adapter_parameters(model, adapter, cut.of_layers)


@lru_cache(maxsize=16384)
def _layer_adapter_parameters(model: ModelArchitecture, adapter: Adapter, cut: ModelCut) -> int:
    shard = Shard(tp=cut.tp, ep=cut.ep, expert_tp=cut.expert_tp)
    operators = layer_operators(model, shard, MANY_TOKENS, adapter)
    matrices = (each for each in operators if isinstance(each, Gemm) and not each.frozen)
    return sum(each.k * each.n * each.count for each in matrices)


@lru_cache(maxsize=16384)
def adapter_shard(model: ModelArchitecture, adapter: Adapter, cut: ModelCut = WHOLE_MODEL) -> int:
    """Return the parameters of adapters on the device whose layers hold most of them."""
    kinds = layer_kinds(model)
    return max(
        kinds.total(lambda kind: layer_adapter_parameters(kind, adapter, cut), counts)
        for counts in kinds_of_stages(model, cut)
    )


@lru_cache(maxsize=16384)
def expert_parameters(model: ModelArchitecture, cut: ModelCut = WHOLE_MODEL) -> int:
    """Return the parameters of experts on the device that holds most layers; 0 without experts."""
    return max(layers_experts(model, counts, cut) for counts in kinds_of_stages(model, cut))


def layers_experts(model: ModelArchitecture, counts: tuple[int, ...], cut: ModelCut) -> int:
    """Return the parameters of the experts of so many layers of each kind on one device of a cut."""
    return layer_kinds(model).total(lambda kind: parts.expert_parameters(kind, cut), counts)


@lru_cache(maxsize=256)
def without_tower(model: ModelArchitecture) -> ModelArchitecture:
    """Return a model without what turns images into tokens; an encoder of sound stays."""
    left = None if model.sound is None else model.sound.parameters
    return replace(model, vision_parameters=left, tower=None)


@lru_cache(maxsize=16384)
def largest_shard(model: ModelArchitecture, head: Head, cut: ModelCut) -> int:
    """Return the parameters of the device that holds most.

    Where all layers are alike it is on the first or on the last stage.
    """
    alike = len(layer_kinds(model).models) == 1 and not cut.first_layers
    stages = {0, cut.pp - 1} if alike else range(cut.pp)
    return max(shard_parameters(model, head, cut, stage) for stage in stages)


@lru_cache(maxsize=16384)
def largest_shard_bytes(
    model: ModelArchitecture, precision: Precision, cut: ModelCut = WHOLE_MODEL
) -> int:
    """Return the bytes of the weights of the device that holds most, as an engine generates with them.

    In a narrow format the layers' are quantised, scales included, and both ends keep a wide one. So little
    of a layer is no matrix that it is counted as if it were.
    """
    value_bytes = PRECISIONS[WIDE[precision]].weight_bytes
    if not is_narrow(precision):
        return largest_shard(model, "lm", cut) * value_bytes
    narrow_bytes = PRECISIONS[precision].weight_bytes + SCALE_BYTES[precision]
    found = []
    for stage, counts in enumerate(kinds_of_stages(model, cut)):
        inside = layers_parameters(model, counts, cut)
        ends = shard_parameters(model, "lm", cut, stage) - inside
        found.append(math.ceil(inside * narrow_bytes) + ends * value_bytes)
    return max(found)


@lru_cache(maxsize=16384)
def cached_sequence(
    model: ModelArchitecture, tp: int, pp: int, value_bytes: int, longest_tokens: int
) -> CachedSequence:
    """Return what the cache holds of a sequence on the device that holds most of the longest one."""
    kinds, sizes = layer_kinds(model), (tp, value_bytes, longest_tokens)
    stages = (
        CachedSequence(
            kinds.total(lambda kind: parts.cached_sequence(kind, *sizes).token_bytes, counts),
            kinds.total(lambda kind: parts.cached_sequence(kind, *sizes).fixed_bytes, counts),
        )
        for counts in kinds_of_stages(model, ModelCut(pp=pp))
    )
    return max(stages, key=lambda held: held.token_bytes * longest_tokens + held.fixed_bytes)


@lru_cache(maxsize=1024)
def num_tensors(model: ModelArchitecture) -> int:
    """Return the tensors of a model as a checkpoint names them: every expert's matrices are their own."""
    return layer_kinds(model).total(_layer_tensors) + (2 if model.tied_embeddings else 3)


def _layer_tensors(model: ModelArchitecture) -> int:
    """Return the tensors of a layer: projections with their biases, norms, matrices of each network."""
    each = 3 if model.gated_mlp else 2
    attention = ATTENTION_TENSORS + (3 if model.qkv_bias else 0) + (2 if model.qk_norm else 0)
    if model.feed_forward_part != "experts":
        return attention + each
    details = model.expert_details
    shared = each if details is not None and details.shared_ffn_size else 0
    biases = 1 if details is not None and details.router_bias else 0
    return attention + model.num_experts * each + shared + 1 + biases


OFFLOADED = "full-offload"
# What `alternate` keeps of every other layer, and of those between.
ALTERNATING: tuple[Recompute, ...] = ("none", "full")
# Products that read what the norm before attention makes.
QUERY_KEY_VALUE = 3
# Gradients of a layer's output and input, beside those of what its parts keep.
GRADIENT_ROWS = 2


@lru_cache(maxsize=65536)
def layer_activation_bytes(model: ModelArchitecture, batch: KeptBatch, recompute: Recompute) -> int:
    """Return the bytes that one layer keeps of one micro-batch for its backward pass.

    `none` keeps the inputs of both norms, of all matrix products, of attention and of the MLP's
    activation; `selective` makes the outputs of norms and activation (and unfused scores) again,
    `full` everything but the layer's input, which `full-offload` keeps in host memory; `experts` is as
    `selective`, and keeps of experts but their input. `attention` makes unfused scores again, and nothing else.
    """
    if recompute == OFFLOADED:
        return 0
    if recompute == "alternate":
        return sum(layer_activation_bytes(model, batch, kind) for kind in ALTERNATING) // 2
    row = _row_bytes(model, batch)
    if recompute == "full":
        return round(_between_layers(model, batch))
    if recompute == "attention":
        # A checkpoint around the core keeps what a fused kernel does: its inputs and what it gives.
        return layer_activation_bytes(model, batch._replace(fused_attention=True), "none")
    keeps_products = recompute == "none"
    parts = _part_bytes(model, batch, keeps_products=keeps_products)
    if recompute == "experts" and model.feed_forward_part == "experts":
        parts[-1] = 0
    own = row * (model.streams or 1)  # a part's input; what its norm makes is one row
    rows = len(parts) * (own + (row if keeps_products else 0)) + _unfused_norms(model, batch)
    return round(rows + sum(parts))


@lru_cache(maxsize=65536)
def layer_peak_bytes(model: ModelArchitecture, batch: KeptBatch) -> int:
    """Return the most bytes that a layer holds of one micro-batch while it runs backwards.

    All that is kept where nothing is computed again, and gradients: of the layer's output and input,
    and of the part that keeps most. Each tensor that a part keeps has a gradient of its size, which is
    gone when the next part's come.
    """
    row, parts = _row_bytes(model, batch), _part_bytes(model, batch, keeps_products=True)
    rows = row * len(parts) * ((model.streams or 1) + 1)
    gradients = GRADIENT_ROWS * _between_layers(model, batch)
    return round(rows + gradients + _unfused_norms(model, batch) + sum(parts) + max(parts))


def _between_layers(model: ModelArchitecture, batch: KeptBatch) -> float:
    """Return the bytes of what a layer takes in, or gives to the next one."""
    width = batch.residual_bytes / batch.shard.value_bytes
    return _row_bytes(model, batch) * width * (model.streams or 1)


def _row_bytes(model: ModelArchitecture, batch: KeptBatch) -> float:
    """Return the bytes of hidden states between the parts of a layer."""
    shard = batch.shard
    row_bytes = batch.tokens * model.hidden_size * shard.value_bytes
    return row_bytes / shard.tp if shard.splits_sequence else row_bytes


def _unfused_norms(model: ModelArchitecture, batch: KeptBatch) -> float:
    """Return the bytes that norms before the parts of a layer keep beside their inputs and outputs.

    An unfused norm keeps its input in fp32, and the normalised values in the input's format (transformers,
    Qwen2RMSNorm). In autocast both are fp32, and each product that reads the output keeps a copy of its own in bf16.
    """
    if batch.kernels == "fused":
        return 0.0
    norms, width = len(parts_of(model)), batch.shard.value_bytes
    values = _row_bytes(model, batch) / width
    if batch.kernels == "eager":
        return norms * values * FP32_BYTES
    reading = 0 if model.attention == NO_PART else QUERY_KEY_VALUE
    if model.feed_forward_part != NO_PART:
        reading += 2 if model.gated_mlp and model.feed_forward_part != "experts" else 1
    return values * (norms * 2 * FP32_BYTES + (reading - 2 * norms) * width)


def _part_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> list[int]:
    return [
        part.kept_bytes(model, batch, keeps_products=keeps_products) for part in parts_of(model)
    ]


def logits_bytes(
    model: ModelArchitecture,
    tp: int,
    tokens: int,
    value_bytes: int,
    memory: TrainerMemory = USUAL_MEMORY,
    way: LogitTensors | None = None,
    *,
    backward: bool,
) -> int:
    """Return the bytes of a language-model head's output for `tokens` tokens.

    The logits as they are computed and their fp32 softmax; in training its gradient too, and as many
    copies of each as the engine holds at a time, of as many logits as it makes at a time.

    Args:
        way: What the way in which log-probabilities are made holds; None counts by the engine's copies.
    """
    width = -(-model.vocab_size // tp)
    if way is not None:
        return way.logits_bytes(tokens, width, trains=backward)
    if not backward:
        return tokens * width * (value_bytes + FP32_BYTES)
    copies = memory.logit_copies * value_bytes + memory.fp32_logit_copies * FP32_BYTES
    return min(memory.head_entries or width, width) * tokens * copies


def shard_of(layout: TaskPlan, precision: Precision, engine: EngineSheet) -> Shard:
    """Return how a layout cuts a model.

    Engines that generate exchange tokens between experts only where ranks beyond a tensor-parallel group share them out, as under
    attention by rank: inside it all ranks have them (vLLM, fused_moe/config.py, use_all2all_kernels; SGLang,
    docs/advanced_features/expert_parallelism.md, moe_a2a_backend none, its default).
    """
    width = layout.expert_tp or layout.tp
    return Shard(
        tp=layout.tp,
        cp=layout.cp,
        ep=layout.ep,
        expert_tp=0 if layout.expert_tp == layout.tp else layout.expert_tp or 0,
        context_exchange=engine.context_exchange,
        value_bytes=PRECISIONS[WIDE[precision]].weight_bytes,
        sequence_parallel=engine.sequence_parallel,
        sums_experts=engine.role == "generate" and layout.ep * width <= layout.tp,
    )


def as_told(engine: EngineSheet, task: Task, job: Job) -> EngineSheet:
    """Return the sheet of a task's engine as the job tells it to work: the trainer of the task's role, or what generates."""
    if task.kind == "generate":
        told = job.engines.graph_sequences
        return engine if told is None else capturing(engine, told)
    return sharing_prompts(engine) if job.trainer(task.role).shares_prompts else engine


@lru_cache(maxsize=64)
def capturing(engine: EngineSheet, sequences: int) -> EngineSheet:
    """Return an engine whose CUDA graphs hold steps of at most so many sequences; with 0 it has none."""
    hidden = engine.launches_hidden and sequences > 0
    steps = replace(engine.steps, captured_tokens=sequences)
    return replace(engine, steps=steps, launches_hidden=hidden)


@lru_cache(maxsize=64)
def sharing_prompts(engine: EngineSheet) -> EngineSheet:
    """Return a training engine that computes a prompt's tokens once for its samples, those of attention among them."""
    return replace(engine, shares_prompts=True, shares_attention=True)


@lru_cache(maxsize=64)
def padded_to_longest(engine: EngineSheet) -> EngineSheet:
    """Return a training engine whose rows are all as wide as the longest of a step's batch."""
    return replace(engine, padding="longest")
