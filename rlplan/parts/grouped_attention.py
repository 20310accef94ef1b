"""Causal attention with grouped heads: queries in groups that share a key and a value (GQA, MHA, MQA).

Megatron-style tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053, section 3): QKV is split by columns,
the output matrix by rows. Context parallelism is one all-gather of keys and values, ring or not, or Ulysses' exchange of heads.
Where a window bounds what a query sees, work and cache are bounded by it; chunks (Llama 4) count as windows.
"""

from collections.abc import Callable

from rlplan.models import (
    FP32_BYTES,
    Attention,
    AttentionDetails,
    Batch,
    Collective,
    Elementwise,
    Gemm,
    KeptBatch,
    ModelArchitecture,
    Operator,
    Operators,
    Shard,
)

NO_DETAILS = AttentionDetails()
NORMS = 2  # of queries and of keys

# What attends between the projections: of a model, a tensor-parallel size, sequences, query and cached tokens.
Core = Callable[[ModelArchitecture, int, int, int, int], Operators]


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
    details = model.attention_details or NO_DETAILS
    count = model.hidden_size * (q_heads(model, tp) * value_dim(model) + projected(model, tp))
    if model.qkv_bias:
        count += q_size + kv_size + kv_heads(model, tp) * value_dim(model)
    if model.qk_norm:
        count += q_size + kv_size if details.wide_norm else 2 * model.head_dim
    if details.sinks:
        count += q_heads(model, tp)
    return count + (model.hidden_size if details.output_bias else 0)


def value_dim(model: ModelArchitecture) -> int:
    """Return the size of a head's values, which is that of its keys where nothing else is said."""
    details = model.attention_details or NO_DETAILS
    return details.value_dim or model.head_dim


def projected(model: ModelArchitecture, tp: int) -> int:
    """Return the width of what the first projection gives on one device: queries, keys, values, a gate."""
    details = model.attention_details or NO_DETAILS
    queries = (2 if details.output_gate else 1) * q_heads(model, tp) * model.head_dim
    gates = q_heads(model, tp) if details.head_gate else 0
    each = model.head_dim + (0 if model.keys_are_values else value_dim(model))
    return queries + gates + kv_heads(model, tp) * each


