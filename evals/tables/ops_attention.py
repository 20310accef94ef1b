"""Times of attention over a paged cache, prefill and decode (microsoft/vidur, MIT)."""

from collections.abc import Iterator
from typing import Final

from rlplan.estimate import Estimate
from rlplan.evals.rows import NO_DEVICE, fitted_on, row_key
from rlplan.evals.settings.serving import device_facts
from rlplan.models import Attention
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.profiles.facts import DeviceFacts
from rlplan.results.accuracy import Row
from rlplan.units import seconds_from_ms

PRECISION: Final = "fp16"

# The table that `benchmarks/fit_kernels.py` fits on: its device, query heads, KV heads and hidden size.
FITTED_TABLE: Final = ("a100-80gb-sxm", 64, 8, 8192)

SETTINGS = ("n_q_head", "n_kv_head", "num_tensor_parallel_workers", "batch_size",
            "prefill_chunk_size", "kv_cache_size", "is_prefill")  # fmt: skip


def rows_of(record: Record) -> Iterator[Row]:
    """Yield the forecast of a prefill chunk or a decode step."""
    kind = "prefill" if is_prefill(record) else "decode"
    shape = f"{record['batch_size']} x {record['prefill_chunk_size']} new tokens"
    label = f"{kind}, {shape}, {record['kv_cache_size']} cached"
    if not record["device"]:
        yield skipped_row(label, NO_DEVICE, kind=kind)
        return
    seconds = seconds_from_ms(float(record[f"time_stats.attn_{kind}.median"]))
    device = device_facts(record["device"])
    yield forecast_row(
        label, seconds, forecast_of(device, record), kind=kind,
        fitted=is_fitted_on(record),
    )  # fmt: skip


def is_prefill(record: Record) -> bool:
    """Tell whether a record is of a prefill chunk and not of a decode step."""
    return record["is_prefill"].lower() == "true"


def is_fitted_on(record: Record) -> bool:
    """Tell whether the attention's constants were fitted on a record."""
    return fitted_on(row_key(record, SETTINGS))


def is_known(record: Record) -> bool:
    """Tell whether a record is of the table that the fit had."""
    sizes = (int(record["n_q_head"]), int(record["n_kv_head"]), int(record["n_embd"]))
    return (record["device"], *sizes) == FITTED_TABLE


def forecast_of(device: DeviceFacts, record: Record) -> Estimate:
    """Return what the attention of a record takes on a device."""
    tp = int(record["num_tensor_parallel_workers"])
    heads = int(record["n_q_head"])
    shape = Attention(
        name="attention",
        batch=int(record["batch_size"]),
        query_tokens=int(record["prefill_chunk_size"]) if is_prefill(record) else 1,
        cached_tokens=int(record["kv_cache_size"]),
        q_heads=heads // tp,
        kv_heads=max(1, int(record["n_kv_head"]) // tp),
        head_dim=int(record["n_embd"]) // heads,
    )
    table_tokens = int(record.get("max_model_len") or 0)
    return device.attention(shape, PRECISION, paged=True, table_tokens=table_tokens)


READER = TableReader(
    about=(
        "Times of the attention of one layer over a paged cache. Half of the rows are fitted on."
    ),
    columns=frozenset({"time_stats.attn_decode.median", "prefill_chunk_size", "kv_cache_size"}),
    rows_of=rows_of,
    is_known=is_known,
)
