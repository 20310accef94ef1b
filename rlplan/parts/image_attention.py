"""Attention among patches of images: every patch sees all others of its image, or of its window, those behind it too.

A tower has no cache and answers no query alone: its layers are those of a text model but for what a query sees.
"""

from rlplan.models import Attention, Batch, ModelArchitecture, Operators, Shard
from rlplan.parts import grouped_attention

parameters = grouped_attention.parameters
cached_values_per_token = grouped_attention.cached_values_per_token
kept_bytes = grouped_attention.kept_bytes


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return QKV, rotary embedding, attention and output."""
    return grouped_attention.operators(model, shard, batch, tokens, core)


def core(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the attention of an image's patches among themselves; the model's window bounds what they see.

    An `Attention` is causal, and a query sees on average half of its own piece: as many patches as the other half has
    stand before it.
    """
    heads = grouped_attention.q_heads(model, tp)
    pieces = -(-query_tokens // (model.window or query_tokens))
    queries = -(-query_tokens // pieces)
    seen = cached + queries // 2
    each = (heads, heads, model.head_dim)
    return (Attention("attention", pieces * sequences, queries, seen, *each),)