def core(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the attention of queries over themselves and over what is cached, as far as they see.

    An `Attention` has as many multiplications for keys as for values: its head size is the mean of both.
    """
    heads = (q_heads(model, tp), kv_heads(model, tp), (model.head_dim + value_dim(model)) // 2)
    pieces = 1
    if model.window is not None and cached + query_tokens > model.window:
        pieces, query_tokens, cached = windowed(model.window, query_tokens, cached)
    return (Attention("attention", pieces * sequences, query_tokens, cached, *heads),)


def operators(
    model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int, attends: Core = core
) -> Operators:
    """Return QKV, rotary embedding, attention and output, with the cache where there is one.

    Args:
        attends: What is between the projections.
    """
    q_size, kv_size = (heads(model, shard.tp) * model.head_dim for heads in (q_heads, kv_heads))
    both_sizes = cached_values_per_token(model, shard.tp)
    out_size = q_heads(model, shard.tp) * value_dim(model)
    turned_bytes = 2 * tokens * (q_size + kv_size) * shard.value_bytes  # read and written
    matrices = 2 if model.keys_are_values else 3
    found: list[Operator] = [
        Gemm("qkv", tokens, model.hidden_size, projected(model, shard.tp), matrices=matrices)
    ]
    if model.qk_norm:
        found.append(Elementwise("qk norm", turned_bytes, kernels=2))
        if (model.attention_details or NO_DETAILS).wide_norm and shard.tp > 1:
            # Ranks have parts of the width that a norm is over, and add up their sums of squares, one of queries and one of keys.
            sums_bytes = NORMS * tokens * FP32_BYTES
            found.append(Collective("norm statistics", "all_reduce", sums_bytes))
    found.append(Elementwise("rope", turned_bytes))
    if batch.cached_tokens:
        found.append(Elementwise("cache write", 2 * tokens * both_sizes * shard.value_bytes))
    found += seen_by_all(attends, model, shard, batch, tokens)
    found.append(Gemm("attention output", tokens, out_size, model.hidden_size))
    return tuple(found)


def seen_by_all(
    attends: Core, model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int
) -> Operators:
    """Return the attention of a rank's queries, with what context-parallel ranks exchange for it."""
    both_sizes = cached_values_per_token(model, shard.tp)
    if shard.cp > 1 and shard.context_exchange == "ulysses":
        # All-to-alls of queries, keys, values and output: each rank attends with its heads to all tokens.
        widths = q_heads(model, shard.tp) * (model.head_dim + value_dim(model)) + both_sizes
        exchange = Collective(
            "context exchange", "all_gather", tokens * widths * shard.value_bytes, "cp"
        )
        sizes = (batch.sequences, batch.sequence_tokens, batch.cached_tokens)
        return (exchange, *attends(model, shard.tp * shard.cp, *sizes))
    own = attends(model, shard.tp, batch.sequences, *queries_of_rank(shard, batch))
    if shard.cp == 1:
        return own
    kv_bytes = batch.tokens * both_sizes * shard.value_bytes
    return (Collective("context exchange", "all_gather", kv_bytes, "cp"), *own)


def queries_of_rank(shard: Shard, batch: Batch) -> tuple[int, int]:
    """Return a sequence's query tokens on a context-parallel rank, and the tokens that they see before them.

    They see on average half of the tokens of the other ranks.
    """
    query = -(-batch.sequence_tokens // shard.cp)
    return query, batch.cached_tokens + (batch.sequence_tokens - query) // 2


def windowed(window: int, query_tokens: int, cached: int) -> tuple[int, int, int]:
    """Return pieces, queries and cached tokens of an attention that sees as much as one with a window.

    A query sees itself, at most `window` - 1 tokens before it, and no more than there are. Pieces of at most a
    window's queries over as many cached tokens as give the mean that all queries see have as many pairs.
    """
    pairs = seen_pairs(window, query_tokens, cached)
    pieces = -(-query_tokens // window)
    queries = -(-query_tokens // pieces)
    return pieces, queries, max(0, round(pairs / query_tokens - (queries + 1) / 2))


def seen_pairs(limit_tokens: int, query_tokens: int, cached: int) -> float:
    """Return the pairs of a query and a token that it sees: itself and those before it, of at most so many."""
    free = min(query_tokens, max(0, limit_tokens - cached))  # queries that see all before them
    return free * cached + free * (free + 1) / 2 + (query_tokens - free) * limit_tokens


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes of queries, keys, values, output, and one fp32 statistic a query or the scores."""
    seen = min(batch.sequence_tokens, model.window or batch.sequence_tokens)
    return kept_of(model, batch, seen, keeps_products=keeps_products)


def kept_of(
    model: ModelArchitecture, batch: KeptBatch, seen_tokens: int, *, keeps_products: bool
) -> int:
    """Return the bytes that are kept where a query sees at most so many tokens.

    A norm of queries and keys that is not fused keeps its input in fp32, and what it is divided to in the format of its
    input: a product's, in autocast too.
    """
    shard, own = batch.shard, q_heads(model, batch.shard.tp)
    heads = own + kv_heads(model, shard.tp)  # queries and keys, outputs and values
    both_dims = model.head_dim + value_dim(model)
    kept = batch.spread_tokens * heads * both_dims * shard.value_bytes
    if model.qk_norm and batch.kernels != "fused":
        kept += batch.tokens * heads * model.head_dim * (FP32_BYTES + shard.value_bytes)
    return kept + score_bytes(batch, own, seen_tokens, keeps_products=keeps_products)


def score_bytes(batch: KeptBatch, heads: int, seen_tokens: int, *, keeps_products: bool) -> int:
    """Return the bytes that all queries keep: one fp32 statistic of a fused kernel a head, or their scores."""
    if batch.fused_attention:
        return batch.spread_tokens * heads * FP32_BYTES
    each = seen_tokens * batch.shard.value_bytes if keeps_products else 0
    return batch.spread_tokens * heads * each


def cached_values_per_token(model: ModelArchitecture, tp: int) -> int:
    """Return the key and the value of every KV head."""
    return kv_heads(model, tp) * (model.head_dim + value_dim(model))
