"""Attention to a window, and to all tokens before it compressed by blocks (HCA; DeepSeek-V4's report, section 2.3.2).

Every so many tokens become one vector: a mean of what is projected of them, weighted by gates for each of its
numbers. A query sees all vectors of blocks that are complete before it. The cache holds one vector a block, and of
the open block what is projected.
"""

from rlplan.models import Batch, Elementwise, Gemm, KeptBatch, ModelArchitecture, Operators, Shard
from rlplan.parts import shared_key_attention
from rlplan.parts.shared_key_attention import mean_seen, seen_by_heads, sizes_of

PROJECTIONS = 2  # of a token: what is compressed, and the gates


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters on one device: those around the heads, and the compressor, whole."""
    own = compressor_parameters(model, model.head_dim, sizes_of(model).heavy_ratio, series=1)
    return shared_key_attention.parameters(model, tp, ep) + own


def compressor_parameters(model: ModelArchitecture, size: int, ratio: int, series: int) -> int:
    """Return those of projections and gates, biases of places in a block, and the norm.

    Args:
        size: Of a compressed vector.
        ratio: Tokens of a block.
        series: Blocks that a token is projected for.
    """
    return PROJECTIONS * model.hidden_size * series * size + ratio * series * size + size


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return the compressor, and projections and grouped output around the attention."""
    ratio = sizes_of(model).heavy_ratio
    return (
        *compressor(model, tokens, model.head_dim, shard.value_bytes, series=1),
        *shared_key_attention.operators(
            model, shard, batch, tokens, core, -(-model.head_dim // ratio)
        ),
    )


def compressor(
    model: ModelArchitecture, tokens: int, size: int, value_bytes: int, series: int
) -> Operators:
    """Return the projections of what is compressed, and its weighted means."""
    width = PROJECTIONS * series * size
    return (
        Gemm("compressor", tokens, model.hidden_size, width, matrices=PROJECTIONS),
        Elementwise("compress", 2 * tokens * width * value_bytes, kernels=2),
    )


def core(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the attention to the window and to all compressed vectors."""
    window = shared_key_attention.core(model, tp, sequences, query_tokens, cached)
    seen = mean_seen(cached + query_tokens, query_tokens, cached) / sizes_of(model).heavy_ratio
    if seen < 1:
        return window
    name = "compressed attention"
    return (*window, seen_by_heads(name, model, tp, sequences, query_tokens, seen))


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes that are kept around the heads, and what is compressed with its gates."""
    sizes = sizes_of(model)
    seen = sizes.window + batch.sequence_tokens // sizes.heavy_ratio
    kept = shared_key_attention.kept_of(model, batch, seen, keeps_products=keeps_products)
    return kept + batch.tokens * PROJECTIONS * model.head_dim * batch.shard.value_bytes


def cached_values_per_token(model: ModelArchitecture, tp: int) -> int:
    """Return a token's share of its block's vector."""
    del tp
    return -(-model.head_dim // sizes_of(model).heavy_ratio)


def state_bytes(model: ModelArchitecture, tp: int, value_bytes: int) -> int:
    """Return the bytes of the window, and of the open block with its gates."""
    del tp
    sizes = sizes_of(model)
    values = (sizes.window + PROJECTIONS * sizes.heavy_ratio) * model.head_dim
    return values * value_bytes


def read_values(model: ModelArchitecture, tp: int, cached: int) -> int:
    """Return the values of a sequence's cache that a decode step reads: the window and all compressed vectors."""
    window = min(cached, sizes_of(model).window) * model.head_dim
    return window + cached * cached_values_per_token(model, tp)
