"""Peak memory of prime-rl's trainer (PrimeIntellect-ai/prime-rl, benchmarks/baselines)."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from rlplan.dataflow import Task
from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Hyperparameters, Job, NodeGroup, Rewards
from rlplan.models import Adapter
from rlplan.plan import Recompute, TaskPlan
from rlplan.planner.measured.rows import Record, TableReader, skipped_row
from rlplan.profiles.facts import Facts, load_facts
from rlplan.profiles.jobs.resolve import resolve_job
from rlplan.results.accuracy import Row
from rlplan.simulator.memory.task_memory import CONTEXT
from rlplan.simulator.placed import PlacedTask, site_at
from rlplan.simulator.stages import task_memory
from rlplan.units import GIB
from rlplan.workload import Workload

TASK = Task(name="actor.update", role="actor", kind="train", inputs=())
COLUMNS = (
    "type", "model", "device", "n_gpus", "lora_rank", "seq_len", "micro_batches_per_gpu", "ac",
    "ep", "cp", "success", "error_reason",
)  # fmt: skip
PEAK = "peak_memory_gib"
NODE_GPUS = 8
ENGINES = {"rl": "prime-rl", "sft": "prime-rl-sft"}
MODES: dict[str, Recompute] = {
    "": "none",
    "None": "none",
    "Recompute": "full",
    "Selective": "selective",
    "Offload": "full-offload",
}
# Device sheets by what is in the name that a driver gives.
DEVICES = {
    "A6000": "rtx-a6000",
    "A100": "a100-80gb-sxm",
    "H100": "h100-80gb-sxm",
    "H200": "h200",
    "B200": "b200",
}
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
    # The trainer's own figure is what PyTorch's allocator reserved, which holds no context.
    yield Row(
        label=label,
        kind=kind,
        measured_bytes=float(record[PEAK]) * GIB if fits else None,
        forecast_bytes=float(peak - memory.transient[CONTEXT]),
        measured_fits=fits,
        forecast_fits=peak <= placed.device.sheet.memory_bytes,
    )


def _label(record: Record) -> str:
    adapter = f"LoRA {record['lora_rank']}" if record["lora_rank"] else "full"
    return (
        f"{record['model']} on {record['n_gpus']} x {record['device']}, {adapter}, "
        f"{record['seq_len']} tokens, {record['ac']}"
    )


def _placed(record: Record) -> PlacedTask:
    """Return the update that a record measured.

    Raises:
        FileError: Its model or device is not known.
    """
    gpus, cp = int(record["n_gpus"]), int(record["cp"] or 1)
    job = _job(
        record["model"],
        _device(record["device"]),
        gpus,
        int(record["seq_len"]),
        int(record["micro_batches_per_gpu"]) * gpus // cp,
        int(record["lora_rank"] or 0),
    )
    layout = TaskPlan(
        pool="all",
        dp=gpus // cp,
        cp=cp,
        ep=int(record["ep"] or 1),
        zero=3,
        engine=ENGINES[record["type"]],
        recompute=MODES[record["ac"]],
    )
    device = job.cluster[0].gpu
    site = site_at(job, device, 0, gpus)
    assert site is not None, "the job has as many GPUs as the row"
    return PlacedTask(TASK, layout, site, job, _facts(device))


def _device(name: str) -> str:
    return next((sheet for part, sheet in DEVICES.items() if part in name), name)


@lru_cache(maxsize=256)
def _job(model: str, device: str, gpus: int, tokens: int, sequences: int, rank: int) -> Job:
    job = Job(
        name="training alone",
        algorithm="reinforce-plus-plus",
        models=FrozenDict({"actor": model}),
        workload=Workload(prompts=sequences, prompt_tokens=1, response_tokens=1),
        cluster=(
            NodeGroup(
                gpu=device, gpus_per_node=min(gpus, NODE_GPUS), nodes=max(1, gpus // NODE_GPUS)
            ),
        ),
        engines=Engines(train="prime-rl"),
        adapters=FrozenDict({"actor": Adapter(rank=rank)}) if rank else None,
        rewards=Rewards(function="digits"),
        hyperparameters=Hyperparameters(kl_coefficient=0.0),
    )
    job = resolve_job(job, Path(), file="trainer_memory")
    # Sequences of made-up tokens may be longer than the positions that a model was trained for.
    workload = replace(job.workload, prompt_tokens=tokens - 1)
    return replace(job, workload=workload)


@lru_cache(maxsize=16)
def _facts(device: str) -> Facts:
    return load_facts(_job("qwen2.5-0.5b", device, 1, 2, 1, 0))


READER = TableReader(
    about=(
        "Peak memory of prime-rl's trainer alone (FSDP2, two micro-batches of one sequence a GPU), as "
        "PyTorch's allocator reserved it; rows that ran out of memory are judged by the verdict. Given: "
        "all sizes, checkpointing and the head's chunks. No constant is fitted on it."
    ),
    columns=frozenset({*COLUMNS, PEAK}),
    rows_of=rows_of,
)
