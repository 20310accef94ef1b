"""Seconds to bring trained weights to the engine, by framework and method, as their authors publish them.

Rows of checkpoint-engine measure components: the gathering of metadata and the update behind it. A row
without the layout on either side, or without GPUs, is left out by name.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from rlplan.algorithms import load_algorithm
from rlplan.errors import FileError, UnknownNameError
from rlplan.estimate import Estimate, total
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Hyperparameters, Job, NodeGroup, Rewards
from rlplan.models import LatentAttention, LayerRun, ModelArchitecture
from rlplan.plan import TaskPlan
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.profiles.facts import Facts, load_facts
from rlplan.profiles.jobs.resolve import resolve_job
from rlplan.profiles.sheets import canonical_name, load_device, load_model, model_names
from rlplan.results.accuracy import Row
from rlplan.simulator.costs.syncs import METADATA, sync_case, sync_parts
from rlplan.simulator.placed import PlacedTask, PlacedTransition, Site
from rlplan.transfers import TransitionName
from rlplan.workload import Workload

# What was published, of which rows are named, and what is forecast. `rollout_ranks` is of all GPUs where training has
# none of its own; `fitted` is true of every other model of a system by size, from the smallest on, of miles, whose two
# methods have one row a model, of all but every third, and of all rows of a software that has few.
COLUMNS = (
    "system", "model", "dtype", "gpu", "train_gpus", "rollout_gpus", "total_gpus", "rollout_layout", "method",
    "time_s", "time_s_min", "time_s_max", "component", "source", "transition", "device", "train_ranks",
    "rollout_ranks", "trainer", "train_tp", "train_pp", "train_cp", "train_ep", "rollout_tp", "rollout_ep",
    "bucket_bytes", "fitted",
)  # fmt: skip
METADATA_ONLY, COMPONENTS = "gather_metas", ("gather_metas", "update", "")
USUAL_DEVICE = "H100"
Cast = Literal["sender", "receiver"]
TRAINERS: dict[str, Literal[1, 3]] = {"megatron-core": 1, "fsdp2": 3}  # their ZeRO stages
USUAL_TRAINER = "megatron-core"
# What a table may say beside its columns: that parameters were off-loaded, and who cast to the narrow format.
OFFLOADED, CAST_BY = "offloaded", "cast_by"
OFFLOADING = {"megatron-core": "verl-megatron", "fsdp2": "verl-fsdp"}
NODE_GPUS = {"gb200": 4}
USUAL_NODE_GPUS = 8
NARROW = "FP8"
# Its metadata has rows of its own.
PARTED = "checkpoint-engine"


@dataclass(frozen=True, slots=True)
class SyncRow:
    """Hold a row that can be forecast: what was measured, and where weights went from and to.

    Attributes:
        parted: Whether the gathering of metadata has a row of its own.
    """

    label: str
    method: TransitionName
    seconds: float
    placed: PlacedTransition
    bucket_bytes: int | None
    component: str
    parted: bool
    fitted: bool
    note: str


def rows_of(record: Record) -> Iterator[Row]:
    """Yield the forecast of a sync or of one of its components, or why there is none."""
    try:
        row = sync_row(record)
    except (FileError, UnknownNameError) as error:
        yield skipped_row(_label(record), str(error), measured_seconds=_measured(record))
        return
    if isinstance(row, str):
        yield skipped_row(_label(record), row, measured_seconds=_measured(record))
        return
    yield forecast_row(
        row.label,
        row.seconds,
        component_seconds(row),
        kind=row.method,
        fitted=row.fitted,
        note=row.note,
    )


def component_seconds(row: SyncRow) -> Estimate:
    """Return the forecast of what a row measures: the gathering of metadata, or all else."""
    parts = sync_parts(
        row.placed.sheet, replace(sync_case(row.placed), bucket_bytes=row.bucket_bytes)
    )
    if row.component == METADATA_ONLY:
        return parts[METADATA]
    if row.parted:
        parts.pop(METADATA)
    return total(parts.values())


def sync_row(record: Record) -> SyncRow | str:
    """Return a row as it can be forecast, or why it cannot.

    Raises:
        FileError: The layouts are none that a plan can have.
        UnknownNameError: The model or the device is not in the catalog.
    """
    method, device, seconds = record["transition"], record["device"], _measured(record)
    if not method:
        return f"no method of {record['system']!r} is known"
    if seconds is None:
        return "its seconds are not published"
    gpus, trainers = (int(record[f"{side}_ranks"] or 0) for side in ("rollout", "train"))
    if not gpus:
        return "neither its GPUs nor its layout is stated"
    if not (record["train_tp"] or record["rollout_tp"]):
        return "its layout is not stated"
    if record["component"] not in COMPONENTS:
        return f"the component {record['component']!r} is not forecast"
    job = _job(
        _model(record["model"]), device, trainers + gpus, _format(record), _framework(record)
    )
    facts, network = _facts(device), job.cluster[0].network_bytes_per_second
    nodes = load_device(device).nvlink_domain_gpus or NODE_GPUS.get(device, USUAL_NODE_GPUS)
    tasks = {task.name: task for task in load_algorithm("reinforce-plus-plus").tasks}
    before, after = _trained(record, trainers or gpus), _generated(record, gpus)
    source = Site(device, trainers or gpus, nodes, network)
    placed = PlacedTransition(
        method,
        PlacedTask(tasks["actor.update"], before, source, job, facts),
        PlacedTask(tasks["actor.generate"], after, Site(device, gpus, nodes, network), job, facts),
        same_pool=not trainers,
    )
    case, sheet = sync_case(placed), placed.sheet.method
    broadcast = sheet is not None and sheet.transport == "broadcast" and sheet.sent_fraction == 1
    moves = record["component"] != METADATA_ONLY
    if broadcast and moves and seconds < case.num_bytes / case.node_bytes_per_second:
        return "faster than the link between GPUs carries the weights once"
    return SyncRow(
        label=_label(record),
        method=method,
        seconds=seconds,
        placed=placed,
        bucket_bytes=int(record["bucket_bytes"]) if record["bucket_bytes"] else None,
        component=record["component"],
        parted=method.startswith(PARTED),
        fitted=record["fitted"] == "True",
        note="" if record["gpu"] else f"its GPU is not stated: taken as {USUAL_DEVICE}",
    )


def model_of(name: str) -> str:
    """Return the sheet of a model that a table names without its organisation."""
    shorter = name.lower().removesuffix("-instruct").removesuffix("-base")
    tried = (canonical_name("models", each) for each in (name, shorter, f"{shorter}-instruct"))
    return next((sheet for sheet in tried if sheet in model_names()), name.lower())


@cache
def _model(name: str) -> str | ModelArchitecture:
    """Return a model's sheet, or the weights of one that is in no sheet since its attention is of no known kind.

    GLM-5 is DeepSeek-V3's architecture in other sizes (config.json of zai-org/GLM-5), with an indexer of 0.1 % of
    its weights.
    """
    if name.lower() not in ("glm-5", "glm-5.1", "glm-5.2"):
        return model_of(name)
    return replace(
        load_model("deepseek-v3"), name="glm-5", hidden_size=6144, num_layers=78, num_heads=64,
        num_kv_heads=64, head_dim=256, ffn_size=12288, vocab_size=154_880,
        latent=LatentAttention(query_rank=2048, kv_rank=512, nope_dim=192, rope_dim=64, value_dim=256),
        layer_runs=(LayerRun(count=3, kinds=("full dense",)), LayerRun(count=75, kinds=("full",))),
    )  # fmt: skip


def _size(record: Record, column: str) -> int:
    return int(record[column] or 1)


def _trained(record: Record, gpus: int) -> TaskPlan:
    """Return the layout from which weights come."""
    tp, pp, cp, ep = (_size(record, f"train_{name}") for name in ("tp", "pp", "cp", "ep"))
    engine = record["trainer"] or USUAL_TRAINER
    return TaskPlan(
        pool="p0", engine=engine, tp=tp, pp=pp, cp=cp, dp=max(1, gpus // (tp * pp * cp)), ep=ep,
        zero=TRAINERS[engine], expert_tp=None if ep == 1 else 1, offload=record.get(OFFLOADED) == "True",
    )  # fmt: skip


def _generated(record: Record, gpus: int) -> TaskPlan:
    """Return the layout to which weights go; its experts' parallelism is published with the tensors' in it."""
    tp, ep = _size(record, "rollout_tp"), _size(record, "rollout_ep")
    return TaskPlan(pool="p0", engine="vllm", tp=tp, dp=max(1, gpus // tp), ep=max(1, ep // tp))


def _measured(record: Record) -> float | None:
    """Return the published seconds, the middle of a range or a median; None where there are none."""
    for column in ("time_s", "median_s"):
        if record.get(column):
            return float(record[column])
    if record["time_s_min"] and record["time_s_max"]:
        return (float(record["time_s_min"]) + float(record["time_s_max"])) / 2
    return None


def _label(record: Record) -> str:
    where = (
        f"{record['train_gpus']} + {record['rollout_gpus'] or record['total_gpus']}".removeprefix(
            " + "
        )
    )
    words = (
        record["system"], record["method"], record["component"], record["model"], record["dtype"],
        f"on {where} {record['gpu']}", record["rollout_layout"], f"({record['source']})",
    )  # fmt: skip
    return " ".join(word for word in words if word)


def _format(record: Record) -> Cast | None:
    """Return who casts weights to the narrow format; None where they stay as they are."""
    if record["dtype"] != NARROW:
        return None
    return "receiver" if record.get(CAST_BY) == "receiver" else "sender"


def _framework(record: Record) -> str:
    """Return a framework whose trainer off-loads weights where the row's did: any of them has the same bytes."""
    off_loads = record.get(OFFLOADED) == "True"
    return OFFLOADING[record["trainer"] or USUAL_TRAINER] if off_loads else "rlplan"


