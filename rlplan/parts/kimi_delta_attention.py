"""Kimi delta attention: linear attention that forgets each number of a key by itself (Kimi Linear, arXiv:2510.26692, section 3).

Projections of queries, keys and values, each behind a short causal convolution; how much is forgotten, made through a
narrow matrix; how much is written, a number a head; the scan, a norm with an output gate, the output matrix. Keys have as
many heads as values; heads are split over tensor-parallel ranks. A sequence leaves its states, however long it is, and nothing for its tokens.
"""

from rlplan.models import (
    FP32_BYTES,
    Batch,
    Elementwise,
    Gemm,
    KeptBatch,
    ModelArchitecture,
    Operators,
    Shard,
)
from rlplan.parts import linear_attention
from rlplan.parts.linear_attention import sizes_of, widths

core = linear_attention.core
cached_values_per_token = linear_attention.cached_values_per_token
state_bytes = linear_attention.state_bytes


def _gate_parameters(model: ModelArchitecture, tp: int) -> int:
    """Return those of the output gate: one matrix, or two through a head's width."""
    sizes, values = sizes_of(model), widths(model, tp)[1]
    if sizes.full_gate:
        return model.hidden_size * values
    return sizes.value_dim * (model.hidden_size + values)


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters of projections, convolutions, gates, norm and output on one device."""
    del ep
    sizes, (keys, values, heads) = sizes_of(model), widths(model, tp)
    projected = model.hidden_size * (2 * keys + values + heads)
    forgotten = keys + heads  # biases and rates
    if sizes.full_forget:
        forgotten += model.hidden_size * keys
    else:
        forgotten += sizes.key_dim * (model.hidden_size + keys)
    small = sizes.kernel * (2 * keys + values) + sizes.value_dim
    out = values * model.hidden_size
    return projected + forgotten + small + _gate_parameters(model, tp) + out


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return projections, convolutions, gates, scan, gated norm and output.

    Context-parallel ranks hand small states on; that exchange is left out.
    """
    sizes, (keys, values, heads) = sizes_of(model), widths(model, shard.tp)
    convolved, value_bytes = 2 * keys + values, shard.value_bytes
    query = -(-batch.sequence_tokens // shard.cp)
    into = convolved + heads + (keys if sizes.full_forget else sizes.key_dim)
    into += values if sizes.full_gate else sizes.value_dim
    gates: Operators = ()
    if not sizes.full_forget:
        gates += (Gemm("forget gate", tokens, sizes.key_dim, keys),)
    if not sizes.full_gate:
        gates += (Gemm("output gate", tokens, sizes.value_dim, values),)
    return (
        Gemm("linear attention in", tokens, model.hidden_size, into, matrices=6),
        Elementwise("convolution", 2 * tokens * convolved * value_bytes, kernels=3),
        *gates,
        *core(model, shard.tp, batch.sequences, query, batch.cached_tokens),
        Elementwise("gated norm", 3 * tokens * values * value_bytes),
        Gemm("attention output", tokens, values, model.hidden_size),
    )


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes of what was projected, convolved, forgotten and put out; chunks' states are made again."""
    keys, values, heads = widths(model, batch.shard.tp)
    convolved = 2 * keys + values
    # Projections, both gates, the scan's output; how much is forgotten is kept in fp32.
    width = convolved + heads + values + values + (convolved if keeps_products else 0)
    return batch.tokens * (width * batch.shard.value_bytes + keys * FP32_BYTES)
