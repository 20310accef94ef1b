"""What a teacher's likeliest tokens take: picking them of its logits, and comparing the student's with them.

Picking: torch.topk of a vocabulary selects by radix over several blocks of threads (ATen/native/cuda/TensorTopK.cu:
`should_use_multiblock`, `RADIX_BITS` of 8), so values in fp32 are read once for each of their 32 / 8 digits, and once more
when what is above the k-th one is gathered. Ranks that share the vocabulary pick of their parts, and pick again of what
all of them picked (Megatron and DTensor in NeMo-RL: distributed/model_utils.py, distributed_vocab_topk).

Comparing: the loss reads k of the student's log-probabilities for each token, which lie anywhere in a row of the
vocabulary, and its backward pass reads them and adds to their gradients: each is a memory transaction of 32 bytes (CUDA C++
Best Practices Guide, coalesced access to global memory). The softmax beside it is the head's, as without a teacher.

Whole distributions are compared on the GPUs that hold both models' logits. The engine's sheet says how many bytes
that holds and moves for each logit (`rlplan.sheets.LogitTensors`).
"""

from typing import Final

from rlplan.dataflow import BYTES_PER_TOKEN, DISTRIBUTIONS, TOP_LOG_PROBS
from rlplan.simulator.placed import PlacedTask

FP32_BYTES: Final = 4
RADIX_READS: Final = 32 // 8
# Bytes of one of the picked tokens: its value in fp32, its index in int64.
PICKED_BYTES: Final = BYTES_PER_TOKEN[TOP_LOG_PROBS]
SECTOR_BYTES: Final = 32
# Tensors of (tokens, k) in fp32 that the loss holds beside the teacher's: the student's log-probabilities, both
# probabilities, and their product.
LOSS_TENSORS: Final = 4


def picked_bytes(tokens: float, width: int, top_tokens: int) -> float:
    """Return the bytes that picking the likeliest tokens moves on one GPU.

    Args:
        tokens: Positions.
        width: Entries of the vocabulary on the GPU.
        top_tokens: Picked of each position.
    """
    reads = (RADIX_READS + 1) * FP32_BYTES
    return tokens * (width * reads + top_tokens * PICKED_BYTES)


def compared_bytes(tokens: float, top_tokens: int) -> tuple[float, float]:
    """Return the bytes that the loss of likeliest tokens moves on one GPU, forwards and backwards."""
    each = tokens * top_tokens
    forward = each * (SECTOR_BYTES + PICKED_BYTES + LOSS_TENSORS * FP32_BYTES)
    return forward, each * (2 * SECTOR_BYTES + LOSS_TENSORS * FP32_BYTES)


def taught_bytes(placed: PlacedTask, tokens: float) -> tuple[float, float]:
    """Return the bytes that what a teacher tells moves beside the head, forwards and backwards, on one GPU.

    Args:
        tokens: Positions of a micro-batch on the GPU.

    Raises:
        MissingFactError: Whole distributions are compared, and the engine's sheet has no such way.
    """
    if DISTRIBUTIONS in placed.task.inputs:
        way, logits = placed.logit_tensors, tokens * placed.model.vocab_size
        assert way is not None, "one that compares has a way"
        return logits * way.forward_bytes, logits * way.backward_bytes
    top, task = placed.job.top_tokens, placed.task
    if top and TOP_LOG_PROBS in task.outputs:
        width = -(-placed.model.vocab_size // placed.layout.tp)
        return picked_bytes(tokens, width, min(top, width)), 0.0
    if top and TOP_LOG_PROBS in task.inputs:
        return compared_bytes(tokens, top)
    return 0.0, 0.0


def candidate_bytes(placed: PlacedTask, tokens: float) -> float:
    """Return the bytes that ranks which share a teacher's vocabulary gather of what each of them picked."""
    if TOP_LOG_PROBS not in placed.task.outputs or placed.layout.tp == 1:
        return 0.0
    return tokens * placed.job.top_tokens * PICKED_BYTES * placed.layout.tp


def loss_tensors_bytes(placed: PlacedTask, tokens: int) -> int:
    """Return the bytes that the loss of likeliest tokens holds of a micro-batch, beside the logits."""
    if TOP_LOG_PROBS not in placed.task.inputs:
        return 0
    return tokens * placed.job.top_tokens * (PICKED_BYTES + LOSS_TENSORS * FP32_BYTES)
