"""What an engine's own kernels take where they differ from those that the device's facts are of."""

from profiles.facts import DeviceFacts
from rlplan.estimate import Estimate
from rlplan.hardware import KernelRates
from rlplan.operators import Attention, Operators
from rlplan.precision import Precision

# Dropout's and softmax's passes per score in each direction, in bytes of 16-bit values and 8-bit
# masks: forward reads and writes the softmax's row, reads and writes the dropout's and its mask (9);
# backward reads and writes the dropout's gradient and mask, and reads two and writes one for the
# softmax (11).
BACKWARD_SCORE_SHARE = 11 / 9

# Score matrices of one block of Megatron's fused softmax kernel for rows of more than 128 values
# (megatron/fused_kernels, get_batch_per_block): it takes whole blocks only.
SOFTMAX_MATRICES = 4


def fused_attention_seconds(
    device: DeviceFacts,
    rates: KernelRates,
    operator: Attention,
    precision: Precision,
    backward: bool,
) -> Estimate:
    """Return the seconds of an attention kernel that never writes its scores."""
    seconds = device.attention(
        batch=operator.batch,
        query_tokens=operator.query_tokens,
        cached_tokens=operator.cached_tokens,
        q_heads=operator.q_heads,
        kv_heads=operator.kv_heads,
        head_dim=operator.head_dim,
        precision=precision,
        backward=backward,
        fused=True,
    )
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


def fallback_launch_seconds(rates: KernelRates, operators: Operators) -> float:
    """Return the host's seconds for a softmax that is not fused."""
    seconds = 0.0
    for operator in operators:
        if isinstance(operator, Attention):
            matrices = operator.batch * operator.q_heads
            seconds += rates.softmax_fallback_seconds if matrices % SOFTMAX_MATRICES else 0.0
    return seconds
