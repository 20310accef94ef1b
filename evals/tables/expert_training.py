"""Iterations of Megatron-Bridge and NeMo AutoModel, mixtures of experts and dense models, on H100 and Blackwell."""

import re
from dataclasses import replace
from math import gcd

from rlplan.dispatchers import DEFAULT_DISPATCHER
from rlplan.errors import UnknownNameError
from rlplan.evals.settings.pretraining import Iteration, Pretraining, training_row
from rlplan.evals.settings.training_recipes import (
    AUTOMODEL,
    SIZES,
    options_of,
    recipe_of,
    recompute_of,
)
from rlplan.models import PRECISIONS, ModelArchitecture
from rlplan.plan import Recompute
from rlplan.planner.measured.rows import Record, TableReader
from rlplan.profiles.catalog import load_device, load_model
from rlplan.sheets import DeviceSheet
from rlplan.trainers import TrainerOptions
from rlplan.units import bytes_per_second_from_gbps

SETTINGS = (
    "software", "model", "gpu", "num_gpus", "gpus_per_node", "precision", "global_batch", "seq_len",
    "fsdp", "recompute", *SIZES,
)  # fmt: skip
SECONDS = "iter_time_s"
VERSION = re.compile(r"\b(2\d\.\d\d)\b")
# The model whose iterations of Megatron-Bridge constants were chosen with in view; all others are forecast blind.
FITTED_ON = "qwen3-30b-a3b"
# A row of another model, by which a layer of experts is launched (profiles/engines/megatron-core-2025.yaml).
FITTED_ROW = "zoo_qwen3-235b_tp4_ep8"
# Rows by which NCCL's all-to-alls over EFA are timed within steps (profiles/networks/efa.yaml).
FITTED_EXCHANGE = "aws_b300_qwen3-235b_"
# Rows by which each dispatcher over EFA posts rows (rlplan/dispatchers/uccl.py and deepep_efa.py).
FITTED_DISPATCH = "_64_ep16_mb4_"
BLIND = ("automodel", "aws")
# Of the column `fit`, in tables that were collected when all constants stood.
UNFITTED = "none"
# Of the recompute column, where a table has its own word.
WORDS: dict[str, Recompute] = {"none": "none", "selective": "selective", "full": "full"}
# Dispatchers by words of a run's software, the first that is in it.
NAMED = {"uccl": "uccl", "nvshmem": "deepep-efa", "hybridep": "hybridep", "deepep": "deepep"}
POSTED = {"uccl", "deepep-efa"}
# Networks by words of a run's software.
NETWORKS = {"efa": "efa"}
# What AWS's campaign computes again where exchanges do not overlap: its script (awslabs/awsome-distributed-ai@95b939cd,
# qwen3-235b/benchmarks/bench_qwen3_pretrain.py) leaves recomputation as the recipe of Megatron-Bridge 0.4.2 has it that
# it starts from (recipes/qwen/qwen3_moe.py), which computes all of Qwen3-30B-A3B again; its page calls that off.
CAMPAIGN, OVERLAPPED = "on aws", "overlapped with compute: on"
LEFT_TO_RECIPE: dict[str, Recompute] = {"qwen3-30b-a3b": "full"}
MEGATRON, FUSED, FULLY_SHARDED = "megatron-core-2026", "megatron-core-2026-fused", "nemo-automodel"
NOTE = "no recipe of this release is known: rows for each expert, launched kernel by kernel"


def iteration_of(record: Record) -> Iteration:
    """Return the settings of a record."""
    kind, seconds = record["gpu"], float(record[SECONDS])
    label = f"{record['software']}: {record['model']} on {record['num_gpus']} x {record['gpu']}, {record['precision']}"
    try:
        model, device = load_model(record["model"]), load_device(record["gpu"])
    except UnknownNameError as error:
        return Iteration(seconds=seconds, kind=kind, label=label, reason=str(error))
    kind = f"{'experts' if model.num_experts else 'dense'} {device.name}"
    if record["precision"] not in PRECISIONS:
        reason = f"precisions known: {', '.join(PRECISIONS)}"
        return Iteration(seconds=seconds, kind=kind, label=label, reason=reason)
    run, note = _run(record, model, device)
    software = record["software"].lower()
    fitted = model.name == FITTED_ON and not any(word in software for word in BLIND)
    told = record.get("id") or ""
    posted = _named_dispatcher(software) in POSTED and FITTED_DISPATCH in told
    exchanged = (
        told.startswith(FITTED_EXCHANGE) and _named_dispatcher(software) == DEFAULT_DISPATCHER
    )
    fitted |= told == FITTED_ROW or posted or exchanged
    fitted &= record.get("fit") != UNFITTED
    return Iteration(run=run, seconds=seconds, kind=kind, label=label, note=note, fitted=fitted)


