"""Mixtures of experts behind the servers of vLLM and SGLang: all requests at the start, or so many at a time."""

from collections.abc import Iterator

from rlplan.errors import UnknownNameError
from rlplan.evals.rows import fitted_on, row_key
from rlplan.evals.settings.serving import Service, cache_bytes, serve
from rlplan.models import PRECISIONS, WIDE
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.results.accuracy import Row

# Requests of 128 tokens that answer with four: what such a run takes is mostly reading them, and this is fitted to them.
SHORT = "128/4"
# Seconds that a server's process takes for each conversation before the first of them is computed: it reads a request, puts it
# into the model's template, tokenizes it. Medians of the runs of `SHORT` in evals/held/servers.csv, of whose first tokens twice
# the mean less the last one's is when prompts were begun, as they are computed at an even pace: 11.2 ms (5 to 17) by vLLM 0.11.0
# and 2.0 (1.5 to 2.3) by SGLang 0.5. vLLM 0.11.0 parses the template for each request (pull request 25794,
# entrypoints/chat_utils.py: resolve_chat_template_kwargs), until pull request 26227; before 0.9.2 it did so elsewhere, for 6 to 8 s
# of a thousand (pull request 20065). Where it has none, of gpt-oss, eight runs on the same site have 1.7 (0.2 to 2.3), which
# later versions are taken to need too.
REQUEST_SECONDS = {"vllm 0.11": 1.12e-2, "vllm": 1.7e-3, "sglang": 2.0e-3}

KEY = (
    "engine",
    "model",
    "gpu",
    "precision",
    "tp",
    "ep",
    "concurrency",
    "input_tokens",
    "output_tokens",
)
COLUMNS = frozenset(
    ("engine", "version", "model", "gpu", "gpus", "precision", "tp", "ep", "dataset", "requests",
     "concurrency", "input_tokens", "output_tokens", "duration_s", "max_running", "max_batched_tokens")
)  # fmt: skip
# Sheets by an engine and the first words of its version; a server hands its tokens on to another process.
ENGINES = {
    ("vllm", "0.11"): "vllm-0.11-server",
    ("vllm", "0.12"): "vllm-0.11-server",
    ("vllm", "0.13"): "vllm-0.11-server",
    ("vllm", "0.10"): "vllm-0.11-server",
    ("vllm", ""): "vllm-0.15-server",
    ("sglang", "0.4"): "sglang-0.4",
    ("sglang", "0.5.2"): "sglang-0.5",
    ("sglang", "0.5.3"): "sglang-0.5",
    ("sglang", "0.5.4"): "sglang-0.5",
    ("sglang", "0.5.5"): "sglang-0.5",
    ("sglang", "0.5.10"): "sglang-0.5.10",
    ("sglang", "0.5.11"): "sglang-0.5.10",
    ("sglang", "0.5.12"): "sglang-0.5.10",
    ("sglang", "0.5.13"): "sglang-0.5.10",
    ("sglang", "0.5.14"): "sglang-0.5.14",
    ("sglang", "0.5.15"): "sglang-0.5.14",
    ("sglang", "0.5.16"): "sglang-0.5.14",
    ("sglang", ""): "sglang-0.5.6",
}
# The set of conversations that vLLM's benchmark draws from, prompts up to 1,024 tokens and 2,048 with their response
# (benchmarks/datasets.py, is_valid_sequence). Its lengths' spread over their mean: an engineering assumption.
CONVERSATIONS, CONVERSATIONS_SPREAD, CONVERSATIONS_LONGEST = "sharegpt", 1.1, 2048
# Lengths that SGLang's benchmark draws by default: any up to the one that it is given (bench_serving.py, random_range_ratio 0).
EVEN = "uniform"
FULL = "weights leave no room for a cache on the GPUs that are published"
# Of the column `fit`.
UNFITTED = "none"
# SGLang's own where a row has none: max_running_requests is 2,048 at least, and what a card holds decides
# (server_args.py and model_runner.py of 0.5), mem_fraction_static some 0.87 of cards of 80 GB and more.
MOST_RUNNING, STATIC_FRACTION = 2048, 0.87


def rows_of(record: Record) -> Iterator[Row]:
    """Yield the row of a record."""
    gpus, requests = record["gpus"], record["dataset"]
    label = f"{record['engine']} {record['model']} on {gpus} {record['gpu']}, {record['precision']}, {requests}"
    seconds, kind = float(record["duration_s"]), f"{record['engine']} {record['gpu']}"
    found = (
        sheet
        for (name, version), sheet in ENGINES.items()
        if record["engine"] == name and record["version"].startswith(version)
    )
    engine = next(found, record["engine"])
    try:
        load_device(record["gpu"])
        service, sheet = service_of(record), load_engine(engine)
    except UnknownNameError as error:
        yield skipped_row(label, str(error), kind=kind, measured_seconds=seconds)
        return
    if not cache_bytes(service, sheet):
        yield skipped_row(label, FULL, kind=kind, measured_seconds=seconds)
        return
    forecast = serve(service, sheet)
    yield forecast_row(label, seconds, forecast, kind=kind, fitted=is_fitted(record))


def is_fitted(record: Record) -> bool:
    """Tell whether a constant is fitted on a record: what a server takes for a request, or how far forecasts are off.

    A table whose column `fit` says so was collected when all constants stood.
    """
    if record.get("fit") == UNFITTED:
        return False
    if record["dataset"] != EVEN:
        return record["dataset"] == SHORT
    return record["concurrency"] == "1" or fitted_on(row_key(record, KEY))


def starting_seconds(record: Record) -> float:
    """Return the seconds in which a record's server makes prompts of the requests that it is sent at once."""
    server, count = f"{record['engine']} {record['version']}", int(record["requests"])
    each = (seconds for name, seconds in REQUEST_SECONDS.items() if server.startswith(name))
    return min(count, int(record["concurrency"] or count)) * next(each, 0.0)


def service_of(record: Record) -> Service:
    """Return what a record measured.

    Raises:
        UnknownNameError: No sheet is of its model, or its precision is not known.
    """
    count = int(record["requests"])
    talks = record["dataset"] == CONVERSATIONS
    precision = record["precision"]
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
    most = int(record["max_running"] or MOST_RUNNING)
    fraction = record.get("memory_fraction", "")
    return Service(
        device=record["gpu"],
        model=load_model(record["model"]),
        precision=precision,
        tp=int(record["tp"]),
        ep=int(record["ep"] or 1),
        requests=count,
        prompt_tokens=round(int(record["input_tokens"]) / count),
        response_tokens=round(int(record["output_tokens"]) / count),
        max_running=min(most, int(record["concurrency"] or most)),
        max_batched_tokens=int(record["max_batched_tokens"]),
        memory_fraction=float(fraction) if fraction else STATIC_FRACTION,
        cache_value_bytes=PRECISIONS[WIDE[precision]].weight_bytes,
        spread=CONVERSATIONS_SPREAD if talks else 0.0,
        even=record["dataset"] == EVEN,
        longest_tokens=CONVERSATIONS_LONGEST if talks else 0,
        starting_seconds=starting_seconds(record),
    )


READER = TableReader(
    about=(
        "Seconds to serve all requests by the server of vLLM or SGLang, one replica, requests all at once or so many at a "
        "time. Given: model, GPU, precision, TP, EP, mean lengths, requests, the engine's limits; the spread of "
        "conversations' lengths is assumed."
    ),
    columns=COLUMNS,
    rows_of=rows_of,
)
