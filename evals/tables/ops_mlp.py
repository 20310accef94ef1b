"""Operator times of a layer without its attention: products, norms, activation, residual, embedding.

The tables of microsoft/vidur (MIT): the kernels of one forward pass on one GPU, by tokens and
tensor-parallel size, as the profiler counts them, in whole microseconds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rlplan.estimate import Estimate
from rlplan.evals.rows import NO_DEVICE
from rlplan.evals.settings.serving import device_facts
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.profiles.facts import DeviceFacts
from rlplan.profiles.kernels.kernel_time import RowKind
from rlplan.results.accuracy import Row
from rlplan.units import seconds_from_ms

NO_GATE: Final = "an activation without a gate has a kernel that no table measured"
PRECISION: Final = "fp16"

# What `benchmarks/fit_kernels.py` fits on, by device: (hidden size, MLP width), and the tensor-parallel
# size that it leaves out.
FITTED_MODELS: Final = {
    "a100-80gb-sxm": ((4096, 11008), (8192, 22016)),
    "h100-80gb-sxm": ((4096, 11008),),
}
HELD_OUT_TP: Final = 4


@dataclass(frozen=True, slots=True)
class Product:
    """Multiply (m x k) by (k x n)."""

    m: int
    k: int
    n: int


@dataclass(frozen=True, slots=True)
class RowWork:
    """Work through rows of so many values, and of so many in a second tensor."""

    kind: RowKind
    rows: int
    width: int
    second_width: int = 0


def operators_of(record: Record) -> Mapping[str, Product | RowWork]:
    """Return the operators of a record by their column's name."""
    tokens, tp = int(record["num_tokens"]), int(record["num_tensor_parallel_workers"])
    hidden, ffn = int(record["n_embd"]), int(record["n_expanded_embd"]) // tp
    heads, kv_heads = int(record["n_head"]), int(record["n_kv_head"])
    query = hidden // tp
    kv = max(1, kv_heads // tp) * (hidden // heads)
    gates = 2 if record["use_gated_mlp"].lower() == "true" else 1
    work: dict[str, Product | RowWork] = {
        "emb": RowWork("embedding", tokens, hidden),
        "input_layernorm": RowWork("norm", tokens, hidden),
        "attn_pre_proj": Product(tokens, hidden, query + 2 * kv),
        "attn_rope": RowWork("rope", tokens, query, kv),
        "attn_post_proj": Product(tokens, query, hidden),
        "post_attention_layernorm": RowWork("norm", tokens, hidden),
        "mlp_up_proj": Product(tokens, hidden, gates * ffn),
        "mlp_down_proj": Product(tokens, ffn, hidden),
        "add": RowWork("residual", tokens, hidden),
    }
    return {**work, "mlp_act": RowWork("activation", tokens, ffn)} if gates > 1 else work


def measured_seconds(record: Record, operator: str) -> float | None:
    """Return an operator's median in seconds; None where it was not measured or rounds to 0."""
    text = record.get(f"time_stats.{operator}.median")  # some models lack some operators
    milliseconds = float(text) if text else 0.0
    return seconds_from_ms(milliseconds) if milliseconds > 0 else None


def rows_of(record: Record) -> Iterator[Row]:
    """Yield a forecast for every operator of a record."""
    tokens, tp = record["num_tokens"], record["num_tensor_parallel_workers"]
    label = f"hidden {record['n_embd']}, TP {tp}, {tokens} tokens"
    if not record["device"]:
        yield skipped_row(label, NO_DEVICE)
        return
    device = device_facts(record["device"])
    fitted = is_fitted_on(record)
    work = operators_of(record)
    for operator, each in work.items():
        seconds = measured_seconds(record, operator)
        if seconds is None:
            reason = "not measured, or shorter than the profiler's resolution"
            yield skipped_row(label, reason, kind=operator)
            continue
        forecast = forecast_of(device, each)
        yield forecast_row(label, seconds, forecast, kind=operator, fitted=fitted)
    if "mlp_act" not in work:
        yield skipped_row(label, NO_GATE, kind="mlp_act")


def is_fitted_on(record: Record) -> bool:
    """Tell whether the kernels' constants were fitted on a record."""
    held_out = int(record["num_tensor_parallel_workers"]) == HELD_OUT_TP
    return is_known(record) and not held_out


def is_known(record: Record) -> bool:
    """Tell whether a record is of a model whose table the fit had, on the same device."""
    model = (int(record["n_embd"]), int(record["n_expanded_embd"]))
    return model in FITTED_MODELS.get(record["device"], ())


def forecast_of(device: DeviceFacts, work: Product | RowWork) -> Estimate:
    """Return what an operator takes on a device."""
    if isinstance(work, Product):
        return device.gemm(work.m, work.k, work.n, PRECISION)
    return device.rowwise(work.kind, work.rows, work.width, PRECISION, work.second_width)


READER = TableReader(
    about=(
        "Times of single operators on one GPU. Constants are fitted on Llama-2-7B and, on A100, "
        "CodeLlama-34B, at TP 1, 2 and 8."
    ),
    columns=frozenset({"time_stats.mlp_up_proj.median", "num_tokens", "n_expanded_embd"}),
    rows_of=rows_of,
    is_known=is_known,
)
