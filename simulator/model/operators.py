"""What a transformer computes: the one list of operators from which all costs follow.

Shapes follow Megatron-style tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053, section 3):
QKV and the MLP's first matrices are split by columns, the output matrices by rows, with one
all-reduce after each block, or a reduce-scatter and an all-gather with sequence parallelism
(Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2). Bytes count each tensor once per kernel
that reads or writes it, kernels fused as training engines fuse them.
"""

from dataclasses import dataclass
from typing import Literal

from rlplan.model import Head, ModelArchitecture
from simulator.model.shard import Batch, Shard, local_kv_heads

Group = Literal["tp", "ep", "cp"]
CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv"]
FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Gemm:
    """Multiply (m x k) by (k x n), `count` times."""

    name: str
    m: int
    k: int
    n: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Attention:
    """Attend with `query_tokens` of each sequence over them and `cached_tokens` before them."""

    name: str
    batch: int
    query_tokens: int
    cached_tokens: int
    q_heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Move bytes through `kernels` memory-bound kernels."""

    name: str
    num_bytes: float
    kernels: int = 1


@dataclass(frozen=True, slots=True)
class Collective:
    """Exchange a tensor of `num_bytes` (in full) within the group."""

    name: str
    kind: CollectiveKind
    num_bytes: float
    group: Group = "tp"


Operator = Gemm | Attention | Elementwise | Collective
Operators = tuple[Operator, ...]


def layer_operators(model: ModelArchitecture, shard: Shard, batch: Batch) -> Operators:
    """Return the forward operators of one layer on one device."""
    tokens = -(-batch.tokens // shard.cp)
    row_bytes = tokens * model.hidden_size * shard.value_bytes
    outside = row_bytes / shard.tp if shard.splits_sequence else row_bytes
    attention = (
        Elementwise("norm", 2 * outside),
        *_enter(shard, row_bytes),
        *_attention(model, shard, batch, tokens),
        *_leave(shard, row_bytes),
        Elementwise("residual", 3 * outside),
    )
    mlp = _experts(model, shard, tokens) if model.num_experts else _mlp(model, shard, tokens)
    return (
        *attention,
        Elementwise("norm", 2 * outside),
        *_enter(shard, row_bytes),
        *mlp,
        *_leave(shard, row_bytes),
        Elementwise("residual", 3 * outside),
    )


def _enter(shard: Shard, num_bytes: float) -> Operators:
    return (Collective("all-gather", "all_gather", num_bytes),) if shard.splits_sequence else ()


def _leave(shard: Shard, num_bytes: float) -> Operators:
    if shard.tp == 1:
        return ()
    if shard.splits_sequence:
        return (Collective("reduce-scatter", "reduce_scatter", num_bytes),)
    return (Collective("all-reduce", "all_reduce", num_bytes),)


def _attention(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    q_heads = max(1, model.num_heads // shard.tp)
    kv_heads = local_kv_heads(model, shard.tp)
    q_size, kv_size = q_heads * model.head_dim, kv_heads * model.head_dim
    turned_bytes = 2 * tokens * (q_size + kv_size) * shard.value_bytes  # read and written
    query = -(-batch.sequence_tokens // shard.cp)
    # A context-parallel rank's queries see on average half of the tokens of the other ranks.
    cached = batch.cached_tokens + (batch.sequence_tokens - query) // 2
    operators: list[Operator] = [Gemm("qkv", tokens, model.hidden_size, q_size + 2 * kv_size)]
    if model.qk_norm:
        operators.append(Elementwise("qk norm", turned_bytes, kernels=2))
    operators.append(Elementwise("rope", turned_bytes))
    if batch.cached_tokens:
        operators.append(Elementwise("cache write", 4 * tokens * kv_size * shard.value_bytes))
    if shard.cp > 1:
        kv_bytes = 2 * batch.tokens * kv_size * shard.value_bytes
        operators.append(Collective("context exchange", "all_gather", kv_bytes, "cp"))
    operators.append(
        Attention("attention", batch.sequences, query, cached, q_heads, kv_heads, model.head_dim)
    )
    operators.append(Gemm("attention output", tokens, q_size, model.hidden_size))
    return tuple(operators)


def _mlp(model: ModelArchitecture, shard: Shard, tokens: int) -> Operators:
    width = -(-model.ffn_size // shard.tp)
    return _feed_forward(model, tokens, width, shard.value_bytes, experts=1)


def _feed_forward(
    model: ModelArchitecture, tokens: int, width: int, value_bytes: int, experts: int
) -> Operators:
    up = 2 if model.gated_mlp else 1
    return (
        Gemm("mlp up", tokens, model.hidden_size, up * width, experts),
        Elementwise("activation", experts * tokens * (up + 1) * width * value_bytes),
        Gemm("mlp down", tokens, width, model.hidden_size, experts),
    )


def _experts(model: ModelArchitecture, shard: Shard, tokens: int) -> Operators:
    """Route every token to its top-k experts; loads are balanced, as the routers' losses aim for.

    Of E experts, T tokens with k choices each reach E (1 - (1 - k/E)^T) on average, and only those
    have their weights read.
    """
    top_k, experts = model.experts_per_token, model.num_experts
    routed = tokens * shard.ep  # an expert's tokens come from all ranks of its group
    reached = experts * (1 - (1 - top_k / experts) ** routed)
    local = max(1, min(round(reached / shard.ep), experts // shard.ep))
    each = -(-routed * top_k // (local * shard.ep))
    width = -(-model.moe_ffn_size // shard.tp)
    sorted_bytes = tokens * top_k * model.hidden_size * shard.value_bytes
    exchange: Operators = ()
    if shard.ep > 1:
        # An all-to-all of B bytes a rank sends (n - 1) / n B from each, as an all-gather of B does.
        exchange = (Collective("expert exchange", "all_gather", sorted_bytes, "ep"),)
    return (
        Gemm("router", tokens, model.hidden_size, experts),
        Elementwise("dispatch", 2 * sorted_bytes, kernels=2),
        *exchange,
        *_feed_forward(model, each, width, shard.value_bytes, local),
        *exchange,
        Elementwise("combine", 2 * sorted_bytes),
    )


def embedding_operators(model: ModelArchitecture, shard: Shard, batch: Batch) -> Operators:
    """Return the forward operators of the token embedding on the first pipeline stage."""
    tokens = -(-batch.tokens // shard.cp)
    row_bytes = tokens * model.hidden_size * shard.value_bytes
    return (Elementwise("embedding", 2 * row_bytes), *_leave(shard, row_bytes))


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
    norm: Operators = (Elementwise("final norm", norm_bytes), *_enter(shard, row_bytes))
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
