"""Layers of transformers' models, products and attention on one GPU, as `benchmarks/transformers_layers.py` writes them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from rlplan.estimate import Estimate
from rlplan.evals.settings.serving import NO_NETWORK, device_facts
from rlplan.models import Attention, Batch, KeptBatch, Precision
from rlplan.parts import layer_parameters
from rlplan.plan import TaskPlan
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.profiles.catalog import load_engine, load_model
from rlplan.results.accuracy import Row
from rlplan.sheets import DeviceSheet, KernelRates
from rlplan.simulator.costs.pricing import fused_attention_seconds, pass_seconds
from rlplan.simulator.costs.setting import Setting, setting_on
from rlplan.simulator.model import layer_activation_bytes
from rlplan.simulator.placed import Site

COLUMNS = (
    "device", "part", "model", "variant", "sequences", "tokens", "work", "seconds", "host_seconds", "bytes",
)  # fmt: skip
ENGINE = "fsdp2-hf"
LOOPED = "fsdp2+eager"
PRODUCTS: dict[str, Precision] = {"bf16": "bf16", "fp8-tensor": "fp8", "fp8-row": "fp8"}
# Share of its seconds for which the host launches, from which on it is the host that is measured.
BOUND_BY_HOST = 0.9
# A call alone is waited for from the host, which takes some tens of microseconds.
LEAST_SECONDS = 2e-4
# Engine whose attention is cuDNN's, and the lengths of those of its calls which that one's rates are fitted to.
CUDNN_ENGINE = "megatron-core-2026"
CUDNN_FITTED = ("1024", "16384")
# Calls of a pass with a backward pass: one forward, and one more where activations are computed again.
FORWARD_PASSES = {"infer": 1, "train": 1, "train-recompute": 2}


def rows_of(record: Record) -> Iterator[Row]:
    """Yield the seconds of a record, and the bytes that a layer keeps where these are its peak."""
    label = (
        f"{record['model']} {record['variant']} {record['sequences']} x {record['tokens']} "
        f"{record['work']} on {record['device']}"
    )
    seconds, part = float(record["seconds"]), record["part"]
    if part == "product" and record["variant"] in PRODUCTS:
        yield _row(label, f"products, {PRODUCTS[record['variant']]}", seconds, _product(record))
    elif part == "attention":
        flash = record["variant"] == "flash"
        kind = "attention, flash" if flash else "attention, cuDNN"
        row = _row(label, kind, seconds, _attention(record))
        fitted = flash or record["tokens"] in CUDNN_FITTED
        yield replace(row, fitted=fitted and row.skipped is None)
    elif part == "layer":
        host = float(record["host_seconds"]) / seconds > BOUND_BY_HOST
        loops = "experts one by one" if record["variant"] == LOOPED else "layers"
        kind = f"{loops}, bound by the {'host' if host else 'GPU'}"
        yield forecast_row(label, seconds, _layer(record), kind=kind)
        kept = _kept_bytes(record)
        if record["work"] == "train" and float(record["bytes"]) > _gradient_bytes(record):
            yield Row(
                label=label,
                kind="layers, bytes",
                measured_bytes=float(record["bytes"]),
                forecast_bytes=float(kept),
            )


def _row(label: str, kind: str, seconds: float, forecast: Estimate) -> Row:
    if seconds < LEAST_SECONDS:
        why = "so short a call is the host's"
        return skipped_row(label, why, kind=kind, measured_seconds=seconds)
    return forecast_row(label, seconds, forecast, kind=kind)


def _product(record: Record) -> Estimate:
    inner, outer = (int(size) for size in record["model"].split("x"))
    precision = PRODUCTS[record["variant"]]
    return device_facts(record["device"]).gemm(int(record["tokens"]), inner, outer, precision)


def _attention(record: Record) -> Estimate:
    heads, rest = record["model"].split("/")
    keys, width = rest.split("x")
    sequences, tokens = int(record["sequences"]), int(record["tokens"])
    shape = Attention("core", sequences, tokens, 0, int(heads), int(keys), int(width))
    facts = device_facts(record["device"])
    engine = ENGINE if record["variant"] == "flash" else CUDNN_ENGINE
    rates = load_engine(engine).kernels_of(facts.sheet)
    forward = fused_attention_seconds(facts, rates, shape, "bf16", backward=False)
    if record["work"] == "forward":
        return forward
    return forward + fused_attention_seconds(facts, rates, shape, "bf16", backward=True)


def _as_cudnn(rates: KernelRates, sheet: DeviceSheet) -> KernelRates:
    """Return an engine's kernels with cuDNN's attention."""
    own = load_engine(CUDNN_ENGINE).kernels_of(sheet)
    return replace(
        rates,
        attention_rate=own.attention_rate,
        attention_backward_rate=own.attention_backward_rate,
        attention_half_tokens=own.attention_half_tokens,
    )


def _layer(record: Record) -> Estimate:
    setting, model = _setting(record["device"], record["variant"]), load_model(record["model"])
    sequences, each = int(record["sequences"]), int(record["tokens"])
    batch = Batch(sequences=sequences, tokens=sequences * each, sequence_tokens=each, head_tokens=0)
    forward = pass_seconds(setting, model, "layer", batch).total
    found = forward * FORWARD_PASSES[record["work"]]
    if record["work"] == "infer":
        return found
    return found + pass_seconds(setting, model, "layer", batch, "backward").total


def _kept_bytes(record: Record) -> int:
    setting = _setting(record["device"], record["variant"])
    sequences, each = int(record["sequences"]), int(record["tokens"])
    kernels = load_engine(ENGINE).memory.layers
    kept = KeptBatch(setting.shard, sequences, each, fused_attention=True, kernels=kernels)
    return layer_activation_bytes(load_model(record["model"]), kept, "none")


def _gradient_bytes(record: Record) -> float:
    """Return the gradients of a layer, which the peak is where activations are few; with room for doubt."""
    return 1.5 * 2 * layer_parameters(load_model(record["model"]))


@lru_cache(maxsize=8)
def _setting(device: str, variant: str) -> Setting:
    engine, facts = load_engine(ENGINE), device_facts(device)
    layout = TaskPlan(pool="all", engine=ENGINE)
    setting = setting_on(layout, engine, facts, Site(device, 1, 1, NO_NETWORK), "bf16")
    # What torch takes by itself there is cuDNN's attention, not the one that trainers call.
    kernels = _as_cudnn(setting.kernels, facts.sheet)
    loop = engine.expert_loop if variant == LOOPED else None
    return replace(setting, kernels=kernels, expert_loop=loop)


READER = TableReader(
    about=(
        "A layer of transformers' models under FSDP2 on one GPU, random weights, torch's attention without padding: "
        "seconds of its passes and what it keeps of them, and products and attention alone. Layers are forecast as "
        "the engine fsdp2-hf has them, but for attention, which is cuDNN's there. Where the host launches for nine "
        "tenths of the time, the machine's host is measured, a virtual one. From its rows of FlashAttention 2 come "
        "fsdp2-hf's rate of attention on Hopper and how it depends on lengths, by which they are forecast, and from those of "
        "cuDNN's attention of 1,024 and 16,384 tokens that of Megatron-Core's. No other constant is fitted on it."
    ),
    columns=frozenset(COLUMNS),
    rows_of=rows_of,
)
