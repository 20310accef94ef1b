"""Fit how fast engines' attention reads a KV cache in 8 bits to tables of aiconfigurator (NVIDIA, Apache-2.0).

    python benchmarks/fit_narrow_cache.py PATH_TO_DATA

PATH_TO_DATA is `systems/data` of its package `aiconfigurator_core` (0.12). An attention over 8 bits takes half of what one
over 16 bits takes, or what its kernels take to read as many bytes, whichever is longer: two devices of one architecture read
as many bytes in a second, however fast their memory is, and a fixed time. Both are fitted to every second shape of the first
device, by the absolute value of relative errors; errors are of the shapes between them, and of all shapes of the second
device. It writes nothing: rates stand in sheets of engines (`steps: narrow_cache_rates`), named by the architecture and by
the size of a head. The fixed time is no part of what 8 bits take more: kernels of 16 bits have theirs too.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from rlplan.units import seconds_from_ms

# Engines with the version of their tables; architectures with the device that is fitted on and the one that is held out.
ENGINES = (("vllm", "0.24.0"), ("sglang", "0.5.14"), ("trtllm", "1.3.0rc20"))
ARCHITECTURES = (("hopper", "h100_sxm", "h200_sxm"), ("blackwell", "b200_sxm", "gb200"))
FILE = "{}/attention/{}/{}/generation_attention_perf.parquet"
HEAD_SIZES = (64, 128, 256)
# Caches that are read in tens of microseconds at least: below, what kernels take at least says nothing of a rate.
LEAST_BYTES = 1e8
# Queries of one key and value in models of today; kernels of more are slower at both formats.
MOST_QUERIES = 16
SHAPE = ["batch_size", "num_heads", "num_key_value_heads", "head_dim", "step"]


def shapes_of(path: Path) -> pd.DataFrame:
    """Return shapes that were measured in both formats, in seconds, with the bytes that 8 bits have."""
    table = pd.read_parquet(path)
    table = table[table.window_size == 0]
    both = table.pivot_table(
        index=SHAPE, columns="kv_cache_dtype", values="latency", aggfunc="min"
    ).dropna()
    found = both.reset_index()
    values = 2 * found.batch_size * found.step * found.num_key_value_heads * found.head_dim
    found = found.assign(
        narrow_bytes=values,
        narrow=found.fp8.map(seconds_from_ms),
        wide=found.bfloat16.map(seconds_from_ms),
        queries=found.num_heads // found.num_key_value_heads,
    )
    return found[(found.narrow_bytes * 2 >= LEAST_BYTES) & (found.queries <= MOST_QUERIES)]


def line_of(found: pd.DataFrame) -> tuple[float, float]:
    """Return the fixed seconds and the bytes a second that kernels take to read 8 bits."""

    def off(logarithms: np.ndarray) -> float:
        fixed, rate = np.exp(logarithms)
        return float(
            (fixed + found.narrow_bytes / rate - found.narrow).abs().div(found.narrow).mean()
        )

    fixed, rate = np.exp(minimize(off, np.log([1e-5, 2e12]), method="Nelder-Mead").x)
    return float(fixed), float(rate)


def errors(found: pd.DataFrame, fixed: float, rate: float) -> str:
    """Return how far 8 bits are forecast off where 16 are known, beside a forecast of half of what is no fixed time."""
    half = fixed + (found.wide - fixed) / 2
    forecast = np.maximum(half, fixed + found.narrow_bytes / rate)
    new, old = (100 * (each / found.narrow - 1).abs().median() for each in (forecast, half))
    return f"{new:.0f} % median of {len(found)} (half of 16 bits: {old:.0f} %)"


def lines(folder: Path) -> Iterator[str]:
    """Yield a line for each engine, architecture and size of a head."""
    for engine, version in ENGINES:
        for architecture, device, other in ARCHITECTURES:
            tables = [
                shapes_of(folder / FILE.format(name, engine, version)) for name in (device, other)
            ]
            for size in HEAD_SIZES:
                ours, theirs = (each[each.head_dim == size] for each in tables)
                if not len(ours) or not len(theirs):
                    continue
                fitted, held = ours.iloc[::2], ours.iloc[1::2]
                line = line_of(fitted)
                told = f"held out {errors(held, *line)}; {other} {errors(theirs, *line)}"
                yield f"{engine} {architecture} {size}: {line[1]:.3g} bytes a second beside {line[0]:.1e} s; {told}"


def main() -> None:
    """Print rates with their errors."""
    for line in lines(Path(sys.argv[1])):
        print(line)


if __name__ == "__main__":
    main()
