"""Fit kernels to tables of aiconfigurator (NVIDIA, Apache-2.0), and say how well they hold elsewhere.

    python benchmarks/fit_aiconfigurator.py PATH_TO_DATA [PART...]

PATH_TO_DATA is `systems/data` of its package `aiconfigurator_core`. Every architecture's experts' products
(`grouped`) are fitted, and Blackwell's other products and its attention (`gemm`, `decode`, `prefill`), of which
no other table is at hand. Every second shape is held out, and gives the spread; the whole tables of H200 and
GB200 are held out too. Files written: `profiles/kernels/constants/<architecture>.yaml`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fit_kernels import Fitted, Floats, errors_of, fit, note, with_spread
from kernel_cases import Case
from kernel_parts import (
    DECODE_BOUNDS,
    GEMM_BOUNDS,
    PREFILL_BOUNDS,
    Part,
    Values,
    build_attention,
    build_gemm,
)

from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import plain, write_yaml
from rlplan.models import Attention, Batch, Elementwise, Gemm, Shard
from rlplan.parts import experts
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import load_device, load_model
from rlplan.profiles.kernels.kernel_time import (
    KERNELS_FOLDER,
    GroupedKernels,
    Kernels,
    load_kernels,
)
from rlplan.units import seconds_from_ms

Row = Mapping[str, Any]


@dataclass(frozen=True)
class System:
    """Name the tables of an architecture's device, and those of another device of it."""

    device: str
    folder: str
    version: str
    other: tuple[str, str] | None
    parts: tuple[str, ...]


SYSTEMS = (
    System("a100-80gb-sxm", "a100_sxm", "0.14.0", None, ("grouped",)),
    System("h100-80gb-sxm", "h100_sxm", "0.14.0", ("h200", "h200_sxm"), ("grouped",)),
    System(
        "b200", "b200_sxm", "0.19.0", ("gb200", "gb200"), ("gemm", "decode", "prefill", "grouped")
    ),
)
FILES = {
    "gemm": "gemm/vllm/{}/gemm_perf.parquet",
    "decode": "attention/vllm/{}/generation_attention_perf.parquet",
    "prefill": "attention/vllm/{}/context_attention_perf.parquet",
    "grouped": "moe/vllm/{}/moe_perf.parquet",
}
PRECISION = "bf16"
SHAPES = 400  # of a part that are looked at: thousands more say the same
WIDTHS = (1024, 65536)  # of matrices in models' layers
MOST_ROWS = 32768
# Shapes for which vLLM holds no tuned configuration reach a fifth of the peak whatever their size: engines'
# kernels for training do better, so that of those only steps of few tokens, bound by memory, are fitted.
TUNED_SHARE, FEW_TOKENS = 0.35, 256
EXPERTS_WIDTH = 192  # narrower ones are of ranks that no plan has
GROUPED_BOUNDS = {
    "rate": (0.1, 1.5),
    "memory_rate": (0.3, 1.5),
    "fixed_seconds": (0.0, 5e-5),
}


def build_grouped(kernels: Kernels, values: Values) -> Kernels:
    """Put the constants of experts' products into the kernels."""
    rate, memory_rate, fixed = values
    grouped = GroupedKernels(rate=rate, memory_rate=memory_rate, fixed_seconds=fixed, spread=0.0)
    return replace(kernels, grouped=grouped)


def _gemm(row: Row) -> tuple[object, Callable[[Roofline], float]] | None:
    m, k, n = (int(row[side]) for side in ("m", "k", "n"))
    if row["gemm_dtype"] != "bfloat16" or min(k, n) < WIDTHS[0] or max(k, n) > WIDTHS[1]:
        return None
    if m > MOST_ROWS:
        return None
    return (k, n), lambda line: line.gemm(m, k, n, PRECISION).seconds


def _decode(row: Row) -> tuple[object, Callable[[Roofline], float]] | None:
    return _attention(row, 1, int(row["isl"]) + int(row["step"]) - 1)


def _prefill(row: Row) -> tuple[object, Callable[[Roofline], float]] | None:
    return _attention(row, int(row["isl"]), 0)


def _attention(
    row: Row, tokens: int, cached: int
) -> tuple[object, Callable[[Roofline], float]] | None:
    heads, kv_heads, batch = (
        int(row[name]) for name in ("num_heads", "num_key_value_heads", "batch_size")
    )
    kv_heads = kv_heads or heads
    plain_cache = row["attn_dtype"] == "bfloat16" and row["kv_cache_dtype"] == "bfloat16"
    whole = not row.get("window_size") or pd.isna(row["window_size"])
    if not (plain_cache and whole and row["head_dim"] == 128 and kv_heads <= heads):  # noqa: PLR2004
        return None
    shape = Attention("attention", batch, tokens, cached, heads, kv_heads, head_dim=128)
    return (heads, kv_heads), lambda line: line.attention(shape, PRECISION, paged=True).seconds


def _grouped(row: Row) -> tuple[object, Callable[[Roofline], float]] | None:
    tokens, width = int(row["num_tokens"]), int(row["inter_size"]) // int(row["moe_tp_size"])
    shape = (int(row["hidden_size"]), int(row["inter_size"]), int(row["num_experts"]))
    model = replace(
        load_model("qwen3-30b-a3b"),
        hidden_size=shape[0],
        moe_ffn_size=width,
        num_experts=shape[2],
        experts_per_token=int(row["topk"]),
    )
    batch = Batch(sequences=tokens, tokens=tokens, sequence_tokens=1, head_tokens=0)
    router, *layer = experts.operators(model, Shard(), batch, tokens)
    del router  # the tables are without it

    def forecast(line: Roofline) -> float:
        return sum(_operator_seconds(line, each) for each in layer)

    return shape, forecast


