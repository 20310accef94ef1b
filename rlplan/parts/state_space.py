"""A Mamba-2 mixer: a state-space layer with one state for each head (Dao and Gu 2024, arXiv:2405.21060, section 7).

One projection gives gate, inputs, B, C and a step for each head; inputs, B and C are convolved; the scan, a gated norm
and the output matrix follow. Heads and groups are split over tensor-parallel ranks. A sequence leaves its states,
however long it is, and nothing for its tokens.
"""

from rlplan.models import (
    FP32_BYTES,
    Batch,
    Elementwise,
    Gemm,
    KeptBatch,
    ModelArchitecture,
    Operators,
    Scan,
    Shard,
    StateSpace,
)

HEAD_PARAMETERS = 3  # of a head: A, D and the step's bias


def sizes_of(model: ModelArchitecture) -> StateSpace:
    """Return the sizes of its states."""
    assert model.state_space is not None, f"{model.name} names no sizes of a state space"
    return model.state_space


def _widths(model: ModelArchitecture, tp: int) -> tuple[int, int, int]:
    """Return the widths of all heads and of what is convolved, and the heads, on one device."""
    sizes = sizes_of(model)
    heads = -(-sizes.heads // tp)
    inner = heads * sizes.head_dim
    return inner, inner + 2 * -(-sizes.groups // tp) * sizes.state_size, heads


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters of projection, convolution, states, norm and output on one device."""
    del ep
    sizes, (inner, convolved, heads) = sizes_of(model), _widths(model, tp)
    taps = sizes.kernel + (1 if sizes.kernel_bias else 0)
    count = model.hidden_size * (inner + convolved + heads) + taps * convolved
    return count + HEAD_PARAMETERS * heads + inner + inner * model.hidden_size


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return projection, convolution, scan, gated norm and output.

    Context-parallel ranks hand small states on; that exchange is left out.
    """
    inner, convolved, heads = _widths(model, shard.tp)
    query = -(-batch.sequence_tokens // shard.cp)
    return (
        Gemm("state space in", tokens, model.hidden_size, inner + convolved + heads),
        Elementwise("convolution", 2 * tokens * convolved * shard.value_bytes),
        *core(model, shard.tp, batch.sequences, query, batch.cached_tokens),
        Elementwise("gated norm", 3 * tokens * inner * shard.value_bytes),
        Gemm("state space out", tokens, inner, model.hidden_size),
    )


def core(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the scan of the states past new tokens; what is cached is in them."""
    del cached
    sizes, heads = sizes_of(model), _widths(model, tp)[2]
    return (Scan("scan", sequences, query_tokens, heads, sizes.state_size, sizes.head_dim),)


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes of what was projected, convolved and put out; chunks' states are made again."""
    inner, convolved, heads = _widths(model, batch.shard.tp)
    width = inner + convolved + heads + inner  # projection and the scan's output
    kept = width + (convolved if keeps_products else 0)
    return batch.tokens * kept * batch.shard.value_bytes


def cached_values_per_token(model: ModelArchitecture, tp: int) -> int:
    """Return that nothing is kept of a token by itself."""
    del model, tp
    return 0


def state_bytes(model: ModelArchitecture, tp: int, value_bytes: int) -> int:
    """Return the states in fp32 and the convolution's last tokens."""
    sizes, (inner, convolved, _) = sizes_of(model), _widths(model, tp)
    return inner * sizes.state_size * FP32_BYTES + (sizes.kernel - 1) * convolved * value_bytes
