"""Offline throughput of TensorRT-LLM: all requests at the start, in-flight batching."""

import math
from collections.abc import Iterator

from rlplan.evals.rows import fitted_on, row_key
from rlplan.evals.settings.serving import Service, serve
from rlplan.models import PRECISIONS, Precision
from rlplan.parts import num_parameters
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.profiles.catalog import device_names, load_device, load_engine, load_model, model_names
from rlplan.results.accuracy import Row

ENGINE, ENGINE_1 = "tensorrt-llm", "tensorrt-llm-1"
KEY = ("model", "gpu", "tp", "isl", "osl")
COLUMNS = frozenset((*KEY, "precision", "num_requests", "output_tok_s"))

MODELS = {
    "LLaMA v3.1 8B": "llama-3.1-8b",
    "LLaMA v3.1 70B": "llama-3.1-70b",
    "LLaMA v3.1 405B": "llama-3.1-405b",
    "Mistral 7B": "mistral-7b",
    "Mixtral 8x7B": "mixtral-8x7b",
    "Mixtral 8x22B": "mixtral-8x22b",
}
DEVICES = {
    "A100-SXM4-80GB": "a100-80gb-sxm",
    "H100-SXM-80GB": "h100-80gb-sxm",
    "H200-SXM-141GB": "h200",
    "GH200-480GB": "gh200-480gb",
    "L40S": "l40s",
}
# Of the engine's column: enable_attention_dp, with which perf-overview runs mixtures of experts; their ep_size is not
# published and taken for all GPUs.
ATTENTION_BY_RANK = "attention DP"
PRECISION: dict[str, Precision] = {"fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}

# trtllm-bench's rule for an engine's largest batch and tokens (TensorRT-LLM,
# tensorrt_llm/bench/build/tuning.py): as many requests as the cache can hold whole, within bounds,
# rounded up.
LARGEST_BATCH = 4096
LARGEST_TOKENS = 32768
LEAST_BATCH = 64
LEAST_TOKENS = 2048
BATCH_STEPS = ((256, 32), (1024, 128), (math.inf, 256))
TOKEN_STEPS = ((4096, 256), (8192, 512), (math.inf, 1024))


def rows_of(record: Record) -> Iterator[Row]:
    """Yield the row of a record."""
    label = f"{record['model']} {record['gpu']} TP{record['tp']} {record['isl']}/{record['osl']}"
    kind = record["gpu"]
    seconds = measured_seconds(record)
    if reason := unknown(record):
        yield skipped_row(label, reason, kind=kind, measured_seconds=seconds)
        return
    estimate = serve(service_of(record), load_engine(engine_of(record)))
    fitted = engine_of(record) == ENGINE and fitted_on(row_key(record, KEY))
    yield forecast_row(label, seconds, estimate, kind=kind, fitted=fitted)


def model_of(record: Record) -> str:
    """Return the name of the sheet of a record's model, whether there is one or not."""
    return MODELS.get(record["model"], record["model"])


def device_of(record: Record) -> str:
    """Return the name of the sheet of a record's GPU, whether there is one or not."""
    return DEVICES.get(record["gpu"], record["gpu"])


def engine_of(record: Record) -> str:
    """Return the engine's sheet; tables that name none are of 0.17."""
    return ENGINE_1 if "TensorRT-LLM 1" in record.get("engine", "") else ENGINE


def measured_seconds(record: Record) -> float:
    """Return the seconds of a record: all output tokens by their rate."""
    return int(record["num_requests"]) * int(record["osl"]) / float(record["output_tok_s"])


def unknown(record: Record) -> str | None:
    """Return why a record cannot be forecast; None if it can."""
    if model_of(record) not in model_names():
        return f"no sheet of model {record['model']}"
    if device_of(record) not in device_names():
        return f"no sheet of GPU {record['gpu']}"
    if record["precision"] not in PRECISION:
        return f"precision {record['precision']} is not modelled"
    return None


def service_of(record: Record) -> Service:
    """Return what a record measured."""
    model, precision = load_model(model_of(record)), PRECISION[record["precision"]]
    device, tp = device_of(record), int(record["tp"])
    prompt, response = int(record["isl"]), int(record["osl"])
    engine = load_engine(engine_of(record))
    by_rank = ATTENTION_BY_RANK in record.get("engine", "")
    value_bytes = PRECISIONS[precision].weight_bytes
    weights = num_parameters(model) * value_bytes
    free = engine.memory_fraction * (load_device(device).memory_bytes * tp - weights)
    heads = max(tp, model.num_kv_heads)
    token_bytes = 2 * model.num_layers * heads * model.head_dim * value_bytes
    batch = min(free / (token_bytes * (prompt + response)), LARGEST_BATCH)
    tokens = min(batch * (1 + prompt / response), LARGEST_TOKENS)
    return Service(
        device=device,
        model=model,
        precision=precision,
        tp=1 if by_rank else tp,
        ep=tp if by_rank else 1,
        copies=tp if by_rank else 1,
        whole_windows=True,
        requests=int(record["num_requests"]),
        prompt_tokens=prompt,
        response_tokens=response,
        max_running=max(LEAST_BATCH, _rounded_up(batch, BATCH_STEPS)),
        max_batched_tokens=max(LEAST_TOKENS, _rounded_up(tokens, TOKEN_STEPS)),
    )


def _rounded_up(value: float, steps: tuple[tuple[float, int], ...]) -> int:
    step = next(size for bound, size in steps if value < bound)
    return step * math.ceil(value / step)


READER = TableReader(
    about=(
        "Seconds to serve all requests by TensorRT-LLM, one replica of TP GPUs. Given: model, GPU, "
        "precision, TP, lengths, requests; the engine's batch and tokens by trtllm-bench's rule."
    ),
    columns=COLUMNS,
    rows_of=rows_of,
)
