"""Host time of an engine's step: the host-overhead table of microsoft/vidur (MIT)."""

from collections.abc import Iterator

from rlplan.estimate import Estimate, Source
from rlplan.planner.measured.rows import Record, TableReader, forecast_row
from rlplan.profiles.catalog import load_engine
from rlplan.results.accuracy import Row
from rlplan.units import seconds_from_ms

ENGINE = "vllm-0.3"
PARTS = ("schedule", "prepare_inputs_e2e", "sampler_e2e", "process_model_outputs")
# The models of the table that the engine's constants were fitted on.
FITTED_MODELS = frozenset(
    {
        "meta-llama/Llama-2-7b-hf",
        "meta-llama/Llama-2-70b-hf",
        "codellama/CodeLlama-34b-Instruct-hf",
        "internlm/internlm-20b",
        "microsoft/phi-2",
        "Qwen/Qwen-72B",
    }
)
SPREAD = 0.10  # of host times over models, whose numbers of sequences are the same


def rows_of(record: Record) -> Iterator[Row]:
    """Yield the forecast of a step."""
    engine = load_engine(ENGINE)
    batch, tp = int(record["batch_size"]), int(record["tensor_parallel_degree"])
    measured = seconds_from_ms(sum(float(record[f"{part}_median"]) for part in PARTS))
    worker = engine.steps.worker_seconds if tp > 1 else 0.0
    seconds = engine.step_seconds + engine.steps.seconds_per_sequence * batch + worker
    yield forecast_row(
        f"{record['model_name']} TP{tp} batch {batch}",
        measured,
        Estimate(seconds, seconds * SPREAD, Source.FITTED),
        kind=f"TP {tp}",
        fitted=True,
    )


def is_known(record: Record) -> bool:
    """Tell whether a record is of a model of that table."""
    return record["model_name"] in FITTED_MODELS


READER = TableReader(
    about=(
        "Host seconds of a decode step of vLLM of 2024 by running sequences and tensor-parallel "
        "size, without the messages of its Ray workers: scheduling, inputs, sampling, outputs."
    ),
    columns=frozenset(
        {*(f"{part}_median" for part in PARTS), "batch_size", "tensor_parallel_degree"}
    ),
    rows_of=rows_of,
    is_known=is_known,
)
