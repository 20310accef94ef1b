"""Latent attention to the tokens that an index chooses (DSA; DeepSeek-V3.2, arXiv:2512.02556, section 2.1).

Small heads score all tokens before a query; it attends to the best of them alone. The index is no larger than one
head or two of the attention, and every tensor-parallel rank has it whole. Sequences that are no longer than what is
chosen attend as latent attention does; in longer ones every head reads the compressed vectors that were chosen, as in
a decode step, for each query has tokens of its own.
"""

from rlplan.models import (
    Attention,
    Batch,
    Elementwise,
    Gemm,
    KeptBatch,
    LatentAttention,
    ModelArchitecture,
    Operators,
    Shard,
)
from rlplan.parts import latent_attention
from rlplan.parts.grouped_attention import windowed
from rlplan.parts.latent_attention import sizes_of


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters on one device: those of latent attention and the whole index."""
    sizes = sizes_of(model)
    queries = (sizes.query_rank or model.hidden_size) * _index_width(sizes)
    key_norm = 2 * sizes.index_dim  # with biases
    index = queries + model.hidden_size * (sizes.index_dim + sizes.index_heads) + key_norm
    return latent_attention.parameters(model, tp, ep) + index


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return the projections of the index, and those of latent attention around what it chooses."""
    sizes = sizes_of(model)
    width, keys = _index_width(sizes), sizes.index_dim + sizes.index_heads
    return (
        Gemm("index queries", tokens, sizes.query_rank or model.hidden_size, width),
        Gemm("index keys and weights", tokens, model.hidden_size, keys, matrices=2),
        Elementwise("index rope", 2 * tokens * (width + sizes.index_dim) * shard.value_bytes),
        *latent_attention.operators(model, shard, batch, tokens, core),
    )


def core(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the scores of the index over all tokens, and the attention to those that it chooses."""
    sizes = sizes_of(model)
    # Scores are queries times keys alone: half of an attention's multiplications, so heads of half their size.
    half = max(1, sizes.index_dim // 2)
    scores = Attention("index scores", sequences, query_tokens, cached, sizes.index_heads, 1, half)
    return (scores, *to_chosen(model, tp, sequences, query_tokens, cached))


def to_chosen(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the attention to the tokens that an index chose, of this layer or of one before it."""
    sizes = sizes_of(model)
    if cached + query_tokens <= sizes.index_tokens:
        return latent_attention.core(model, tp, sequences, query_tokens, cached)
    pieces, queries, seen = windowed(sizes.index_tokens, query_tokens, cached)
    (one,) = latent_attention.core(model, tp, sequences, 1, seen)
    assert isinstance(one, Attention)
    heads = (one.q_heads, one.kv_heads, one.head_dim)
    return (Attention("attention", pieces * sequences, queries, seen, *heads),)


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes that latent attention keeps, and queries, keys and weights of the index."""
    sizes = sizes_of(model)
    seen = min(batch.sequence_tokens, sizes.index_tokens)
    kept = latent_attention.kept_of(model, batch, seen, keeps_products=keeps_products)
    index = _index_width(sizes) + sizes.index_dim + sizes.index_heads
    return kept + batch.spread_tokens * index * batch.shard.value_bytes


def cached_values_per_token(model: ModelArchitecture, tp: int) -> int:
    """Return those of latent attention, and the key of the index, which all of its heads share."""
    return latent_attention.cached_values_per_token(model, tp) + sizes_of(model).index_dim


def read_values(model: ModelArchitecture, tp: int, cached: int) -> int:
    """Return the values of a sequence's cache that a decode step reads: all keys of the index, and what it chooses."""
    sizes = sizes_of(model)
    chosen = min(cached, sizes.index_tokens)
    each = latent_attention.cached_values_per_token(model, tp)
    return cached * sizes.index_dim + chosen * each


def _index_width(sizes: LatentAttention) -> int:
    return sizes.index_heads * sizes.index_dim
