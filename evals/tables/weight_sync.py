"""Seconds to bring trained weights to the engine, by framework and method, as their authors publish them.

Rows of checkpoint-engine measure components: the gathering of metadata and the update behind it. A row
without the layout on either side, or without GPUs, is left out by name.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from profiles.facts import Facts, load_facts
from profiles.jobs.resolve import resolve_job
from profiles.sheets import canonical_name, load_device, load_model, model_names
from rlplan.algorithms import load_algorithm
from rlplan.errors import FileError, UnknownNameError
from rlplan.estimate import Estimate, total
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Hyperparameters, Job, NodeGroup, Rewards
from rlplan.models.model import LatentAttention, LayerRun, ModelArchitecture
from rlplan.plan import TaskPlan
from rlplan.results.accuracy import Row
from rlplan.transfers import TransitionName
from rlplan.units import GIB
from rlplan.workload.work import Workload
from simulator.costs.syncs.transition import sync_case
from simulator.costs.syncs.weight_sync import METADATA, sync_parts
from simulator.placed.plan import PlacedTransition
from simulator.placed.site import Site
from simulator.placed.task import PlacedTask

COLUMNS = (
    "system", "model", "dtype", "gpu", "train_gpus", "rollout_gpus", "total_gpus", "train_layout",
    "rollout_layout", "method", "time_s", "time_s_min", "time_s_max", "component", "note", "source",
)  # fmt: skip
METADATA_ONLY, COMPONENTS = "gather_metas", ("gather_metas", "update", "")
# Constants are fitted on every other model of a system by size, from the smallest on, and of miles, whose two
# methods have one row a model, on all but every third; rows of the others are held back.
FITTED_MODELS = {
    "checkpoint-engine": ("glm-4.5-air", "deepseek-v3"),
    "miles": ("glm-z1-9b", "moonlight", "qwen3-30b", "glm-4.5-air", "glm-5", "kimi-k2"),
    "verl": ("qwen2.5-7b", "qwen2.5-32b", "qwen3-235b"),
    "skyrl": ("qwen3-235b",),
    "vllm": ("qwen3-235b",),
}
# Of these software's rows none would be left to fit on: constants are fitted to all of them.
ALONE = frozenset({"slime-ipc", "verl-kimi", "verl-megatron-broadcast", "nemo-rl-nccl-reshard"})
# What a system's words for its methods mean; the first that a row has is taken.
METHODS: dict[str, tuple[tuple[str, TransitionName], ...]] = {
    "vllm": (("", "vllm-rdt"),),
    "skyrl": (("rdt", "vllm-rdt"), ("nixl", "vllm-rdt"), ("ipc", "skyrl-ipc"), ("", "skyrl-nccl")),
    "slime": (
        ("p2p", "miles-p2p"), ("rdma", "miles-p2p"), ("rdt", "vllm-rdt"), ("nccl", "slime-nccl"),
        ("broadcast", "slime-nccl"), ("", "slime-ipc"),
    ),
    "verl": (
        ("delta", "verl-delta"), ("nixl", "verl-nixl"), ("mooncake", "verl-mooncake"),
        ("without checkpoint-engine", "verl-megatron-broadcast"),
        ("no checkpoint-engine", "verl-megatron-broadcast"), ("checkpoint-engine", "verl-kimi"),
        ("kimi", "verl-kimi"), ("nccl", "verl-nccl"), ("broadcast", "verl-nccl"), ("", "verl-naive"),
    ),
    "nemo": (
        ("reshard", "nemo-rl-nccl-reshard"), ("xfer", "nemo-rl-nccl-reshard"),
        ("nccl", "nemo-rl-nccl"), ("broadcast", "nemo-rl-nccl"), ("", "nemo-rl-ipc"),
    ),
    "openrlhf": (("ipc", "openrlhf-ipc"), ("", "openrlhf-nccl")),
    "areal": (("disk", "files"), ("", "areal-nccl")),
    "prime": (("nixl", "prime-rl-nixl"), ("rdma", "prime-rl-nixl"), ("file", "files"), ("", "prime-rl-nccl")),
    "fabric": (("", "fabric-lib"),),
    "checkpoint-engine": (("p2p", "checkpoint-engine-p2p"), ("", "checkpoint-engine")),
}  # fmt: skip
SAME_AS = {
    "miles": "slime",
    "vime": "slime",
    "perplexity": "fabric",
    "moonshot": "checkpoint-engine",
}
# Rows of checkpoint-engine's first table are of its version 0.1.
FIRST_TABLE = "7185b55"
# The patch of slime's issue 132 flattened tensors into buckets.
BEFORE_BUCKETS = "before patch"
# The first that a board's name has.
DEVICES = {"H800": "h800", "H200": "h200", "H20": "h20", "H100": "h100-80gb-sxm", "A100": "a100-80gb-sxm",
           "A800": "a800-80gb", "GB200": "gb200", "B200": "b200"}  # fmt: skip
USUAL_DEVICE = "H100"
NODE_GPUS = {"gb200": 4}
USUAL_NODE_GPUS = 8
_SIZE = re.compile(r"(?<![A-Z])(ETP|TP|WS|PP|DP|EP|CP)\s*=?\s*(\d+)")
_NODES = re.compile(r"(\d+) nodes?")
_TRAINER = re.compile("FSDP|MEGATRON|DEEPSPEED")
_BUCKET = re.compile(r"bucket ([\d.]+) GiB")
NARROW = "FP8"
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
    parts = sync_parts(row.placed.sheet, sync_case(row.placed, row.bucket_bytes))
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
    method, device, seconds = method_of(record), _device(record), _measured(record)
    if method is None:
        return f"no method of {record['system']!r} is known"
    if seconds is None:
        return "its seconds are not published"
    train, generate = sizes_in(record["train_layout"]), sizes_in(record["rollout_layout"])
    gpus = _gpus(record, "rollout", device) or int(record["total_gpus"] or 0)
    trainers = _gpus(record, "train", device)
    if not gpus or not (train or generate):
        return (
            "neither its GPUs nor its layout is stated" if not gpus else "its layout is not stated"
        )
    if record["component"] not in COMPONENTS:
        return f"the component {record['component']!r} is not forecast"
    narrow = NARROW in record["dtype"].upper()
    job = _job(_model(record["model"]), device, trainers + gpus, narrow)
    facts, network = _facts(device), job.cluster[0].network_bytes_per_second
    nodes = load_device(device).nvlink_domain_gpus or NODE_GPUS.get(device, USUAL_NODE_GPUS)
    sharded = "FSDP" in record["train_layout"].upper()
    before = (
        _layout(train, trainers or gpus, "fsdp2", 3)
        if sharded
        else _layout(train, trainers or gpus, "megatron-core", 1)
    )
    after = _layout(generate, gpus, "vllm", 0)
    tasks = {task.name: task for task in load_algorithm("reinforce-plus-plus").tasks}
    source = Site(device, trainers or gpus, nodes, network)
    placed = PlacedTransition(
        method,
        PlacedTask(tasks["actor.update"], before, source, job, facts),
        PlacedTask(tasks["actor.generate"], after, Site(device, gpus, nodes, network), job, facts),
        same_pool=not trainers,
    )
    case, system = sync_case(placed), record["system"].lower()
    sheet = placed.sheet.method
    broadcast = sheet is not None and sheet.transport == "broadcast" and sheet.sent_fraction == 1
    moves = record["component"] != METADATA_ONLY
    if broadcast and moves and seconds < case.num_bytes / case.node_bytes_per_second:
        return "faster than the link between GPUs carries the weights once"
    return SyncRow(
        _label(record), method, seconds, placed, _bucket_bytes(record), record["component"],
        PARTED in record["system"].lower(),
        method in ALONE or record["model"].lower().startswith(FITTED_MODELS.get(system, ())),
        "" if record["gpu"] else f"its GPU is not stated: taken as {USUAL_DEVICE}",
    )  # fmt: skip


def method_of(record: Record) -> TransitionName | None:
    """Return what rlplan calls the method of a row; None where nobody has described it."""
    system, words = record["system"].lower(), record["method"].lower()
    system = next((name for each, name in SAME_AS.items() if each in system), system)
    known = next((methods for name, methods in METHODS.items() if name in system), ())
    found = next((name for word, name in known if word in words), None)
    if found is not None and PARTED in found and FIRST_TABLE in record["source"]:
        return f"{found}-0.1"
    return found


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


def _device(record: Record) -> str:
    name = (record["gpu"] or USUAL_DEVICE).upper()
    return next((sheet for part, sheet in DEVICES.items() if part in name), name.lower())


def _gpus(record: Record, side: str, device: str) -> int:
    """Return the GPUs of a side, of whole nodes where its layout counts those."""
    nodes = _NODES.search(record[f"{side}_layout"].lower())
    of_nodes = int(nodes[1]) * NODE_GPUS.get(device, USUAL_NODE_GPUS) if nodes else 0
    return int(record[f"{side}_gpus"] or of_nodes)


def sizes_in(text: str) -> dict[str, int]:
    """Return the sizes in a layout's words, such as `TP4 PP2 EP8`, `tp4/pp2` or `EP4xTP2`."""
    spaced = re.sub(r"(?<=\d)\s*[xX\u00d7/,]\s*(?=[A-Za-z])", " ", text).upper()
    sizes = {name.lower(): int(size) for name, size in _SIZE.findall(spaced)}
    return sizes or ({"dp": 0} if _TRAINER.search(spaced) else {})


