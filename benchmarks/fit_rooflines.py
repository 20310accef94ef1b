"""Fit the roofline's constants to operator tables measured on real GPUs, and say how well they hold.

    python benchmarks/fit_rooflines.py PATH_TO_OPS

The tables are those of microsoft/vidur (MIT): `a100/` and `h100/` with `*_mlp.csv`,
`attention_*.csv` and `all_reduce_*.csv`. Shares of elementwise kernels are fitted on Llama-2-7B, with
CodeLlama-34B held out; of attention on decode steps; of links on rings inside a node, as the roofline
has them across nodes. The values printed go into `profiles/fits/` by hand, with the errors as their
spread. What kernels take is fitted by `fit_kernels.py`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from kernel_cases import LEFT_OUT_MODEL, records
from scipy.optimize import least_squares

from rlplan.evals.tables import ops_attention, ops_mlp
from rlplan.models import Attention
from rlplan.planner.measured.rows import Record
from rlplan.profiles.analytic.efficiencies import Efficiencies, load_efficiencies
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import load_device
from rlplan.profiles.kernels.kernel_time import row_bytes
from rlplan.units import seconds_from_ms

Floats = npt.NDArray[np.float64]
# What the roofline says, the measured seconds, and whether it is fitted on.
Case = tuple[Callable[[Roofline], float], float, bool]

DEVICES = {"a100": "a100-80gb-sxm", "h100": "h100-80gb-sxm"}
OPERATORS = ("input_layernorm", "add", "mlp_act")
VALUE_BYTES = 2
# Rows at every multiple of 8 tokens and every batch say the same again and again; these span the range.
TOKENS = (1, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128)
EVERY = 4
EVERY_LENGTH = 3
BOUNDS = {
    "memory_efficiency": (0.1, 1.0),
    "kernel_seconds": (0.0, 2e-5),
    "attention_memory_efficiency": (0.1, 1.0),
    "attention_fixed_seconds": (0.0, 5e-5),
    "link_efficiency": (0.1, 1.0),
    "collective_fixed_seconds": (0.0, 1e-4),
}


def memory_cases(folder: Path, device: str) -> list[Case]:
    """Return norms, additions and activations with the least bytes that they move."""
    cases: list[Case] = []
    for record in records(folder, "*_mlp.csv", device):
        if int(record["num_tokens"]) not in TOKENS:
            continue
        fitted = (int(record["n_embd"]), int(record["n_expanded_embd"])) != LEFT_OUT_MODEL
        for operator, work in ops_mlp.operators_of(record).items():
            seconds = ops_mlp.measured_seconds(record, operator)
            if isinstance(work, ops_mlp.Product) or operator not in OPERATORS or seconds is None:
                continue
            num_bytes = row_bytes(work.kind, work.rows, work.width, VALUE_BYTES)

            def forecast(line: Roofline, num_bytes: int = num_bytes) -> float:
                return line.memory_bound(num_bytes).seconds

            cases.append((forecast, seconds, fitted))
    return cases


def decode_cases(folder: Path, device: str) -> list[Case]:
    """Return decode attention over a cache."""
    cases: list[Case] = []
    for record in records(folder, "attention_*.csv", device):
        if ops_attention.is_prefill(record) or int(record["batch_size"]) not in BATCHES:
            continue
        heads, tp = int(record["n_q_head"]), int(record["num_tensor_parallel_workers"])

        def forecast(
            line: Roofline, record: Record = record, heads: int = heads, tp: int = tp
        ) -> float:
            shape = Attention(
                name="attention",
                batch=int(record["batch_size"]),
                query_tokens=1,
                cached_tokens=int(record["kv_cache_size"]),
                q_heads=heads // tp,
                kv_heads=int(record["n_kv_head"]) // tp,
                head_dim=int(record["n_embd"]) // heads,
            )
            return line.attention(shape, ops_mlp.PRECISION).seconds

        seconds = seconds_from_ms(float(record["time_stats.attn_decode.median"]))
        cases.append((forecast, seconds, True))
    return cases[::EVERY_LENGTH]


def ring_cases(folder: Path, device: str) -> list[Case]:
    """Return all-reduces inside a node as rings over links."""
    cases: list[Case] = []
    for record in list(records(folder, "all_reduce_*.csv", device))[::EVERY]:
        ranks, size = int(record["num_workers"]), int(record["size"])
        if ranks > int(record["devices_per_node"]):
            continue
        steps = 2 * (ranks - 1)

        def forecast(line: Roofline, steps: int = steps, part: float = size / ranks) -> float:
            link = line.sheet.intra_node_bytes_per_second * line.shares.link_efficiency.value
            fixed = line.shares.collective_fixed_seconds.value
            return fixed + steps * (part / link + line.sheet.intra_node_latency_seconds)

        seconds = seconds_from_ms(float(record["time_stats.all_reduce.median"]))
        cases.append((forecast, seconds, True))
    return cases


def errors(device: str, efficiencies: Efficiencies, cases: Sequence[Case]) -> Floats:
    """Return forecast / measured - 1 of every case."""
    line = Roofline(load_device(device), efficiencies)
    return np.array([forecast(line) / seconds - 1 for forecast, seconds, _ in cases])


def fit(
    device: str, start: Efficiencies, names: Sequence[str], cases: Sequence[Case]
) -> Efficiencies:
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
        constants = load_efficiencies(load_device(device).architecture)
        groups = {
            ("memory_efficiency", "kernel_seconds"): memory_cases(ops / folder, device),
            ("attention_memory_efficiency", "attention_fixed_seconds"): decode_cases(
                ops / folder, device
            ),
            ("link_efficiency", "collective_fixed_seconds"): ring_cases(ops / folder, device),
        }
        print(device)
        for names, cases in groups.items():
            fitted = [case for case in cases if case[2]]
            if not fitted:
                continue
            constants = fit(device, constants, names, fitted)
            for name in names:
                print(f"  {name}: {getattr(constants, name).value:.3g}")
            show("fitted on", errors(device, constants, fitted))
            held = [case for case in cases if not case[2]]
            if held:
                show("held out", errors(device, constants, held))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
