"""Fit what latent attention takes in vLLM's decode steps beside its products and its cache, by tables of aiconfigurator.

    python benchmarks/fit_latent_attention.py PATH_TO_DATA

PATH_TO_DATA is `systems/data` of the package `aiconfigurator_core` (0.12, NVIDIA, Apache-2.0): whole modules of DeepSeek-V3's
attention in vLLM 0.24, from the first projection to the last, by heads of a rank, sequences and cached tokens. Two constants
are fitted by the absolute value of relative errors to every second number of heads on the first device, weights in bf16: the
seconds in a layer of kernels that are not counted (writes to the cache, absorbed products, copies of queries and outputs, sums
over splits of the cache), and the bytes between them for every head of a sequence. Errors are of the other numbers of heads, of
weights in fp8, of other devices, and of prompts, to which nothing is fitted. So for Hopper and for Blackwell. It writes nothing: the constants stand in
`profiles/engines/vllm-0.11.yaml`.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from rlplan.files.frozen import FrozenDict
from rlplan.models import Batch, Collective, Precision
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.profiles.facts import DeviceFacts
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.generation.prices import EngineSteps, ReplicaSetting, engine_steps
from rlplan.simulator.model import layer_operators
from rlplan.simulator.placed import Site
from rlplan.units import seconds_from_ms

FAMILIES = ((("h100-80gb-sxm", "h100_sxm"), ("h200", "h200_sxm")), (("b200", "b200_sxm"),))
FORMATS: tuple[tuple[str, Precision], ...] = (("bfloat16", "bf16"), ("fp8_block", "fp8"))
FILE = "{}/mla/vllm/0.24.0/mla_{}_module_perf.parquet"
MODEL, ENGINE, HEADS, LAYERS = "deepseek-v3", "vllm-0.15", 128, 61
BESIDE = ("norm", "residual")  # operators of a layer that are in no module
MOST_CACHED, MOST_PROMPTED = 8192, 16384


class Module(NamedTuple):
    """Hold a measured module: what is forecast without the constants, what they multiply, and its seconds."""

    forecast: float
    heads_bytes: float
    seconds: float


def steps_of(device: str, heads: int, precision: Precision) -> EngineSteps:
    """Return what vLLM's steps take where a rank has so many heads, without the constants."""
    sheet = load_engine(ENGINE)
    engine = replace(sheet, steps=replace(sheet.steps, latent=FrozenDict()))
    tp = HEADS // heads
    site = Site(device, tp, max(tp, 8), 5e10)
    layout = TaskPlan(pool="", tp=tp, engine=ENGINE)
    setting = setting_on(
        layout, engine, DeviceFacts(load_device(device)), site, precision, cache_value_bytes=2
    )
    found = engine_steps(ReplicaSetting(load_model(MODEL), engine, setting))
    assert isinstance(found, EngineSteps)
    return found


def products(steps: EngineSteps, tokens: int) -> float:
    """Return the seconds of a layer's operators that are in a module, but for attention itself."""
    kind, _ = steps.dense_layers[-1]
    (mixes, _) = steps._parts(kind)  # noqa: SLF001
    batch = Batch(sequences=tokens, tokens=tokens, sequence_tokens=1, head_tokens=0)
    operators = tuple(
        each
        for each in layer_operators(mixes, steps.setting.shard, batch)
        if not isinstance(each, Collective) and each.name not in BESIDE
    )
    return sum(each.seconds for each in steps.prices(operators, tokens))


def _table(path: Path, heads: int, dtype: str) -> pd.DataFrame:
    """Return the rows of so many heads and of products in a format, with a cache in 16 bits."""
    table = pd.read_parquet(path)
    return table[
        (table.num_heads == heads)
        & (table.gemm_type == dtype)
        & (table.kv_cache_dtype == "bfloat16")
    ]


def modules(
    path: Path, device: str, heads: int, dtype: str, precision: Precision
) -> Iterator[Module]:
    """Yield a device's modules of decode steps with so many heads."""
    table = _table(path, heads, dtype)
    table = table[(table.step <= MOST_CACHED) & (table.step >= 1)]
    steps = steps_of(device, heads, precision)
    for row in table.to_dict("records"):
        running, cached = int(row["batch_size"]), int(row["step"])
        alone = products(steps, running) + steps.decode_attention(running, cached).seconds / LAYERS
        yield Module(
            alone,
            running * heads / load_device(device).memory_bytes_per_second,
            seconds_from_ms(row["latency"]),
        )


def prompts(
    path: Path, device: str, heads: int, dtype: str, precision: Precision
) -> Iterator[Module]:
    """Yield a device's modules of prompts with so many heads."""
    table = _table(path, heads, dtype)
    table = table[(table.step == 0) & (table.batch_size * table.isl <= MOST_PROMPTED)]
    steps = steps_of(device, heads, precision)
    for row in table.to_dict("records"):
        count, tokens = int(row["batch_size"]), int(row["isl"])
        alone = (
            products(steps, count * tokens)
            + steps.prefill_attention(count, 0, tokens).seconds / LAYERS
        )
        yield Module(alone, 0.0, seconds_from_ms(row["latency"]))


def off(rows: Sequence[Module], seconds: float, head_bytes: float) -> np.ndarray:
    """Return relative errors of forecasts."""
    return np.array(
        [
            (each.forecast + seconds + head_bytes * each.heads_bytes) / each.seconds - 1
            for each in rows
        ]
    )


def said(errors: np.ndarray) -> str:
    """Return median absolute error and bias for people."""
    return f"{np.median(np.abs(errors)):.1%} median, {np.quantile(np.abs(errors), 0.9):.0%} p90, bias {np.median(errors):+.1%}"


def fit(folder: Path, devices: Sequence[tuple[str, str]]) -> None:
    """Fit on the first device, and print errors where nothing was fitted."""
    counts = [1, 2, 4, 8, 16, 32, 64, 128]
    device, name = devices[0]
    path = folder / FILE.format(name, "generation")
    shown = [row for heads in counts[::2] for row in modules(path, device, heads, *FORMATS[0])]
    found = np.exp(
        minimize(
            lambda logs: float(np.mean(np.abs(off(shown, *np.exp(logs))))),
            np.log([4e-5, 1e4]),
            method="Nelder-Mead",
            options={"maxiter": 80},
        ).x
    )
    print(f"layer_seconds {found[0]:.3g}, head_bytes {found[1]:.4g}: {len(shown)} modules")
    for each, folder_name in devices:
        path = folder / FILE.format(folder_name, "generation")
        for dtype, precision in FORMATS:
            held = counts[1::2] if (each, precision) == (device, "bf16") else counts
            for some in (held[: len(held) // 2], held[len(held) // 2 :]):
                rows = [
                    row for heads in some for row in modules(path, each, heads, dtype, precision)
                ]
                print(
                    f"{each}, {precision}, {some} heads, {len(rows)} modules: {said(off(rows, 0, 0))}; now {said(off(rows, *found))}"
                )
            path_of_prompts = folder / FILE.format(folder_name, "context")
            rows = [
                row
                for heads in (4, 16)
                for row in prompts(path_of_prompts, each, heads, dtype, precision)
            ]
            print(
                f"{each}, {precision}, prompts, {len(rows)} modules: {said(off(rows, 0, 0))}; now {said(off(rows, found[0], 0))}"
            )


def main(folder: Path) -> None:
    """Fit to devices of each architecture."""
    for devices in FAMILIES:
        fit(folder, devices)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