def _layout(sizes: dict[str, int], gpus: int, engine: str, zero: Literal[0, 1, 3]) -> TaskPlan:
    pp, cp = sizes.get("pp", 1), sizes.get("cp", 1)
    tp = sizes.get("tp") or sizes.get("ws") or 1
    ep = sizes.get("ep", 1)
    return TaskPlan(
        pool="p0", engine=engine, tp=tp, pp=pp, cp=cp, dp=max(1, gpus // (tp * pp * cp)), zero=zero,
        ep=max(1, ep // tp) if engine == "vllm" else ep,
        expert_tp=None if engine == "vllm" or ep == 1 else sizes.get("etp", 1),
    )  # fmt: skip


def _bucket_bytes(record: Record) -> int | None:
    if BEFORE_BUCKETS in record["method"]:
        return 0
    found = _BUCKET.search(record["note"])
    return round(float(found[1]) * GIB) if found else None


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


@lru_cache(maxsize=64)
def _job(model: str | ModelArchitecture, device: str, gpus: int, narrow: bool) -> Job:
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
        rollout_precision="fp8" if narrow else None,
        quantised_at="sender" if narrow else "receiver",
    )
    return resolve_job(job, Path(), file="weight_sync")


@lru_cache(maxsize=16)
def _facts(device: str) -> Facts:
    return load_facts(_job("qwen2.5-0.5b", device, 1, narrow=False))


READER = TableReader(
    about=(
        "Seconds to bring trained weights to the engine, by framework and method: one rank or many that send, "
        "buckets, staging through the host, broadcast or point to point. Given: model, GPUs, layouts, method."
    ),
    columns=frozenset(COLUMNS),
    rows_of=rows_of,
)
