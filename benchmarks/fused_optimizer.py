"""Measure on a CPU what AdamW in one fused kernel takes beside AdamW operation by operation, and whether its numbers differ.

    python benchmarks/fused_optimizer.py [--repeats 15]

Flat weights as the executor steps them, on one thread, as its workers have. Both ways take each step one right
after the other, so that what else the machine does falls on both; printed is the median of the ratios.
"""

import argparse
import time
from statistics import median

import torch

SIZES = (2**14, 2**17, 2**20, 2**23, 2**25)
RATE = 1e-3


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    for size in SIZES:
        plain, fused = (optimizer_of(size, fused=each) for each in (False, True))
        ratios, seconds = [], []
        for step in range(repeats + 1):  # the first one warms up
            gradient = torch.randn(size, generator=torch.Generator().manual_seed(step))
            apart = seconds_of(plain, gradient)
            together = seconds_of(fused, gradient)
            if step:
                ratios.append(together / apart)
                seconds.append(apart)
        one, other = (each.param_groups[0]["params"][0].detach() for each in (plain, fused))
        distance = float((one - other).abs().max())
        equal = float((one == other).float().mean())
        print(
            f"{size:>10,} weights: {1e3 * median(seconds):8.3f} ms operation by operation, fused"
            f" {median(ratios):.2f} of it ({min(ratios):.2f} to {max(ratios):.2f}); after {repeats + 1}"
            f" steps of {RATE:g} {equal:.1%} are equal, the others within {distance:.1e}"
        )


def optimizer_of(size: int, *, fused: bool) -> torch.optim.AdamW:
    """Return AdamW of so many weights, the same ones each time."""
    weights = torch.randn(size, generator=torch.Generator().manual_seed(size))
    made = torch.nn.Parameter(weights)
    return torch.optim.AdamW([made], lr=RATE, weight_decay=0.0, foreach=False, fused=fused)


def seconds_of(adam: torch.optim.AdamW, gradient: torch.Tensor) -> float:
    """Return the seconds of a step."""
    (weights,) = adam.param_groups[0]["params"]
    weights.grad = gradient.clone()
    begin = time.perf_counter()
    adam.step()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