@lru_cache(maxsize=64)
def _job(
    model: str | ModelArchitecture, device: str, gpus: int, cast: Cast | None, framework: str
) -> Job:
    nodes = NODE_GPUS.get(device, USUAL_NODE_GPUS)
    job = Job(
        name="weight sync",
        algorithm="reinforce-plus-plus",
        models=FrozenDict({"actor": model}),
        workload=Workload(prompts=gpus, prompt_tokens=1, response_tokens=1),
        cluster=(
            NodeGroup(gpu=device, gpus_per_node=min(gpus, nodes), nodes=max(1, -(-gpus // nodes))),
        ),
        engines=Engines(train="megatron-core", generate="vllm"),
        rewards=Rewards(function="digits"),
        hyperparameters=Hyperparameters(kl_coefficient=0.0),
        precision="bf16",
        rollout_precision="fp8" if cast else None,
        quantised_at=cast or "receiver",
        framework=framework,
    )
    return resolve_job(job, Path(), file="weight_sync")


@lru_cache(maxsize=16)
def _facts(device: str) -> Facts:
    return load_facts(_job("qwen2.5-0.5b", device, 1, cast=None, framework="rlplan"))


READER = TableReader(
    about=(
        "Seconds to bring trained weights to the engine, by framework and method: one rank or many that send, "
        "buckets, staging through the host, broadcast or point to point. Given: model, GPUs, layouts, method."
    ),
    columns=frozenset(COLUMNS),
    rows_of=rows_of,
)
