"""Price scans: layers whose tokens go into a state of each head, and not into a cache."""

from typing import Final

from rlplan.estimate import Estimate, Source
from rlplan.models import FP32_BYTES, Precision, Scan
from rlplan.profiles.facts import DeviceFacts

# Tokens that scans take at a time: what kernels of gated delta networks (flash-linear-attention) are built for.
CHUNK_TOKENS: Final = 64

# Of the delta rule by flash-linear-attention 0.5.1 on an H200, heads of 128 (github.com/QwenLM/FlashQLA@6e5d2ea1,
# benchmark/benchmark_results_H200.txt). Chunks of a sequence hand their states on one after the other: a line through 8 to 64
# heads of one sequence of 32,768 tokens meets no heads at 0.47 ms, 512 chunks. Backward the states are made again and their
# gradients handed back: 5.70 ms of 32 heads, which hide the chain, 3.7 times their products forward; 3.70 of 16, with twice the chain.
CHAIN_SECONDS: Final = 9.2e-7
CHAIN_SPREAD: Final = 0.5
DELTA_BACKWARD: Final = 3.7


def scan_seconds(
    device: DeviceFacts, operator: Scan, precision: Precision, backward: bool
) -> Estimate:
    """Return the seconds of a scan: a step reads and writes its states, a pass goes chunk by chunk.

    Within a chunk the pass is a small attention, and chunks hand states on (Dao and Gu 2024, arXiv:2405.21060,
    section 6): products of queries with keys, of these with values, of states with queries, and of keys with values.
    The delta rule needs keys with keys, and what solves for them with keys and values (Yang et al. 2024,
    arXiv:2412.06464, section 3.3), and waits from chunk to chunk. The backward pass has two products for each, and
    reads and writes the states again; of the delta rule it makes all of a chunk again first.
    """
    keys, values, chunk = operator.key_dim, operator.value_dim, CHUNK_TOKENS
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
    whole = products + device.memory_bound(chunks * state_bytes)
    if not operator.delta or device.sheet.kind == "cpu":
        return whole * 2 if backward else whole
    waiting = chunks * CHAIN_SECONDS
    chain = Estimate(waiting, waiting * CHAIN_SPREAD, Source.FITTED)
    return whole * DELTA_BACKWARD + chain * 2 if backward else whole + chain
