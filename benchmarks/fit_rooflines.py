"""Fit the roofline's constants to operator tables measured on real GPUs, and say how well they hold.

    python benchmarks/fit_rooflines.py PATH_TO_OPS

The tables are those of microsoft/vidur (MIT): `a100/` and `h100/` with `*_mlp.csv`,
`attention_64q8kv_8192_tp2.csv` and `all_reduce_dgx.csv`, times in milliseconds. GEMM and elementwise
constants are fitted on Llama-2-7B; CodeLlama-34B on A100 is held out. The values printed go into
`profiles/fits/` by hand, with the errors as their spread.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import least_squares

from profiles.catalog import load_device
from profiles.efficiencies import Efficiencies, load_efficiencies
from profiles.roofline import Roofline
from rlplan.units import seconds_from_ms

Floats = npt.NDArray[np.float64]
Case = tuple[Callable[[Roofline], float], float]  # what the roofline says, and the measured seconds

DEVICES = {"a100": "a100-80gb-sxm", "h100": "h100-80gb-sxm"}
TILE = 128
VALUE_BYTES = 2
# Rows at every multiple of 8 tokens say the same again and again; these span the range.
TOKENS = (1, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
BOUNDS = {
    "gemm_efficiency": (0.1, 1.0),
    "gemm_memory_efficiency": (0.1, 0.92),
    "gemm_tail_tiles": (0.0, 500.0),
    "gemm_overlap_exponent": (1.0, 20.0),
    "memory_efficiency": (0.1, 1.0),
    "kernel_seconds": (0.0, 2e-5),
    "attention_memory_efficiency": (0.1, 1.0),
    "attention_fixed_seconds": (0.0, 5e-5),
    "link_efficiency": (0.1, 1.0),
    "collective_fixed_seconds": (0.0, 1e-4),
}


def table(path: Path) -> pd.DataFrame:
    """Return a table with short column names."""
    frame = pd.read_csv(path)
    return frame.rename(columns=lambda name: name.replace("time_stats.", ""))


def gemm_cases(frame: pd.DataFrame) -> list[Case]:
    """Return the four matrix products of a layer, by tokens and tensor-parallel size."""
    cases: list[Case] = []
    for row in frame[frame.num_tokens.isin(TOKENS)].to_dict("records"):
        tp, hidden, ffn = row["num_tensor_parallel_workers"], row["n_embd"], row["n_expanded_embd"]
        kv = hidden // row["n_head"] * row["n_kv_head"]
        shapes = {
            "attn_pre_proj": (hidden, (hidden + 2 * kv) // tp),
            "attn_post_proj": (hidden // tp, hidden),
            "mlp_up_proj": (hidden, 2 * ffn // tp),
            "mlp_down_proj": (ffn // tp, hidden),
        }
        for name, (k, n) in shapes.items():
            m = int(row["num_tokens"])
            cases.append(
                (
                    lambda line, m=m, k=k, n=n: line.gemm(m, k, n, "bf16").seconds,
                    seconds_from_ms(row[f"{name}.median"]),
                )
            )
    return [case for case in cases if case[1] > 0]


def memory_cases(frame: pd.DataFrame) -> list[Case]:
    """Return norms, activation, rotation and residual addition, by the least bytes they move."""
    cases: list[Case] = []
    for row in frame[frame.num_tokens.isin(TOKENS)].to_dict("records"):
        hidden = row["num_tokens"] * row["n_embd"]
        ffn = row["num_tokens"] * row["n_expanded_embd"] / row["num_tensor_parallel_workers"]
        values = {"input_layernorm": 2 * hidden, "add": 3 * hidden, "mlp_act": 3 * ffn}
        for name, count in values.items():
            num_bytes = count * VALUE_BYTES
            cases.append(
                (
                    lambda line, num_bytes=num_bytes: line.memory_bound(num_bytes).seconds,
                    seconds_from_ms(row[f"{name}.median"]),
                )
            )
    return [case for case in cases if case[1] > 0]


def decode_cases(frame: pd.DataFrame) -> list[Case]:
    """Return decode attention with 32 query and 4 KV heads on each of two GPUs."""
    rows = frame[~frame.is_prefill & frame.batch_size.isin((1, 2, 4, 8, 16, 32, 64, 96, 128))]
    return [
        (
            lambda line, row=row: (
                line.attention(
                    batch=row["batch_size"],
                    query_tokens=1,
                    cached_tokens=row["kv_cache_size"],
                    q_heads=row["n_q_head"] // 2,
                    kv_heads=row["n_kv_head"] // 2,
                    head_dim=row["n_embd"] // row["n_q_head"],
                    precision="bf16",
                ).seconds
            ),
            seconds_from_ms(row["attn_decode.median"]),
        )
        for row in rows.iloc[::3].to_dict("records")
    ]


def reduce_cases(frame: pd.DataFrame) -> list[Case]:
    """Return all-reduces inside one node."""
    inside = frame[frame.num_workers == frame.devices_per_node]
    medians = inside.groupby(["num_workers", "size"])["all_reduce.median"].median()
    return [
        (
            lambda line, ranks=ranks, size=size: (
                line.collective(
                    "all_reduce", size, ranks, ranks_per_node=ranks, inter_node_bytes_per_second=1.0
                ).seconds
            ),
            seconds_from_ms(value),
        )
        for (ranks, size), value in medians.iloc[::4].items()
    ]


def fit(device: str, start: Efficiencies, names: Sequence[str], cases: list[Case]) -> Efficiencies:
    """Return the constants with those of `names` fitted to relative errors, outliers damped."""
    low, high = (np.array([BOUNDS[name][side] for name in names]) for side in (0, 1))

    def with_values(shares: Floats) -> Efficiencies:
        values = low + shares * (high - low)
        changes = {
            name: replace(getattr(start, name), value=float(value))
            for name, value in zip(names, values, strict=True)
        }
        return replace(start, **changes)

    def residuals(shares: Floats) -> Floats:
        return np.log1p(errors(device, with_values(shares), cases))

    answer = least_squares(
        residuals, np.full(len(names), 0.5), bounds=(0, 1), loss="soft_l1", f_scale=0.1
    )
    return with_values(answer.x)


def errors(device: str, efficiencies: Efficiencies, cases: list[Case]) -> Floats:
    """Return forecast / measured - 1 of every case."""
    roofline = Roofline(load_device(device), efficiencies)
    return np.array([forecast(roofline) / seconds - 1 for forecast, seconds in cases])


def show(what: str, relative: Floats) -> None:
    """Print the errors' median, 90th percentile, bias and robust spread (68 % lie within)."""
    size = np.abs(relative)
    print(
        f"  {what}: {len(size)} points, error median {np.median(size):.1%}, "
        f"p90 {np.quantile(size, 0.9):.1%}, bias {np.median(relative):+.1%}, "
        f"68% within {np.quantile(size, 0.68):.3f}"
    )


