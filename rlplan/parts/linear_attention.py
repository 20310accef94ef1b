"""A gated delta network: linear attention with one state for each value head (Yang et al. 2024, arXiv:2412.06464).

As Qwen3-Next and Qwen3.5 have it: projections of queries, keys, values, an output gate and two numbers a head, a
short causal convolution of the first three, the scan, a norm, the output matrix. A sequence leaves its states, however
long it is, and nothing for its tokens.

Heads are split over tensor-parallel ranks, unless a trainer's layers do not know of them (`computed`): slime's gather all
tokens on every tensor- and context-parallel rank, compute all heads there, and keep each rank's part of what comes out
(slime@624b824a8, slime_plugins/models/hf_attention.py); in miles context-parallel ranks compute their own tokens and hand
states on (miles@31f1ca961, miles_plugins/models/hf_attention.py and cp_utils.py).
"""

from dataclasses import replace

from rlplan.models import (
    FP32_BYTES,
    Batch,
    Collective,
    Elementwise,
    Gemm,
    KeptBatch,
    LinearAttention,
    LinearShare,
    ModelArchitecture,
    Operators,
    Scan,
    Shard,
)

GATES = 2  # numbers of a token and a value head: how much is forgotten, how much is written
ORDER_PASSES = 4  # reading and writing once for the heads' order, once for the tokens'
HEAD_PARAMETERS = 2  # of a value head: the decay's rate and its bias


def sizes_of(model: ModelArchitecture) -> LinearAttention:
    """Return the sizes of its heads."""
    assert model.linear is not None, f"{model.name} names no sizes of linear attention"
    return model.linear


def sharing(model: ModelArchitecture, computed: LinearShare) -> ModelArchitecture:
    """Return a model whose ranks compute so much of its linear attention; without any it is as it was."""
    if model.linear is None or model.linear.computed == computed:
        return model
    return replace(model, linear=replace(model.linear, computed=computed))


def widths(model: ModelArchitecture, tp: int) -> tuple[int, int, int]:
    """Return the widths of all keys and of all values, and the number of value heads, on one device."""
    sizes = sizes_of(model)
    tp = tp if sizes.computed == "heads" else 1
    heads = -(-sizes.value_heads // tp)
    keys = -(-sizes.key_heads // tp) * sizes.key_dim
    return keys, heads * sizes.value_dim, heads


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters of projections, convolution, gates, norm and output on one device."""
    del ep
    sizes, (keys, values, heads) = sizes_of(model), widths(model, tp)
    projected = 2 * keys + 2 * values + GATES * heads
    convolved = sizes.kernel * (2 * keys + values)
    small = HEAD_PARAMETERS * heads + sizes.value_dim
    return model.hidden_size * (projected + values) + convolved + small


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return projections, convolution, scan, gated norm and output.

    Context-parallel ranks exchange what was projected by all-to-all, take the states of some heads past whole sequences, and
    exchange what comes out (Megatron-Core, ssm/gated_delta_net: tensor_a2a_cp2hp and tensor_a2a_hp2cp).
    Where ranks share no heads, what they exchange is hidden states: to the order in which states are handed on, and
    back; or from each rank to all.
    """
    computed = sizes_of(model).computed
    keys, values, heads = widths(model, shard.tp)
    convolved, value_bytes = 2 * keys + values, shard.value_bytes
    projected = convolved + values + GATES * heads
    if computed == "all":
        tokens *= shard.cp
    exchanged = {
        "heads": tokens * (projected + values),
        "tokens": 2 * tokens * model.hidden_size,
        "all": tokens * model.hidden_size,
    }[computed]
    ranks = {"heads": shard.tp * shard.cp, "tokens": shard.cp, "all": 1}[computed]
    exchange = _context_exchange(exchanged * value_bytes if shard.cp > 1 else 0)
    projection = Gemm("linear attention in", tokens, model.hidden_size, projected, matrices=2)
    return (
        *((projection, *exchange) if computed == "heads" else (*exchange, projection)),
        Elementwise("convolution", 2 * tokens * convolved * value_bytes),
        *_scan(model, ranks, batch.sequences, batch.sequence_tokens),
        Elementwise("gated norm", 3 * tokens * values * value_bytes),
        Gemm("attention output", tokens, values, model.hidden_size),
    )


def _context_exchange(num_bytes: float) -> Operators:
    """Return what brings heads of whole sequences to context-parallel ranks, and tokens of all heads back.

    Beside the exchange itself, heads are put together by rank, and the balanced order of the tokens is undone and made again.

    Args:
        num_bytes: Of what a rank's tokens have projected, and of what comes out.
    """
    if not num_bytes:
        return ()
    return (
        Elementwise("context order", ORDER_PASSES * num_bytes, kernels=4),
        Collective("context exchange", "all_gather", num_bytes, "cp"),
    )


def core(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the scan of the states past new tokens; what is cached is in them."""
    del cached
    return _scan(model, tp if sizes_of(model).computed == "heads" else 1, sequences, query_tokens)


def _scan(model: ModelArchitecture, ranks: int, sequences: int, query_tokens: int) -> Operators:
    """Return the scan of the heads that one of so many ranks has; ranks that share tokens are taken to share heads."""
    sizes = sizes_of(model)
    heads = -(-sizes.value_heads // ranks)
    return (
        Scan("scan", sequences, query_tokens, heads, sizes.key_dim, sizes.value_dim, delta=True),
    )


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes of what was projected, convolved and put out; chunks' states are made again."""
    keys, values, heads = widths(model, batch.shard.tp)
    convolved = 2 * keys + values
    width = convolved + values + GATES * heads + values  # projections and the scan's output
    kept = width + (convolved if keeps_products else 0)
    tokens = batch.tokens * (batch.shard.cp if sizes_of(model).computed == "all" else 1)
    return tokens * kept * batch.shard.value_bytes


def cached_values_per_token(model: ModelArchitecture, tp: int) -> int:
    """Return that nothing is kept of a token by itself."""
    del model, tp
    return 0


def state_bytes(model: ModelArchitecture, tp: int, value_bytes: int) -> int:
    """Return the states in fp32 and the convolution's last tokens."""
    sizes, (keys, values, heads) = sizes_of(model), widths(model, tp)
    convolved = (sizes.kernel - 1) * (2 * keys + values)
    return heads * sizes.key_dim * sizes.value_dim * FP32_BYTES + convolved * value_bytes
