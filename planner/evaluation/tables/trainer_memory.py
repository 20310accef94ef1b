"""Peak memory of prime-rl's trainer (PrimeIntellect-ai/prime-rl, benchmarks/baselines)."""

from collections.abc import Iterator

from planner.evaluation.rows import Record, skipped_row
from rlplan.dataflow import Task
from rlplan.errors import FileError
from rlplan.plan import Recompute
from rlplan.results.accuracy import Row
from rlplan.units import GIB
from simulator.memory.task_memory import CONTEXT
from simulator.stages import task_memory

TASK = Task(name="actor.update", role="actor", kind="train", inputs=())
SETTINGS = ("type", "model", "device", "n_gpus", "lora_rank", "seq_len", "ac", "ep", "cp")
PEAK = "peak_memory_gib"
NODE_GPUS = 8
ENGINES = {"rl": "prime-rl", "sft": "prime-rl-sft"}
MODES: dict[str, Recompute] = {
    "": "none", "None": "none", "Recompute": "full", "Selective": "selective", "Offload": "full-offload",
}  # fmt: skip
OUT_OF_MEMORY = "OutOfMemory"


def rows_of(record: Record) -> Iterator[Row]:
    """Yield the peak of a record, or its verdict where the run ran out of memory."""
    fits = record["success"] == "True"
    kind, label = record["type"], _label(record)
    if not fits and OUT_OF_MEMORY not in record["error_reason"]:
        yield skipped_row(label, "it failed for another reason than memory", kind=kind)
        return
    try:
        placed = _placed(record)
    except FileError as error:
        yield skipped_row(label, str(error), kind=kind)
        return
    memory = task_memory(placed)
    peak = memory.resident_bytes + memory.transient_bytes
    # The trainer's own figure is what PyTorch's allocator reserved, to which a context adds nothing.
    reserved = peak - memory.transient[CONTEXT]
    yield Row(
        label=label,
        kind=kind,
        measured_bytes=float(record[PEAK]) * GIB if fits else None,
        forecast_bytes=float(reserved),
        measured_fits=fits,
        forecast_fits=peak <= placed.device.sheet.memory_bytes,
        fitted=False,
    )


def _label(record: Record) -> str:
    adapter = f"LoRA {record['lora_rank']}" if record["lora_rank"] else "full"
    return (
        f"{record['model']} on {record['n_gpus']} x {record['device']}, {adapter}, "
        f"{record['seq_len']} tokens, {record['ac']}"
    )
