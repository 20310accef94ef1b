"""Iterations of Megatron-LM on DGX A100, as NVIDIA published them in three papers.

Narayanan et al. 2021 (arXiv:2104.04473), table 1; Korthikanti et al. 2022 (arXiv:2205.05198), table
5; Smith et al. 2022 (arXiv:2201.11990), section 3.4. The three tables differ in a few columns.
"""

from rlplan.evals.settings.pretraining import (
    Iteration,
    Pretraining,
    gpt,
    is_fitted,
    training_row,
)
from rlplan.plan import Recompute
from rlplan.planner.measured.rows import Record, TableReader
from rlplan.units import bytes_per_second_from_gbps

SHAPE = ("heads", "hidden", "layers", "tp", "pp", "dp", "num_gpus", "global_batch", "seq_len")
SETTINGS = ("num_gpus", "global_batch", "recompute")  # what tells the rows of each table apart
SECONDS = ("iter_time_s_derived", "iter_time_s")
NETWORK_GBPS = 8 * 200.0  # one HDR card a GPU
MODES: dict[str, Recompute] = {"none": "none", "selective": "selective", "full": "full"}


def iteration_of(record: Record) -> Iteration:
    """Return the settings of a record."""
    number = {column: int(float(record[column])) for column in SHAPE}
    tp, layers = number["tp"], number["layers"]
    seconds = next((record[column] for column in SECONDS if record.get(column)), "")
    engine, kind = _software(record)
    run = Pretraining(
        model=gpt(number["hidden"], number["heads"], layers, _padded(int(record["vocab"]), tp)),
        engine=engine,
        device="a100-80gb-sxm",
        # Smith et al. 2022, section 3.4, trained in bfloat16.
        precision="fp16" if record.get("precision") == "fp16" else "bf16",
        gpus=number["num_gpus"],
        network_bytes_per_second=bytes_per_second_from_gbps(NETWORK_GBPS),
        tp=tp,
        pp=number["pp"],
        dp=number["dp"],
        chunks=_chunks(record, layers // number["pp"]),
        micro_batch=int(record.get("micro_batch") or 1),
        global_batch=number["global_batch"],
        sequence_tokens=number["seq_len"],
        recompute=MODES[record["recompute"]],
    )
    return Iteration(
        run=run,
        seconds=float(seconds),
        kind=kind,
        fitted=is_fitted(record, SETTINGS),
        note="" if record.get("micro_batch") else "micro-batch 1 assumed",
    )


def _software(record: Record) -> tuple[str, str]:
    """Return the engine of a table, by the columns that only it has, and its name for people."""
    if "sequence_parallel" in record:
        sharded = record["sequence_parallel"].lower() == "true"
        return ("megatron-2022" if sharded else "megatron-2022-full"), "Megatron-LM of 2022"
    if "micro_batch" in record:
        return "megatron-2021", "Megatron-LM of 2021"
    return "megatron-deepspeed-2021", "Megatron-DeepSpeed of 2021"


def _chunks(record: Record, stage_layers: int) -> int:
    if record.get("virtual_pipeline_chunks"):
        return int(float(record["virtual_pipeline_chunks"]))
    if record.get("layers_per_virtual_stage"):
        return max(1, stage_layers // int(float(record["layers_per_virtual_stage"])))
    return 1


def _padded(vocabulary: int, tp: int) -> int:
    """Return the vocabulary padded to a multiple of 128 per tensor-parallel rank, as Megatron does."""
    multiple = 128 * tp
    return -(-vocabulary // multiple) * multiple


READER = TableReader(
    about=(
        "Seconds of a training iteration of Megatron-LM on DGX A100. Given: all parallel sizes, "
        "schedule and recomputation; the micro-batch is 1 where it is not said; 8 x HDR200 a node."
    ),
    columns=frozenset({*SHAPE, *SETTINGS, "vocab", "gpu"}),
    any_of=frozenset(SECONDS),
    none_of=frozenset({"local_batch", "ffn"}),
    rows_of=lambda record: (training_row(iteration_of(record)),),
)