def main(ops: Path) -> None:
    """Fit each device in turn and print the constants and their errors."""
    for folder, device in DEVICES.items():
        start = load_efficiencies(load_device(device).architecture)
        start = replace(start, gemm_tile=replace(start.gemm_tile, value=TILE))
        mlp = table(ops / folder / "llama-2-7b_mlp.csv")
        groups: dict[str, tuple[tuple[str, ...], list[Case]]] = {
            "elementwise": (("memory_efficiency", "kernel_seconds"), memory_cases(mlp)),
            "gemm": (tuple(name for name in BOUNDS if name.startswith("gemm")), gemm_cases(mlp)),
        }
        attention = ops / folder / "attention_64q8kv_8192_tp2.csv"
        if attention.exists():
            names = ("attention_memory_efficiency", "attention_fixed_seconds")
            groups["attention decode"] = (names, decode_cases(table(attention)))
        groups["all-reduce in a node"] = (
            ("link_efficiency", "collective_fixed_seconds"),
            reduce_cases(table(ops / folder / "all_reduce_dgx.csv")),
        )
        print(device)
        for what, (names, cases) in groups.items():
            start = fit(device, start, names, cases)
            show(what, errors(device, start, cases))
            for name in names:
                print(f"    {name}: {getattr(start, name).value:.3g}")
        held_out = ops / folder / "codellama-34b_mlp.csv"
        if held_out.exists():
            frame = table(held_out)
            show("gemm, CodeLlama-34B held out", errors(device, start, gemm_cases(frame)))
            show("elementwise, held out", errors(device, start, memory_cases(frame)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
