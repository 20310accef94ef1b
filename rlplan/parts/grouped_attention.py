"""Causal attention with grouped heads: queries in groups that share a key and a value (GQA, MHA, MQA).

Megatron-style tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053, section 3): QKV is split by columns,
the output matrix by rows. Ulysses or ring context parallelism is one all-gather of keys and values.
"""

from rlplan.model import ModelArchitecture
from rlplan.operators import (
    FP32_BYTES,
    Attention,
    Batch,
    Collective,
    Elementwise,
    Gemm,
    Operator,
    Operators,
    Shard,
)


def q_heads(model: ModelArchitecture, tp: int) -> int:
    """Return the query heads on one device."""
    return max(1, model.num_heads // tp)


def kv_heads(model: ModelArchitecture, tp: int) -> int:
    """Return the KV heads on one device; ranks beyond their number hold copies."""
    return max(1, model.num_kv_heads // tp)


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters on one device: QKV, output, biases, QK norms."""
    del ep
    q_size, kv_size = q_heads(model, tp) * model.head_dim, kv_heads(model, tp) * model.head_dim
    count = model.hidden_size * (2 * q_size + 2 * kv_size)
    if model.qkv_bias:
        count += q_size + 2 * kv_size
    if model.qk_norm:
        count += 2 * model.head_dim
    return count


def expert_parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return that every rank has all of them."""
    del model, tp, ep
    return 0


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return QKV, rotary embedding, attention and output, with the cache where there is one."""
    q_size, kv_size = (heads(model, shard.tp) * model.head_dim for heads in (q_heads, kv_heads))
    turned_bytes = 2 * tokens * (q_size + kv_size) * shard.value_bytes  # read and written
    query = -(-batch.sequence_tokens // shard.cp)
    # A context-parallel rank's queries see on average half of the tokens of the other ranks.
    cached = batch.cached_tokens + (batch.sequence_tokens - query) // 2
    found: list[Operator] = [
        Gemm("qkv", tokens, model.hidden_size, q_size + 2 * kv_size, matrices=3)
    ]
    if model.qk_norm:
        found.append(Elementwise("qk norm", turned_bytes, kernels=2))
    found.append(Elementwise("rope", turned_bytes))
    if batch.cached_tokens:
        found.append(Elementwise("cache write", 4 * tokens * kv_size * shard.value_bytes))
    if shard.cp > 1:
        kv_bytes = 2 * batch.tokens * kv_size * shard.value_bytes
        found.append(Collective("context exchange", "all_gather", kv_bytes, "cp"))
    found += core(model, shard.tp, batch.sequences, query, cached)
    found.append(Gemm("attention output", tokens, q_size, model.hidden_size))
    return tuple(found)


def core(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the attention of queries over themselves and over what is cached."""
    heads = (q_heads(model, tp), kv_heads(model, tp), model.head_dim)
    return (Attention("attention", sequences, query_tokens, cached, *heads),)


def kept_bytes(
    model: ModelArchitecture,
    shard: Shard,
    tokens: int,
    spread_tokens: int,
    sequence_tokens: int,
    *,
    fused_attention: bool,
    keeps_products: bool,
) -> int:
    """Return the bytes of queries, keys, values, output, and one fp32 statistic a query or the scores."""
    del tokens  # queries, keys and values are spread to all sequences, and kept so
    own = q_heads(model, shard.tp)
    heads = 2 * own + 2 * kv_heads(model, shard.tp)  # q, k, v and the output
    kept = spread_tokens * heads * model.head_dim * shard.value_bytes
    if fused_attention:
        return kept + spread_tokens * own * FP32_BYTES
    if keeps_products:
        return kept + spread_tokens * sequence_tokens * own * shard.value_bytes
    return kept


def cached_values_per_token(model: ModelArchitecture, tp: int) -> int:
    """Return the key and the value of every KV head."""
    return 2 * kv_heads(model, tp) * model.head_dim
