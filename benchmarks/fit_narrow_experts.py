"""Fit what vLLM's grouped kernel takes for few tokens of narrow experts to tables of aiconfigurator (NVIDIA, Apache-2.0).

    python benchmarks/fit_narrow_experts.py PATH_TO_DATA

PATH_TO_DATA is `systems/data` of its package `aiconfigurator_core` (0.12). Tensor parallelism cuts experts: of DeepSeek-V3's
2,048 columns a rank of 32 has 64. The second product is then as deep, and as wide as the model: many small tiles, each a
short while of a multiprocessor. Two constants, of a tile and of each 64 of its depth, are fitted to every second model of the
first device (experts in bf16, up to 64 tokens) by the absolute value of relative errors, all others as
`fit_aiconfigurator.py` left them. Errors are of the other models, of experts in fp8 and of the second device, without and
with them. It writes nothing: the constants stand in `profiles/kernels/hopper.yaml`.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from rlplan.models import Batch, Elementwise, Gemm, Precision, Shard
from rlplan.parts import experts
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import load_device, load_model
from rlplan.profiles.kernels.kernel_time import GroupedKernels, load_kernels
from rlplan.units import seconds_from_ms

ARCHITECTURE, DEVICES = "hopper", (("h100-80gb-sxm", "h100_sxm"), ("h200", "h200_sxm"))
FILE = "{}/moe/vllm/0.24.0/moe_perf.parquet"
FORMATS: tuple[tuple[str, Precision], ...] = (("bfloat16", "bf16"), ("fp8_block", "fp8"))
MOST_TOKENS = 64
WIDTHS = ((32, 64), (65, 191), (192, 4096))  # of a rank's part of an expert: narrow, between, wide


class Layer(NamedTuple):
    """Hold a measured layer of experts: its operators, format, width and seconds."""

    operators: tuple[Gemm | Elementwise, ...]
    precision: Precision
    width: int
    seconds: float
    fitted: bool


def layers_of(folder: Path, device: str, dtype: str, precision: Precision) -> Iterator[Layer]:
    """Yield a device's measured layers of up to 64 tokens that vLLM's own kernel computes."""
    table = pd.read_parquet(folder / FILE.format(device))
    table = table[
        (table.moe_dtype == dtype)
        & (table.distribution == "power_law_1.01")
        & (table.moe_ep_size == 1)
        & table.kernel_source.str.contains("triton_tritonexperts")
        & table.topk.between(2, 10)
        & (table.num_tokens <= MOST_TOKENS)
    ]
    known: dict[object, bool] = {}
    for row in table.to_dict("records"):
        each: dict[str, Any] = {str(key): value for key, value in row.items()}
        width = int(each["inter_size"]) // int(each["moe_tp_size"])
        if width < WIDTHS[0][0] or width % 16:
            continue
        model = (each["hidden_size"], each["inter_size"], each["num_experts"])
        fitted = known.setdefault(model, len(known) % 2 == 0)
        seconds = seconds_from_ms(float(each["latency"]))
        yield Layer(operators_of(each, width), precision, width, seconds, fitted)


def operators_of(row: dict[str, Any], width: int) -> tuple[Gemm | Elementwise, ...]:
    """Return what a row of the tables computes, which are without the router.

    Args:
        width: Columns of a rank's part of an expert.
    """
    tokens = int(row["num_tokens"])
    model = replace(
        load_model("qwen3-30b-a3b"),
        hidden_size=int(row["hidden_size"]),
        moe_ffn_size=width,
        num_experts=int(row["num_experts"]),
        experts_per_token=int(row["topk"]),
    )
    batch = Batch(sequences=tokens, tokens=tokens, sequence_tokens=1, head_tokens=0)
    _, *layer = experts.operators(model, Shard(), batch, tokens)
    return tuple(each for each in layer if isinstance(each, Gemm | Elementwise))


def forecast(line: Roofline, layer: Layer) -> float:
    """Return the seconds that a layer is forecast to take."""
    seconds = 0.0
    for each in layer.operators:
        if isinstance(each, Elementwise):
            seconds += line.memory_bound(each.num_bytes, kernels=each.kernels).seconds
            continue
        sizes = (each.m, each.k, each.n)
        together = line.grouped_gemm(*sizes, each.count, layer.precision)
        alone = together is None or each.count == 1
        seconds += line.gemm(*sizes, layer.precision).seconds if alone else together.seconds
    return seconds


def off(line: Roofline, layers: Sequence[Layer]) -> list[float]:
    """Return relative errors of forecasts."""
    return [forecast(line, each) / each.seconds - 1 for each in layers]


def with_tiles(device: str, tile_seconds: float, depth_seconds: float) -> Roofline:
    """Return a device whose grouped kernels have these constants."""
    kernels = load_kernels(ARCHITECTURE)
    assert isinstance(kernels.grouped, GroupedKernels)
    own = replace(kernels.grouped, tile_seconds=tile_seconds, depth_seconds=depth_seconds)
    return Roofline(load_device(device), kernels=replace(kernels, grouped=own))


def main(folder: Path) -> None:
    """Fit on the first device, and print errors where nothing was fitted."""
    (device, name), _ = DEVICES
    shown = [each for each in layers_of(folder, name, *FORMATS[0]) if each.fitted]

    def loss(logarithms: np.ndarray) -> float:
        line = with_tiles(device, *np.exp(logarithms))
        return float(np.mean(np.abs(off(line, shown))))

    start = np.log([8e-7, 1.3e-7])
    found = np.exp(minimize(loss, start, method="Nelder-Mead", options={"maxiter": 60}).x)
    print(f"tile_seconds {found[0]:.3g}, depth_seconds {found[1]:.3g}: {len(shown)} layers")
    for device, name in DEVICES:
        lines = with_tiles(device, 0.0, 0.0), with_tiles(device, *found)
        for dtype, precision in FORMATS:
            rows = [*layers_of(folder, name, dtype, precision)]
            if (name, dtype) == (DEVICES[0][1], FORMATS[0][0]):
                rows = [each for each in rows if not each.fitted]
            for least, most in WIDTHS:
                some = [each for each in rows if least <= each.width <= most]
                without, with_them = (
                    f"{np.median(np.abs(off(line, some))):.1%} median, bias {np.median(off(line, some)):+.1%}"
                    for line in lines
                )
                if some:
                    said = (
                        f"width {least} to {most}, {len(some)} layers: {without}; now {with_them}"
                    )
                    print(f"{name} {dtype}, {said}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
