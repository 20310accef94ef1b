"""Find the weights of a plan's models before anything is started, and refuse what lacks them."""

import importlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlplan.dataflow import Task
from rlplan.errors import FileError, RlplanError
from rlplan.executor.data.remote_folders import fetched_folder
from rlplan.executor.model.building import (
    FAMILIES,
    build_stages,
    has_tower,
    read_config,
    weights_folder,
)
from rlplan.executor.model.experts import cut_experts
from rlplan.executor.parallel.meshes import RankMesh
from rlplan.executor.parallel.positions import train_positions
from rlplan.executor.weights.pretrained import PretrainedFolder, check_weights
from rlplan.files.decoding import is_url, load_json
from rlplan.files.frozen import FrozenDict
from rlplan.job import RANDOM, Job, Role
from rlplan.models import CONFIG_FILE, Head, ModelArchitecture
from rlplan.plan import Plan
from rlplan.rules.rule import listed

# How a model is sampled from, and what ends its responses.
GENERATION_CONFIG = "generation_config.json"
END = "eos_token_id"
# Of angles that are other ones in sequences longer than those of the model's pre-training; of a batch the longest one says so for all.
LONGROPE, PLAIN_ANGLES = "longrope", "default"
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
            folder, found[role] = fetched_folder(said, field), said
        else:
            folder = located(said, downloads=downloads, field=field, file=file)
            found[role] = str(folder)
        check_folder(folder, job.architecture(role), head, job.workload.longest_sequence_tokens)
        if job.adapter(role) is not None and has_tower(folder):
            problem = "is of a model behind a tower of images, whose adapters are not written here"
            allowed = "all weights, or a model without a tower"
            raise FileError(file, problem, field=f"job.adapters.{role}", allowed=allowed)
        if role == "actor":
            _ends_in(folder)
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


def check_folder(
    folder: Path, architecture: ModelArchitecture, head: Head, longest_tokens: int
) -> None:
    """Refuse a folder whose model does not run here, is another than the job's, or lacks weights.

    Args:
        longest_tokens: Of a prompt and its response.

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
    if getattr(config, "use_bidirectional_attention", None):
        raise FileError(
            str(folder / CONFIG_FILE),
            "is of a model whose tokens attend later ones, which generates nothing",
            field="use_bidirectional_attention",
            value=True,
            allowed="absent, or false",
        )
    _check_angles(folder, config, longest_tokens)
    stages = build_stages(architecture, head, 0, folder=folder)
    mesh = RankMesh(train_positions(1, 1), 0, torch.device("cpu"))
    for stage in stages:
        cut_experts(stage, mesh)
    with closing(PretrainedFolder(folder)) as source:
        check_weights(stages, mesh, source, tied=head == "lm" and architecture.tied_embeddings)


def _check_angles(folder: Path, config: Any, longest_tokens: int) -> None:
    """Refuse rotary angles that `transformers` has not, and those that hang on a sequence's length where sequences may be long.

    `transformers` takes those of the longest sequence of a batch (`longrope_frequency_update` of its `modeling_rope_utils.py`,
    5.23), so that numbers would hang on what else is in it; vLLM takes those of its longest possible one for all.

    Raises:
        FileError: Names the kind, or the length.
    """
    said = getattr(config, "rope_parameters", None) or {}
    of_kinds = [each for each in said.values() if isinstance(each, dict)]  # of layers
    known = importlib.import_module("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    file, field = str(folder / CONFIG_FILE), "rope_scaling"
    for angles in of_kinds or [said]:
        kind = angles.get("rope_type", PLAIN_ANGLES)
        if kind != PLAIN_ANGLES and kind not in known:
            problem, allowed = "is of no kind that runs here", listed((PLAIN_ANGLES, *known))
            raise FileError(file, problem, field=field, value=kind, allowed=allowed)
        most = angles.get("original_max_position_embeddings")
        if kind == LONGROPE and most is not None and longest_tokens > most:
            problem = f"has other angles in sequences above {most:,} tokens, which are not run here"
            allowed = (
                f"a prompt and a response of at most {most:,} tokens together, and not "
                f"{longest_tokens:,} (job.workload)"
            )
            raise FileError(file, problem, field=field, value=kind, allowed=allowed)


def end_ids_of(job: Job, eos_id: int) -> tuple[int, ...]:
    """Return the tokens each of which ends a response: the tokenizer's, and those that the actor's folder names.

    A chat model's turn often ends with another token than its tokenizer's, such as Gemma's `<end_of_turn>`. vLLM ends responses
    at these too (`SamplingParams.update_from_generation_config`).

    Args:
        eos_id: Of the job's tokenizer.

    Raises:
        FileError: The folder says something else than ids.
    """
    if job.workload.ignore_eos:
        return ()
    folder = weights_folder(job, "actor")
    named = () if folder is None or job.tokenizer == "bytes" else _ends_in(folder)
    return tuple(dict.fromkeys((eos_id, *named)))


def _ends_in(folder: Path) -> tuple[int, ...]:
    """Return the tokens that end a response by a folder: its generation's configuration, or else its model's, says them.

    Raises:
        FileError: It says something else than ids.
    """
    file = folder / GENERATION_CONFIG
    file = file if file.is_file() else folder / CONFIG_FILE
    held = load_json(file)
    said = held.get(END) if isinstance(held, dict) else None
    ids = said if isinstance(said, list) else [] if said is None else [said]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
        raise FileError(str(file), "is no id of a token", field=END, value=str(said), allowed="ids")
    return tuple(ids)


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
