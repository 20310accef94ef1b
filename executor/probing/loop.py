"""A fixed loop that tells how fast a device is at the time: the same products in profiles and in runs.

A machine takes longer when its clocks fall or others share it. What the loop shows of that, between a
profile and a run, is no error of a forecast.
"""

import time
from statistics import median

import torch

# Rows of the square matrices: in a core's cache; on a GPU large enough to fill it, and small beside models.
SIZES = {"cpu": 256, "cuda": 2048}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
# A block is longer than a scheduler's time slice, so that what others take of a device shows in it.
BLOCK_SECONDS = 0.01
BLOCKS = 10
FLOPS_OF_A_PRODUCT = 2


def loop_flops_per_second(device: torch.device) -> float:
    """Return the floating-point operations a second of products of fixed matrices: the median of ten blocks."""
    size = SIZES[device.type]
    matrix = torch.ones(size, size, dtype=DTYPES[device.type], device=device)
    out = torch.empty_like(matrix)
    rates = [_block_rate(matrix, out) for _ in range(1 + BLOCKS)]
    return FLOPS_OF_A_PRODUCT * size**3 * median(rates[1:])  # the first one warms up


def _block_rate(matrix: torch.Tensor, out: torch.Tensor) -> float:
    """Return products a second over a block."""
    count, begin = 0, time.perf_counter()
    while (seconds := time.perf_counter() - begin) < BLOCK_SECONDS:
        torch.mm(matrix, matrix, out=out)
        if matrix.is_cuda:
            torch.cuda.synchronize()
        count += 1
    return count / seconds