def _operator_seconds(line: Roofline, operator: object) -> float:
    if isinstance(operator, Gemm):
        found = line.grouped_gemm(operator.m, operator.k, operator.n, operator.count, PRECISION)
        if found is not None and operator.count > 1:
            return found.seconds
        return line.gemm(operator.m, operator.k, operator.n, PRECISION).seconds * operator.count
    assert isinstance(operator, Elementwise)
    return line.memory_bound(operator.num_bytes, kernels=operator.kernels).seconds


def of_experts(table: pd.DataFrame, peak: float) -> pd.DataFrame:
    """Return the rows of experts on one rank whose kernels are tuned, or bound by memory."""
    table = table[
        (table.moe_dtype == "bfloat16")
        & (table.distribution == "power_law_1.01")
        & (table.moe_ep_size == 1)
        & (table.kernel_source == "vllm_fused_moe")
        & table.topk.between(2, 10)
        & (table.num_tokens <= MOST_ROWS // 2)
        & (table.inter_size // table.moe_tp_size >= EXPERTS_WIDTH)
    ]
    flops = 6 * table.num_tokens * table.topk * table.hidden_size * table.inter_size
    rate = flops / table.moe_tp_size / seconds_from_ms(1) / table.latency
    shape = ["hidden_size", "inter_size", "num_experts", "moe_tp_size"]
    largest = rate.where(table.num_tokens == table.num_tokens.max())
    reached = largest.groupby([table[name] for name in shape]).transform("max")
    return table[(reached > TUNED_SHARE * peak) | (table.num_tokens <= FEW_TOKENS)]


READERS = {"gemm": _gemm, "decode": _decode, "prefill": _prefill, "grouped": _grouped}


def cases(folder: Path, version: str, part: str, peak: float) -> Iterator[Case]:
    """Yield what a device's table holds of a part; every second shape is fitted on."""
    table = pd.read_parquet(folder / FILES[part].format(version))
    if part == "grouped":
        table = of_experts(table, peak)
    known: dict[object, bool] = {}
    for row in table.to_dict("records"):
        found = READERS[part]({str(key): value for key, value in row.items()})
        if found is None:
            continue
        shape, forecast = found
        fitted = known.setdefault(shape, len(known) % 2 == 0)
        yield Case(forecast, seconds_from_ms(float(row["latency"])), fitted)


def part_of(name: str, found: Sequence[Case]) -> Part:
    """Return the constants that are fitted together, with at most so many cases of either kind."""
    bounds, build = {
        "gemm": (GEMM_BOUNDS, build_gemm),
        "decode": (DECODE_BOUNDS, build_attention(list(DECODE_BOUNDS))),
        "prefill": (PREFILL_BOUNDS, build_attention(list(PREFILL_BOUNDS))),
        "grouped": (GROUPED_BOUNDS, build_grouped),
    }[name]
    chosen: list[Case] = []
    for fitted in (True, False):
        some = [case for case in found if case.fitted == fitted]
        order = np.random.default_rng(0).permutation(len(some))[:SHAPES]
        chosen += [some[index] for index in sorted(order)]
    return Part(name, bounds, build, chosen)


def fitted_to(data: Path, system: System, kernels: Kernels, name: str) -> tuple[Kernels, str]:
    """Return kernels with a part's constants fitted, and a note of the errors elsewhere."""
    sheet = load_device(system.device)
    peak = sheet.peak_flops_per_second[PRECISION]
    part = part_of(name, [*cases(data / system.folder, system.version, name, peak)])
    kernels, errors = fit(sheet, kernels, part, [case for case in part.cases if case.fitted])
    held = errors_of(sheet, kernels, [case for case in part.cases if not case.fitted])
    kernels = spread_of(kernels, name, held, errors)
    words = Fitted(kernels, held, np.array([])).note
    if system.other:
        device, folder = system.other
        whole = part_of(name, [*cases(data / folder, system.version, name, peak)]).cases
        words += f"; {device} {note(errors_of(load_device(device), kernels, whole))}"
    return kernels, words


def spread_of(kernels: Kernels, name: str, held: Floats, errors: FrozenDict[str, float]) -> Kernels:
    """Return kernels that know the spread of a part."""
    spread = float(np.quantile(np.abs(held), 0.68))
    if name != "grouped":
        return with_spread(kernels, name, spread, errors)
    assert kernels.grouped is not None
    return replace(kernels, grouped=replace(kernels.grouped, spread=float(f"{spread:.2g}")))


def main(data: Path, chosen: Sequence[str]) -> None:
    """Fit every architecture's kernels, write them, and print the errors held out."""
    for system in SYSTEMS:
        kernels = load_kernels(load_device(system.device).architecture)
        notes = dict(kernels.held_out)
        for name in system.parts:
            if chosen and name not in chosen:
                continue
            kernels, notes[name] = fitted_to(data, system, kernels, name)
            print(f"{system.device}: {name} {notes[name]}", flush=True)
        kernels = replace(kernels, held_out=FrozenDict(notes))
        write_yaml(KERNELS_FOLDER / f"{kernels.architecture}.yaml", plain(kernels))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
