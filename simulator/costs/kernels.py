"""What an engine's own kernels take where they differ from those that the device's facts are of."""

from profiles.facts import DeviceFacts
from rlplan.estimate import Estimate
from rlplan.models.operators import FP32_BYTES, Attention, Operators, Scan
from rlplan.models.precision import Precision
from rlplan.sheets.hardware import KernelRates
from simulator.model.derived import kernels_of

# Dropout's and softmax's passes per score in each direction, in bytes of 16-bit values and 8-bit
# masks: forward reads and writes the softmax's row, reads and writes the dropout's and its mask (9);
# backward reads and writes the dropout's gradient and mask, and reads two and writes one for the
# softmax (11).
BACKWARD_SCORE_SHARE = 11 / 9

# Score matrices of one block of Megatron's fused softmax kernel for rows of more than 128 values
# (megatron/fused_kernels, get_batch_per_block): it takes whole blocks only.
SOFTMAX_MATRICES = 4

# Tokens that scans take at a time: what kernels of gated delta networks (flash-linear-attention) are built for.
SCAN_CHUNK_TOKENS = 64


def fused_attention_seconds(
    device: DeviceFacts,
    rates: KernelRates,
    operator: Attention,
    precision: Precision,
    backward: bool,
) -> Estimate:
    """Return the seconds of an attention kernel that never writes its scores."""
    seconds = device.attention(operator, precision, backward=backward)
    rate = rates.attention_backward_rate if backward else rates.attention_rate
    return seconds if rate == 1 else seconds * (1 / rate)


def unfused_attention_seconds(
    device: DeviceFacts,
    rates: KernelRates,
    operator: Attention,
    precision: Precision,
    backward: bool,
) -> Estimate:
    """Return the seconds of an attention made of batched products, softmax, mask and dropout.

    A batched product is priced as one tall product: its many heads' rows follow one another. The
    forward pass has two, of queries with keys and of probabilities with values; the backward pass
    has two for each of them. The masked half is computed too.
    """
    rows = operator.batch * operator.q_heads * operator.query_tokens
    seen, size = operator.cached_tokens + operator.query_tokens, operator.head_dim
    products = device.gemm(rows, size, seen, precision) + device.gemm(rows, seen, size, precision)
    num_bytes = rates.score_bytes * rows * seen
    if backward:
        return products * 2 + device.memory_bound(num_bytes * BACKWARD_SCORE_SHARE, kernels=3)
    return products + device.memory_bound(num_bytes, kernels=2)


def launch_seconds(
    rates: KernelRates, whole_seconds: float, forward: Operators, operators: Operators
) -> float:
    """Return the host's seconds to launch a layer's pass in one direction.

    Args:
        whole_seconds: Of its forward pass.
        operators: Of this direction. A softmax that is not fused takes its own time.
    """
    seconds = whole_seconds * kernels_of(operators) / kernels_of(forward)
    for operator in operators:
        if isinstance(operator, Attention):
            matrices = operator.batch * operator.q_heads
            seconds += rates.softmax_fallback_seconds if matrices % SOFTMAX_MATRICES else 0.0
    return seconds


def scan_seconds(
    device: DeviceFacts, operator: Scan, precision: Precision, backward: bool
) -> Estimate:
    """Return the seconds of a scan: a step reads and writes its states, a pass goes chunk by chunk.

    Within a chunk the pass is a small attention, and chunks hand states on (Dao and Gu 2024, arXiv:2405.21060,
    section 6): products of queries with keys, of these with values, of states with queries, and of keys with values.
    The delta rule needs keys with keys, and what solves for them with keys and values (Yang et al. 2024,
    arXiv:2412.06464, section 3.3). The backward pass has two products for each, and reads and writes the states again.
    """
    keys, values, chunk = operator.key_dim, operator.value_dim, SCAN_CHUNK_TOKENS
    heads = operator.sequences * operator.heads
    state_bytes = 2 * heads * keys * values * FP32_BYTES
    if operator.query_tokens == 1:
        return device.memory_bound(state_bytes)
    chunk = min(chunk, operator.query_tokens)
    rows = heads * operator.query_tokens
    products = device.gemm(rows, keys, chunk, precision) + device.gemm(
        rows, chunk, values, precision
    )
    products = products + device.gemm(rows, keys, values, precision) * 2
    if operator.delta:
        products = products + device.gemm(rows, keys, chunk, precision)
        products = products + device.gemm(rows, chunk, keys + values, precision)
    chunks = -(-operator.query_tokens // chunk)
    moved = device.memory_bound(chunks * state_bytes)
    return (products + moved) * 2 if backward else products + moved
