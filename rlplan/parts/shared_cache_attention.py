"""Grouped attention to the keys and values of a layer before it (Gemma 3n and 4: `num_kv_shared_layers`).

Its queries are its own; it projects and keeps no keys and values, and reads those of the last layer of its own kind
that has some.
"""

from rlplan.models import (
    Batch,
    Elementwise,
    Gemm,
    KeptBatch,
    ModelArchitecture,
    Operator,
    Operators,
    Shard,
)
from rlplan.parts import grouped_attention
from rlplan.parts.grouped_attention import q_heads, score_bytes, seen_by_all, value_dim

core = grouped_attention.core


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters on one device: queries, their norm, output."""
    del ep
    queries, outputs = _widths(model, tp)
    norm = model.head_dim if model.qk_norm else 0
    return model.hidden_size * (queries + outputs) + norm


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return queries, rotary embedding, attention and output."""
    queries, outputs = _widths(model, shard.tp)
    turned_bytes = 2 * tokens * queries * shard.value_bytes
    found: list[Operator] = [Gemm("queries", tokens, model.hidden_size, queries)]
    if model.qk_norm:
        found.append(Elementwise("qk norm", turned_bytes))
    found.append(Elementwise("rope", turned_bytes))
    found += seen_by_all(core, model, shard, batch, tokens)
    found.append(Gemm("attention output", tokens, outputs, model.hidden_size))
    return tuple(found)


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes of queries and output, and of a statistic or the scores; keys and values are kept elsewhere."""
    own, seen = q_heads(model, batch.shard.tp), batch.sequence_tokens
    kept = batch.spread_tokens * sum(_widths(model, batch.shard.tp)) * batch.shard.value_bytes
    seen = min(seen, model.window or seen)
    return kept + score_bytes(batch, own, seen, keeps_products=keeps_products)


def cached_values_per_token(model: ModelArchitecture, tp: int) -> int:
    """Return that the cache holds nothing of a token for it."""
    del model, tp
    return 0


def read_values(model: ModelArchitecture, tp: int, cached: int) -> int:
    """Return the values of another layer's cache that a decode step reads."""
    seen = cached if model.window is None else min(cached, model.window)
    return seen * grouped_attention.cached_values_per_token(model, tp)


def _widths(model: ModelArchitecture, tp: int) -> tuple[int, int]:
    """Return the widths of queries and outputs on one device."""
    return q_heads(model, tp) * model.head_dim, q_heads(model, tp) * value_dim(model)
