"""Find the weights of a plan's models before anything is started, and refuse what lacks them."""

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlplan.dataflow import Task
from rlplan.errors import FileError, RlplanError
from rlplan.executor.data.remote_folders import fetched_folder
from rlplan.executor.model.building import FAMILIES, build_stages, read_config
from rlplan.executor.model.experts import cut_experts
from rlplan.executor.parallel.meshes import RankMesh
from rlplan.executor.parallel.positions import train_positions
from rlplan.executor.weights.pretrained import PretrainedFolder, check_weights
from rlplan.files.decoding import is_url
from rlplan.files.frozen import FrozenDict
from rlplan.job import RANDOM, Role
from rlplan.models import Head, ModelArchitecture
from rlplan.plan import Plan
from rlplan.rules.rule import listed

# What a folder of a model is downloaded for.
PATTERNS = ("*.safetensors", "*.json", "tokenizer*", "*.model", "*.jinja", "*.txt")


def with_weights(
    plan: Plan, tasks: tuple[Task, ...], *, downloads: bool = False, file: str = "plan"
) -> Plan:
    """Return a plan whose job says of each model that runs in which folder its weights are, or that they are random.

    Args:
        downloads: Whether ids that are not in the local cache may be downloaded.
        file: What to call the plan in messages.

    Raises:
        FileError: A model has no weights, or a folder does not hold what its configuration says.
    """
    job = plan.job
    heads: dict[Role, Head] = {task.role: task.head for task in tasks if task.role in job.models}
    found: dict[Role, str] = {}
    for role, head in heads.items():
        said = job.weights_of(role)
        if said is None:
            raise FileError(
                file,
                "has no weights",
                field=f"job.models.{role}",
                value=job.architecture(role).name,
                allowed="a folder or a Hugging Face id with safetensors, or `weights: random` for a rehearsal",
            )
        if said == RANDOM:
            _check_random(job.architecture(role), f"job.models.{role}", file)
            found[role] = said
            continue
        field = f"job.weights.{role}"
        if is_url(said):  # which every node fetches on its own
            check_folder(fetched_folder(said, field), job.architecture(role), head)
            found[role] = said
            continue
        folder = located(said, downloads=downloads, field=field, file=file)
        check_folder(folder, job.architecture(role), head)
        found[role] = str(folder)
    if all(said == RANDOM for said in found.values()):
        return plan
    return replace(plan, job=replace(job, weights=FrozenDict(found)))


def located(name: str, *, downloads: bool, field: str, file: str = "plan") -> Path:
    """Return the folder of a model that is named by a path or by a Hugging Face id.

    Raises:
        FileError: There is none here.
    """
    path = Path(name)
    if path.is_absolute() or path.is_dir():
        if path.is_dir():
            return path
        raise FileError(file, "no such folder", field=field, value=name)
    hub: Any = importlib.import_module("huggingface_hub")
    try:
        found = hub.snapshot_download(
            name, local_files_only=not downloads, allow_patterns=list(PATTERNS)
        )
    except Exception as error:  # noqa: BLE001  # of many kinds: no such id, no network, no such folder of a cache
        reason = " ".join(str(error).split())[:200]
        problem = f"could not be downloaded: {reason}" if downloads else "is not in the local cache"
        allowed = "a folder with weights" + ("" if downloads else ", or `--download`")
        raise FileError(file, problem, field=field, value=name, allowed=allowed) from None
    return Path(found)


def check_folder(folder: Path, architecture: ModelArchitecture, head: Head) -> None:
    """Refuse a folder whose model does not run here, is another than the job's, or lacks weights.

    Raises:
        FileError: Names the file and what is wrong.
    """
    config = read_config(folder)
    for field, value in _sizes(architecture):
        there = getattr(config, field)
        if there != value:
            raise FileError(
                str(folder / "config.json"),
                f"is of another model than {architecture.name}",
                field=field,
                value=there,
                allowed=str(value),
            )
    quantised = getattr(config, "quantization_config", None)
    if quantised:
        raise FileError(
            str(folder / "config.json"),
            "is of a quantised checkpoint, which is not read here",
            field="quantization_config",
            value=quantised.get("quant_method") if isinstance(quantised, dict) else None,
            allowed="one in bf16, fp16 or fp32",
        )
    stages = build_stages(architecture, head, 0, folder=folder)
    mesh = RankMesh(train_positions(1, 1), 0, torch.device("cpu"))
    for stage in stages:
        cut_experts(stage, mesh)
    source = PretrainedFolder(folder)
    try:
        check_weights(stages, mesh, source, tied=head == "lm" and architecture.tied_embeddings)
    finally:
        source.close()


def _sizes(architecture: ModelArchitecture) -> Iterator[tuple[str, Any]]:
    """Return what a folder's configuration must have in common with a job's model."""
    yield "hidden_size", architecture.hidden_size
    yield "num_hidden_layers", architecture.num_layers
    yield "vocab_size", architecture.vocab_size
    yield "tie_word_embeddings", architecture.tied_embeddings


def _check_random(architecture: ModelArchitecture, field: str, file: str) -> None:
    if architecture.family not in FAMILIES:
        raise RlplanError(
            f"{file}: {field}.family: {architecture.family} is drawn from no seed here: it draws {listed(FAMILIES)}"
        )