def _run(record: Record, model: ModelArchitecture, device: DeviceSheet) -> tuple[Pretraining, str]:
    def size(name: str) -> int:
        return int(float(record[name])) if record[name] else 1

    gpus, per_node = size("num_gpus"), size("gpus_per_node")
    tp, pp, cp = size("tp"), size("pp"), size("cp")
    engine, options, recompute, note, ep = _software(record, model, device)
    network = bytes_per_second_from_gbps(device.inter_node_gbps) / device.gpus_per_node
    shards = engine == FULLY_SHARDED or size("fsdp") > 1
    run = Pretraining(
        model=model,
        engine=engine,
        device=device.name,
        precision=record["precision"],  # type: ignore[arg-type]
        gpus=gpus,
        network_bytes_per_second=network * per_node,
        node_gpus=per_node,
        linked_gpus=_linked(device, gpus, per_node),
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        dp=gpus // (tp * pp * cp),
        chunks=size("vp"),
        zero=(3 if pp == 1 else 2) if shards else 1,
        micro_batch=size("micro_batch"),
        global_batch=size("global_batch"),
        sequence_tokens=size("seq_len"),
        recompute=recompute,
        options=options,
        network=next(
            (kind for word, kind in NETWORKS.items() if word in record["software"].lower()), None
        ),
    )
    return run, note


def _software(
    record: Record, model: ModelArchitecture, device: DeviceSheet
) -> tuple[str, TrainerOptions, Recompute, str, int]:
    """Return engine, options, recomputation, what was assumed, and the ranks that share out experts.

    Runs that name their dispatcher are taken by their word; others have their release's recipe.
    """
    software = record["software"]
    words = software.lower()
    engine = FULLY_SHARDED if AUTOMODEL in words else MEGATRON
    found = VERSION.search(software)
    release = AUTOMODEL if AUTOMODEL in words else found[1] if found else ""
    named = _named_dispatcher(words)
    recipe = recipe_of(release, model.name, device.name, record["precision"], record)
    ep = int(float(record["ep"])) if record["ep"] else 0
    options = options_of(recipe)
    note = NOTE if recipe is None and named is None and model.num_experts else ""
    if named is not None:
        overlaps = OVERLAPPED in record.get("notes", "")
        options = replace(options, dispatcher=named, overlaps_exchange=overlaps)
    whole = "iteration" in options.graphs and model.num_experts > 0
    if engine == MEGATRON and whole and record["precision"] == "mxfp8":
        engine = FUSED  # its recipes set both together
    recompute = WORDS.get(record["recompute"]) or recompute_of(recipe)
    if CAMPAIGN in words and not options.overlaps_exchange:
        recompute = LEFT_TO_RECIPE.get(model.name, recompute)
    if recipe is not None and not ep:
        ep = int(recipe["ep"] or 1)
    return engine, options, recompute, note, max(1, ep) if model.num_experts else 1


def _named_dispatcher(software: str) -> str | None:
    """Return the dispatcher that a run's software names, in small letters."""
    if "all-to-all" in software:
        return "all-to-all"
    return next((name for word, name in NAMED.items() if word in software), None)


def _linked(device: DeviceSheet, gpus: int, per_node: int) -> int:
    """Return the GPUs of equal parts of a run which one NVLink domain holds: whole nodes, the most that divide it."""
    domain = device.nvlink_domain_gpus or 0
    nodes, most = gpus // per_node, domain // per_node
    if most <= 1 or gpus % per_node:
        return per_node
    return per_node * max(count for count in range(1, most + 1) if gcd(count, nodes) == count)


READER = TableReader(
    about=(
        "Seconds of a training iteration of Megatron-Bridge and NeMo AutoModel on H100 and Blackwell. Given: all parallel "
        "sizes; dispatcher, graphs and recomputation are those of the release's recipes; experts are balanced by force."
    ),
    columns=frozenset({*SETTINGS, SECONDS}),
    none_of=frozenset({"heads"}),
    rows_of=lambda record: (training_row(iteration_of(record)),),
)
