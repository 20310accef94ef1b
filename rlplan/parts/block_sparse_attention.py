"""Grouped attention to the blocks of the cache that an index chooses (MiniMax-M3's sparse layers).

Small heads of their own, whose keys the cache holds beside the others, score all tokens before a query; a block has
the best score of its tokens. A query attends to the tokens of the best blocks, its own among them, with all heads. The
index is on every tensor-parallel rank whole.
"""

from rlplan.models import (
    Attention,
    Batch,
    BlockIndex,
    Elementwise,
    Gemm,
    KeptBatch,
    ModelArchitecture,
    Operators,
    Shard,
)
from rlplan.parts import grouped_attention
from rlplan.parts.grouped_attention import windowed


def sizes_of(model: ModelArchitecture) -> BlockIndex:
    """Return the sizes of the index."""
    assert model.block_index is not None, f"{model.name} names no index of blocks"
    return model.block_index


def chosen_tokens(model: ModelArchitecture) -> int:
    """Return the tokens of all blocks that a query attends to at most."""
    return sizes_of(model).block_tokens * sizes_of(model).blocks


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters on one device: those of grouped attention, and the whole index with its norms."""
    sizes = sizes_of(model)
    index = model.hidden_size * (sizes.heads + 1) * sizes.dim + 2 * sizes.dim
    return grouped_attention.parameters(model, tp, ep) + index


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return the projections of the index, and those of grouped attention around what it chooses."""
    width = (sizes_of(model).heads + 1) * sizes_of(model).dim
    return (
        Gemm("index queries and keys", tokens, model.hidden_size, width, matrices=2),
        Elementwise("index norm and rope", 4 * tokens * width * shard.value_bytes, kernels=2),
        *grouped_attention.operators(model, shard, batch, tokens, core),
    )


def core(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the scores of the index over all tokens, and the attention to the blocks that it chooses."""
    sizes, chosen = sizes_of(model), chosen_tokens(model)
    # Scores are queries times keys alone: half of an attention's multiplications, so heads of half their size.
    half = max(1, sizes.dim // 2)
    scores = Attention("index scores", sequences, query_tokens, cached, sizes.heads, 1, half)
    if cached + query_tokens > chosen:
        pieces, query_tokens, cached = windowed(chosen, query_tokens, cached)
        sequences *= pieces
    return (scores, *grouped_attention.core(model, tp, sequences, query_tokens, cached))


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes that grouped attention keeps, and queries and keys of the index."""
    sizes, shard = sizes_of(model), batch.shard
    seen = min(batch.sequence_tokens, chosen_tokens(model))
    kept = grouped_attention.kept_of(model, batch, seen, keeps_products=keeps_products)
    return kept + batch.spread_tokens * (sizes.heads + 1) * sizes.dim * shard.value_bytes


def cached_values_per_token(model: ModelArchitecture, tp: int) -> int:
    """Return those of grouped attention, and the key of the index, which its heads share."""
    return grouped_attention.cached_values_per_token(model, tp) + sizes_of(model).dim


def read_values(model: ModelArchitecture, tp: int, cached: int) -> int:
    """Return the values of a sequence's cache that a decode step reads: all keys of the index, and what it chooses."""
    each = grouped_attention.cached_values_per_token(model, tp)
    return cached * sizes_of(model).dim + min(cached, chosen_tokens(model)) * each
