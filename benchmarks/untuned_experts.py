"""Lay experts in 16 bits of aiconfigurator's tables (NVIDIA, Apache-2.0) beside forecasts, where tiles were tuned and where not.

    python -m benchmarks.untuned_experts PATH_TO_DATA

PATH_TO_DATA is `systems/data` of its package `aiconfigurator_core` (0.12). Kernels read tokens where they lie, so that no pass
brings them; a layer without tuned tiles computes at `untuned_rate` in steps of more tokens than experts. That rate is chosen
among tenths by the first device of each architecture and engine, and said of the others too. Prints the median of measured
over forecast by tokens, of layers that the engine's sheet names as tuned and of the others, with the rate and without.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.fit_narrow_experts import operators_of
from rlplan.models import Elementwise, Gemm
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import load_device, load_engine
from rlplan.units import seconds_from_ms

TOKENS = (64, 128, 256, 512, 1024, 4096, 16384)
LEAST_EXPERTS, LEAST_WIDTH = 64, 64
RATES = (1.0, 0.8, 0.7, 0.6, 0.5, 0.4)


class Table(NamedTuple):
    """Name a table, and the sheet of the engine that it is of."""

    device: str
    folder: str
    version: str
    engine: str


TABLES = (
    Table("h100-80gb-sxm", "h100_sxm", "sglang/0.5.14", "sglang-0.5.6"),
    Table("h200", "h200_sxm", "sglang/0.5.14", "sglang-0.5.6"),
    Table("a100-80gb-sxm", "a100_sxm", "sglang/0.5.10", "sglang-0.5.6"),
    Table("a100-80gb-sxm", "a100_sxm", "vllm/0.14.0", "vllm-0.11"),
    Table("h100-80gb-sxm", "h100_sxm", "vllm/0.24.0", "vllm-0.15"),
    Table("h200", "h200_sxm", "vllm/0.24.0", "vllm-0.15"),
)


def ratios(folder: Path, table: Table, rate: float) -> Iterator[tuple[bool, int, float]]:
    """Yield of each layer whether it is tuned, its tokens, and measured over forecast seconds."""
    line = Roofline(load_device(table.device))
    tuned = load_engine(table.engine).steps.tuned_experts[table.device]
    rows = pd.read_parquet(folder / f"{table.folder}/moe/{table.version}/moe_perf.parquet")
    rows = rows[
        (rows.moe_dtype == "bfloat16")
        & (rows.distribution == "power_law_1.01")
        & (rows.moe_ep_size == 1)
        & rows.kernel_source.str.contains("triton|vllm_fused_moe")
        & rows.topk.between(2, 10)
        & rows.num_tokens.isin(TOKENS)
        & (rows.num_experts >= LEAST_EXPERTS)
    ]
    for row in rows.to_dict("records"):
        each: dict[str, Any] = {str(key): value for key, value in row.items()}
        width = int(each["inter_size"]) // int(each["moe_tp_size"])
        if width < LEAST_WIDTH or width % 16:
            continue
        count, tokens = int(each["num_experts"]), int(each["num_tokens"])
        known = width in tuned.get(count, ())
        used = rate if not known and tokens > count else 1.0
        yield (
            known,
            tokens,
            seconds_from_ms(float(each["latency"])) / _forecast(line, each, width, used),
        )


def _forecast(line: Roofline, row: dict[str, Any], width: int, rate: float) -> float:
    seconds = 0.0
    for each in operators_of(row, width):
        if isinstance(each, Gemm):
            found = line.grouped_gemm(each.m, each.k, each.n, each.count, "bf16", rate)
            seconds += found.seconds if found is not None else 0.0
        elif isinstance(each, Elementwise) and each.name != "dispatch":
            seconds += line.memory_bound(each.num_bytes, kernels=each.kernels).seconds
    return seconds


def main(folder: Path) -> None:
    """Print medians by tokens."""
    print(f"{'':44s} {' '.join(f'{each:>6d}' for each in TOKENS)}")
    for table in TABLES:
        for rate in RATES:
            found: dict[tuple[bool, int], list[float]] = defaultdict(list)
            for known, tokens, ratio in ratios(folder, table, rate):
                found[known, tokens].append(ratio)
            for known in (True, False) if rate == 1 else (False,):
                said = "tuned" if known else f"not tuned, {rate:.1f}"
                name = f"{table.device} {table.version} {said}"
                if not any(found[known, each] for each in TOKENS):
                    continue  # none of its layers is so wide
                medians = (float(np.median(found[known, each])) for each in TOKENS)
                print(f"{name:44s} {' '.join(f'{each:6.2f}' for each in medians)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
