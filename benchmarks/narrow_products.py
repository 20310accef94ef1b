"""Lay products in fp8 as engines compute them beside forecasts, without and with the kernel that quantises their inputs.

    python benchmarks/narrow_products.py PATH_TO_DATA

PATH_TO_DATA is `systems/data` of the package `aiconfigurator_core` (0.12, NVIDIA, Apache-2.0): products of SGLang 0.5.14 with
scales of blocks. Nothing is fitted; `cast_bytes` of `profiles/engines/vllm.yaml` is counted.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from rlplan.models import Precision
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import load_device, load_engine
from rlplan.units import seconds_from_ms

DEVICES = (("h100-80gb-sxm", "h100_sxm"), ("h200", "h200_sxm"))
PRODUCTS = "{}/gemm/sglang/0.5.14/gemm_perf.parquet"
NARROW: Precision = "fp8"
LEAST = 256  # of both sizes of a matrix
ROWS = ((1, 64), (65, 512), (513, 2048), (2049, 10**6))
SAMPLE, SEED = 4000, 0


def said(errors: list[float]) -> str:
    """Return median absolute error and bias for people."""
    return f"{np.median(np.abs(errors)):.1%} median, bias {np.median(errors):+.1%}"


def main(folder: Path) -> None:
    """Print errors by the rows of products."""
    cast_bytes = load_engine("sglang-0.5").steps.cast_bytes
    for device, name in DEVICES:
        table = pd.read_parquet(folder / PRODUCTS.format(name))
        table = table[(table.gemm_dtype == "fp8_block") & (table.n >= LEAST) & (table.k >= LEAST)]
        table = table.sample(min(len(table), SAMPLE), random_state=SEED)
        line = Roofline(load_device(device))
        for least, most in ROWS:
            some = table[(table.m >= least) & (table.m <= most)]
            without, with_them = [], []
            for m, k, n, ms in zip(some.m, some.k, some.n, some.latency, strict=True):
                alone = line.gemm(int(m), int(k), int(n), NARROW).seconds
                cast = line.memory_bound(cast_bytes * int(m) * int(k), kernels=1).seconds
                without.append(alone / seconds_from_ms(ms) - 1)
                with_them.append((alone + cast) / seconds_from_ms(ms) - 1)
            print(
                f"{device}, {least} to {most} rows, {len(some)} products: {said(without)}; now {said(with_them)}"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
