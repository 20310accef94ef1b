"""Generation by LMDeploy's TurboMind: a fixed number of concurrent callers, several rounds each."""

from collections.abc import Iterator

from rlplan.evals.rows import fitted_on, row_key
from rlplan.evals.settings.serving import Service, serve
from rlplan.models import Precision
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.profiles.catalog import load_engine, load_model
from rlplan.results.accuracy import Row

ENGINE = "lmdeploy-turbomind"
KEY = ("gpu", "model", "batch", "tp", "prompt_tokens", "completion_tokens")
THROUGHPUT = "throughput(token/s)"
COLUMNS = frozenset((*KEY, "dtype", THROUGHPUT))

MODELS = {
    "llama2-7b": "llama-2-7b",
    "llama2-13b": "llama-2-13b",
    "llama2-70b": "llama-2-70b",
    "internlm-20b": "internlm-20b",
}
DEVICES = {"A100-80GB": "a100-80gb-sxm"}
PRECISION: dict[str, Precision] = {"fp16": "fp16", "bf16": "bf16"}

# Requests that every caller sends one after another: the default of LMDeploy's
# benchmark/profile_generation.py, whose throughput is over all rounds.
ROUNDS = 10


def rows_of(record: Record) -> Iterator[Row]:
    """Yield the row of a record."""
    lengths = f"{record['prompt_tokens']}/{record['completion_tokens']}"
    label = f"{record['model']} TP{record['tp']} batch {record['batch']} {lengths}"
    seconds = measured_seconds(record)
    kind = record["model"]
    if reason := unknown(record):
        yield skipped_row(label, reason, kind=kind, measured_seconds=seconds)
        return
    estimate = serve(service_of(record), load_engine(ENGINE))
    fitted = fitted_on(row_key(record, KEY))
    yield forecast_row(label, seconds, estimate, kind=kind, fitted=fitted)


def measured_seconds(record: Record) -> float:
    """Return the seconds of a record: all rounds' output tokens by their rate."""
    tokens = ROUNDS * int(record["batch"]) * int(record["completion_tokens"])
    return tokens / float(record[THROUGHPUT])


def unknown(record: Record) -> str | None:
    """Return why a record cannot be forecast; None if it can."""
    if record["model"] not in MODELS:
        return f"no sheet of model {record['model']}"
    if record["gpu"] not in DEVICES:
        return f"no sheet of GPU {record['gpu']}"
    if record["dtype"] not in PRECISION:
        return f"precision {record['dtype']} is not modelled"
    return None


def service_of(record: Record) -> Service:
    """Return what a record measured.

    Callers that wait for their own response keep `batch` requests with the engine: a queue of all
    rounds, of which so many run at a time.
    """
    return Service(
        device=DEVICES[record["gpu"]],
        model=load_model(MODELS[record["model"]]),
        precision=PRECISION[record["dtype"]],
        tp=int(record["tp"]),
        requests=ROUNDS * int(record["batch"]),
        prompt_tokens=int(record["prompt_tokens"]),
        response_tokens=int(record["completion_tokens"]),
        max_running=int(record["batch"]),
    )


READER = TableReader(
    about=(
        "Seconds to serve ten rounds of `batch` callers by LMDeploy's TurboMind, one replica of TP "
        "GPUs. Given: model, GPU, precision, TP, callers, lengths."
    ),
    columns=COLUMNS,
    rows_of=rows_of,
)
