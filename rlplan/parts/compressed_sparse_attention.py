"""Attention to a window, and to compressed blocks that an index chooses (CSA; DeepSeek-V4's report, section 2.3.1).

Blocks are small and overlap: a vector is made of its own tokens and of those of the block before it, so that every
token is projected twice. An index of small heads has compressed keys of its own, scores all blocks before a query and
chooses some of them. Compressors and index are on every tensor-parallel rank whole.
"""

from rlplan.models import (
    Attention,
    Batch,
    Elementwise,
    Gemm,
    KeptBatch,
    ModelArchitecture,
    Operators,
    Shard,
)
from rlplan.parts import shared_key_attention
from rlplan.parts.compressed_attention import PROJECTIONS, compressor, compressor_parameters
from rlplan.parts.shared_key_attention import mean_seen, seen_by_heads, sizes_of, spread

SERIES = 2  # blocks that a token is projected for: its own and the next one


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters on one device: those around the heads, both compressors and the index, whole."""
    sizes = sizes_of(model)
    ratio = sizes.sparse_ratio
    own = compressor_parameters(model, model.head_dim, ratio, SERIES)
    index = compressor_parameters(model, sizes.index_dim, ratio, SERIES)
    index += sizes.query_rank * sizes.index_heads * sizes.index_dim
    index += model.hidden_size * sizes.index_heads
    return shared_key_attention.parameters(model, tp, ep) + own + index


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return compressors, projections of the index, and projections and grouped output around the attention."""
    sizes, value_bytes = sizes_of(model), shard.value_bytes
    width = sizes.index_heads * sizes.index_dim
    values = cached_values_per_token(model, shard.tp)
    return (
        *compressor(model, tokens, model.head_dim, value_bytes, SERIES),
        *compressor(model, tokens, sizes.index_dim, value_bytes, SERIES),
        Gemm("index queries", tokens, sizes.query_rank, width),
        Gemm("index weights", tokens, model.hidden_size, sizes.index_heads),
        Elementwise("index rope", 2 * tokens * width * value_bytes),
        *shared_key_attention.operators(model, shard, batch, tokens, core, values),
    )


def core(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the attention to the window, the scores of the index, and the attention to what it chooses."""
    sizes = sizes_of(model)
    window = shared_key_attention.core(model, tp, sequences, query_tokens, cached)
    blocks = mean_seen(cached + query_tokens, query_tokens, cached) / sizes.sparse_ratio
    if blocks < 1:
        return window
    most = sizes.index_entries * sizes.sparse_ratio
    chosen = mean_seen(most, query_tokens, cached) / sizes.sparse_ratio
    # Scores are queries times keys alone: half of an attention's multiplications, so heads of half their size.
    heads = (sizes.index_heads, 1, max(1, sizes.index_dim // 2))
    scores: Attention = spread("index scores", sequences, query_tokens, blocks, heads)
    name = "compressed attention"
    return (*window, scores, seen_by_heads(name, model, tp, sequences, query_tokens, chosen))


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes that are kept around the heads, of compressors, and of the index's queries and weights."""
    sizes = sizes_of(model)
    seen = sizes.window + min(sizes.index_entries, batch.sequence_tokens // sizes.sparse_ratio)
    kept = shared_key_attention.kept_of(model, batch, seen, keeps_products=keeps_products)
    width = PROJECTIONS * SERIES * (model.head_dim + sizes.index_dim)
    width += sizes.index_heads * (sizes.index_dim + 1)
    return kept + batch.tokens * width * batch.shard.value_bytes


def cached_values_per_token(model: ModelArchitecture, tp: int) -> int:
    """Return a token's shares of its block's vector and of its key in the index."""
    del tp
    sizes = sizes_of(model)
    return -(-(model.head_dim + sizes.index_dim) // sizes.sparse_ratio)


def state_bytes(model: ModelArchitecture, tp: int, value_bytes: int) -> int:
    """Return the bytes of the window, and of the open block and the one before it with their gates."""
    del tp
    sizes = sizes_of(model)
    blocks = SERIES * PROJECTIONS * sizes.sparse_ratio * (model.head_dim + sizes.index_dim)
    return (sizes.window * model.head_dim + blocks) * value_bytes


def read_values(model: ModelArchitecture, tp: int, cached: int) -> int:
    """Return the values of a sequence's cache that a decode step reads: window, all keys of the index, what it chose."""
    del tp
    sizes = sizes_of(model)
    window = min(cached, sizes.window) * model.head_dim
    blocks = cached // sizes.sparse_ratio
    return window + blocks * sizes.index_dim + min(blocks, sizes.index_entries) * model.head_dim
