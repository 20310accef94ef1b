"""Attention whose heads share one vector of a token as key and value (DeepSeek-V4, its report, section 2.3).

Queries come out of a compressed vector, heads are merged in groups before they are projected to the hidden size, and
each head has a sink. A query sees the tokens of a window; parts built on this one add compressed tokens before it
(`compressed_attention`, `compressed_sparse_attention`). What is made for heads is split over tensor-parallel ranks,
the shared vector is on every rank whole.
"""

from rlplan.models import (
    Attention,
    Batch,
    Collective,
    CompressedAttention,
    Elementwise,
    Gemm,
    KeptBatch,
    ModelArchitecture,
    Operator,
    Operators,
    Shard,
)
from rlplan.parts.grouped_attention import Core, q_heads, queries_of_rank, score_bytes, seen_pairs


def sizes_of(model: ModelArchitecture) -> CompressedAttention:
    """Return the sizes of its projections and of what is compressed."""
    assert model.compressed is not None, f"{model.name} names no sizes of compressed attention"
    return model.compressed


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters on one device: queries, the shared vector, norms, sinks, grouped output."""
    del ep
    sizes, width = sizes_of(model), _width(model, tp)
    queries = sizes.query_rank * (model.hidden_size + 1 + width)
    shared = (model.hidden_size + 1) * model.head_dim
    return queries + shared + q_heads(model, tp) + _output_parameters(model, tp)


def _output_parameters(model: ModelArchitecture, tp: int) -> int:
    return sizes_of(model).output_rank * _width(model, tp) + _merged(model, tp) * model.hidden_size


def _width(model: ModelArchitecture, tp: int) -> int:
    """Return the width of all heads on one device."""
    return q_heads(model, tp) * model.head_dim


def _merged(model: ModelArchitecture, tp: int) -> int:
    """Return the width of merged groups of heads on one device; ranks beyond their number share one."""
    return max(1, sizes_of(model).output_groups // tp) * sizes_of(model).output_rank


def core(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the attention to the tokens of the window."""
    seen = mean_seen(sizes_of(model).window, query_tokens, cached)
    return (seen_by_heads("window attention", model, tp, sequences, query_tokens, seen),)


def operators(
    model: ModelArchitecture,
    shard: Shard,
    batch: Batch,
    tokens: int,
    attends: Core = core,
    kept_values: int = 0,
) -> Operators:
    """Return projections, rotary embedding, attention to the window and grouped output.

    Args:
        attends: What is between the projections.
        kept_values: That a token leaves for all later ones on average, which context-parallel ranks exchange; the
            window's, which are few, are left out.
    """
    sizes, width = sizes_of(model), _width(model, shard.tp)
    down, row = sizes.query_rank + model.head_dim, tokens * shard.value_bytes
    groups = max(1, sizes.output_groups // shard.tp)
    found: list[Operator] = [
        Gemm("latent down", tokens, model.hidden_size, down, matrices=2),
        Elementwise("latent norms", 2 * row * down, kernels=2),
        Gemm("queries up", tokens, sizes.query_rank, width),
        Elementwise("query norm and rope", 4 * row * width, kernels=2),
    ]
    if batch.cached_tokens:
        found.append(Elementwise("cache write", 2 * row * model.head_dim))
    if shard.cp > 1 and kept_values:
        num_bytes = batch.tokens * kept_values * shard.value_bytes
        found.append(Collective("context exchange", "all_gather", num_bytes, "cp"))
    found += attends(model, shard.tp, batch.sequences, *queries_of_rank(shard, batch))
    found += (
        Elementwise("output rope", 2 * row * width),
        Gemm("groups down", tokens, width // groups, sizes.output_rank, count=groups),
        Gemm("attention output", tokens, groups * sizes.output_rank, model.hidden_size),
    )
    return tuple(found)


def mean_seen(limit_tokens: int, query_tokens: int, cached: int) -> float:
    """Return how many tokens a query sees on average, itself and those before it, of at most so many."""
    return seen_pairs(limit_tokens, query_tokens, cached) / query_tokens


def seen_by_heads(
    name: str,
    model: ModelArchitecture,
    tp: int,
    sequences: int,
    query_tokens: int,
    seen: float,
) -> Attention:
    """Return the attention of all heads to so many shared vectors a query.

    A vector is read once, as key and as value: one KV head of half its size, and twice as many query heads.
    """
    heads = (2 * q_heads(model, tp), 1, max(1, model.head_dim // 2))
    return spread(name, sequences, query_tokens, seen, heads)


def spread(
    name: str, sequences: int, query_tokens: int, seen: float, heads: tuple[int, int, int]
) -> Attention:
    """Return a causal attention with as many query-key pairs as if each query saw `seen` tokens.

    Args:
        heads: Query heads, KV heads and their size.
    """
    longest = max(1, int(2 * seen) - 1)  # queries that see no more than that among themselves
    pieces = -(-query_tokens // longest)
    queries = -(-query_tokens // pieces)
    before = max(0, round(seen - (queries + 1) / 2))
    return Attention(name, pieces * sequences, queries, before, *heads)


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes of compressed queries, the shared vector, queries, output, and a statistic or the scores."""
    return kept_of(model, batch, sizes_of(model).window, keeps_products=keeps_products)


def kept_of(
    model: ModelArchitecture, batch: KeptBatch, seen_tokens: int, *, keeps_products: bool
) -> int:
    """Return the bytes that are kept where a query sees at most so many vectors."""
    tp, value_bytes = batch.shard.tp, batch.shard.value_bytes
    down = batch.tokens * (sizes_of(model).query_rank + model.head_dim + _merged(model, tp))
    kept = (down + 2 * batch.spread_tokens * _width(model, tp)) * value_bytes
    seen = min(batch.sequence_tokens, seen_tokens)
    return kept + score_bytes(batch, q_heads(model, tp), seen, keeps_products=keeps_products)


def cached_values_per_token(model: ModelArchitecture, tp: int) -> int:
    """Return the shared vector, which is key and value."""
    del tp
    return model.head_dim
