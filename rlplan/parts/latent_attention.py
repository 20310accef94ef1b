"""Attention over compressed keys and values (MLA; DeepSeek-V2, arXiv:2405.04434, section 2.1).

The cache holds one compressed vector and one rotary key of a token for all heads, on every tensor-parallel rank.
Passes over many queries make keys and values of each head out of it; a decode step moves that product to the
queries and to the outputs and attends over the compressed vectors themselves (section 2.1.2), as serving engines do.
"""

from rlplan.models import (
    Attention,
    Batch,
    Collective,
    Elementwise,
    Gemm,
    KeptBatch,
    LatentAttention,
    ModelArchitecture,
    Operator,
    Operators,
    Shard,
)
from rlplan.parts.grouped_attention import Core, q_heads, queries_of_rank, score_bytes


def sizes_of(model: ModelArchitecture) -> LatentAttention:
    """Return the sizes of its projections."""
    assert model.latent is not None, f"{model.name} names no sizes of latent attention"
    return model.latent


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters on one device: what is made for heads is split, what compresses is copied."""
    del ep
    sizes, heads, hidden = sizes_of(model), q_heads(model, tp), model.hidden_size
    queries = heads * (sizes.nope_dim + sizes.rope_dim)
    count = hidden * queries
    if sizes.query_rank:
        count = sizes.query_rank * (hidden + 1 + queries)
    count += hidden * (sizes.kv_rank + sizes.rope_dim) + sizes.kv_rank
    count += sizes.kv_rank * heads * (sizes.nope_dim + sizes.value_dim)
    count += hidden * _gates(model, heads)
    return count + heads * sizes.value_dim * hidden


def core(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the attention of queries over themselves and over what is cached.

    An `Attention` has as many multiplications for keys as for values: its head size is the mean of both.
    """
    sizes, heads = sizes_of(model), q_heads(model, tp)
    if query_tokens == 1:
        # All heads read the same vector of kv_rank + rope_dim values once, as key and, without the rope_dim values, as value.
        # So it is one KV head of half that size, with as many query heads as give the multiplications of all heads.
        read = sizes.kv_rank + sizes.rope_dim
        head_dim = max(1, read // 2)
        seen = round(heads * (read + sizes.kv_rank) / (2 * head_dim))
        return (Attention("attention", sequences, 1, cached, max(1, seen), 1, head_dim),)
    head_dim = (sizes.nope_dim + sizes.rope_dim + sizes.value_dim) // 2
    whole = Attention("attention", sequences, query_tokens, cached, heads, heads, head_dim)
    return (_made_keys(sizes, heads, sequences * cached), whole) if cached else (whole,)


def operators(
    model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int, attends: Core = core
) -> Operators:
    """Return compression, projections, rotary embedding, attention and output.

    Args:
        attends: What is between the projections.
    """
    sizes, heads = sizes_of(model), q_heads(model, shard.tp)
    compressed, turned = sizes.kv_rank + sizes.rope_dim, heads * sizes.rope_dim + sizes.rope_dim
    queries = heads * (sizes.nope_dim + sizes.rope_dim)
    found: list[Operator] = []
    if sizes.query_rank:
        down = sizes.query_rank + compressed
        found.append(Gemm("latent down", tokens, model.hidden_size, down, matrices=2))
        found.append(Elementwise("latent norms", 2 * tokens * down * shard.value_bytes, kernels=2))
        found.append(Gemm("queries up", tokens, sizes.query_rank, queries))
    else:
        width = queries + compressed
        found.append(Gemm("latent down", tokens, model.hidden_size, width, matrices=2))
        found.append(Elementwise("latent norms", 2 * tokens * sizes.kv_rank * shard.value_bytes))
    found.append(Elementwise("rope", 2 * tokens * turned * shard.value_bytes))
    found.append(_made_keys(sizes, heads, tokens))
    if batch.cached_tokens:
        found.append(Elementwise("cache write", 2 * tokens * compressed * shard.value_bytes))
    if shard.cp > 1:
        num_bytes = batch.tokens * compressed * shard.value_bytes
        found.append(Collective("context exchange", "all_gather", num_bytes, "cp"))
    found += attends(model, shard.tp, batch.sequences, *queries_of_rank(shard, batch))
    gates, width = _gates(model, heads), heads * sizes.value_dim
    if gates:
        found.append(Gemm("output gate", tokens, model.hidden_size, gates))
        moved_bytes = tokens * (2 * width + gates) * shard.value_bytes
        found.append(Elementwise("gated output", moved_bytes))
    found.append(Gemm("attention output", tokens, heads * sizes.value_dim, model.hidden_size))
    return tuple(found)


def _gates(model: ModelArchitecture, heads: int) -> int:
    """Return the numbers that gate a token's output: as many as it has (Kimi-K3), one a head (Ling-3.0), or none."""
    details = model.attention_details
    if details is None:
        return 0
    return heads * sizes_of(model).value_dim if details.output_gate else heads * details.head_gate


def _made_keys(sizes: LatentAttention, heads: int, tokens: int) -> Gemm:
    """Return the product that makes keys and values of tokens; moved to queries and outputs it is as large."""
    width = heads * (sizes.nope_dim + sizes.value_dim)
    return Gemm("keys and values up", tokens, sizes.kv_rank, width)


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes of compressed vectors, queries, keys, values, output, and a statistic or the scores."""
    return kept_of(model, batch, batch.sequence_tokens, keeps_products=keeps_products)


def kept_of(
    model: ModelArchitecture, batch: KeptBatch, seen_tokens: int, *, keeps_products: bool
) -> int:
    """Return the bytes that are kept where a query sees at most so many tokens."""
    sizes, own = sizes_of(model), q_heads(model, batch.shard.tp)
    compressed = batch.tokens * ((sizes.query_rank or 0) + sizes.kv_rank + sizes.rope_dim)
    each = 2 * (sizes.nope_dim + sizes.rope_dim) + 2 * sizes.value_dim
    spread = batch.spread_tokens * (own * each + _gates(model, own))
    kept = (compressed + spread) * batch.shard.value_bytes
    return kept + score_bytes(batch, own, seen_tokens, keeps_products=keeps_products)


def cached_values_per_token(model: ModelArchitecture, tp: int) -> int:
    """Return the compressed vector and the rotary key, which all heads share."""
    del tp
    return sizes_of(model).kv_rank + sizes_of(model).rope_dim
