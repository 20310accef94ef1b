"""The trained actor as a Hugging Face folder: weights, config, and the tokenizer where there is one."""

import importlib
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from rlplan.errors import FileError
from rlplan.executor.control.checkpoints import Checkpoint, model_of
from rlplan.executor.control.weights import GENERATION_CONFIG
from rlplan.executor.data.prompts import load_tokenizer
from rlplan.executor.data.remote_folders import RemoteFolder
from rlplan.executor.model.adapters import layer_of
from rlplan.executor.model.building import (
    EMBEDDING,
    HEAD,
    ROUTER_BIAS,
    causal_lm_class,
    draw_no_bars,
    has_tower,
    model_config,
    published_name,
    weights_folder,
)
from rlplan.executor.model.fused_projections import fuse_projections, fused_parts
from rlplan.executor.weights.pretrained import PretrainedFolder
from rlplan.executor.weights.stored_shards import whole_weights
from rlplan.files.decoding import is_url, load_json, read_yaml
from rlplan.files.writing import write_json
from rlplan.job import RANDOM, Job
from rlplan.models import CONFIG_FILE, Adapter
from rlplan.plan import Plan
from rlplan.results.stored import PLAN_FILE

PEFT_PREFIX = "base_model.model."
# How images become a tower's inputs.
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def check_exports(places: Mapping[str, Path | str | None], job: Job) -> None:
    """Refuse to write actors over each other, or over weights that the job reads: whoever resumes the run reads them again.

    Args:
        places: Where actors are written, by option; None: nowhere.

    Raises:
        FileError: Names the option, and the place.
    """
    taken: dict[Path | str, str] = {}
    for role in job.models:
        source = job.weights_of(role)
        if source is not None and source != RANDOM:
            what = f"is where the weights of {role} are read from"
            taken.setdefault(_place(source), what)
    for option, place in places.items():
        if place is None:
            continue
        if _place(place) in taken:
            allowed = "a place of its own"
            raise FileError(option, taken[_place(place)], value=str(place), allowed=allowed)
        taken[_place(place)] = f"is that of {option}"


def _place(given: Path | str) -> Path | str:
    """Return a place as it compares with others."""
    if isinstance(given, str) and is_url(given):
        return given.rstrip("/")
    return Path(given).resolve()


def export_actor(checkpoint: Checkpoint, out: Path | str, *, folder: Path | None = None) -> None:
    """Write the actor of a checkpoint as a folder that `transformers` loads, in fp32; adapters as one that `peft` loads.

    Args:
        out: Folder that is written, or its URL: configuration, safetensors, tokenizer files.
        folder: What a relative tokenizer of the job is relative to; None: where the process runs.

    Raises:
        FileError: The checkpoint is broken, or the folder cannot be written.
    """
    if isinstance(out, str) and is_url(out):
        with tempfile.TemporaryDirectory(prefix="rlplan-export-") as made:
            export_actor(checkpoint, Path(made), folder=folder)
            RemoteFolder(out, "--export").send(Path(made), last=CONFIG_FILE)
        return
    out = Path(out)
    job = read_yaml(Plan, checkpoint.folder / PLAN_FILE).job
    with model_of(checkpoint, "actor") as stored:
        weights, adapter = whole_weights(stored), job.adapter("actor")
    draw_no_bars()
    try:
        out.mkdir(parents=True, exist_ok=True)
        if adapter is None:
            tied = job.architecture("actor").tied_embeddings
            config, source = _config_of(job, folder or Path()), weights_folder(job, "actor")
            model = hugging_face_model(config, weights, tied=tied, folder=source)
            if source is not None and has_tower(source):
                _write_behind_tower(out, model.state_dict(), source)
            else:
                model.save_pretrained(out)
            _keep_generation_config(source, out)
        else:
            _write_adapter(out, adapter, weights, weights_folder(job, "actor"))
    except OSError as error:
        raise FileError(str(out), f"cannot be written: {error.strerror or error}") from None
    if job.tokenizer != "bytes":
        auto: Any = importlib.import_module("transformers").AutoTokenizer
        source = (folder or Path()) / job.tokenizer
        auto.from_pretrained(source, local_files_only=True).save_pretrained(out)


def _write_behind_tower(out: Path, held: Mapping[str, Tensor], source: Path) -> None:
    """Write a text model behind the tower of the folder that it began with, under that folder's names, and the folder's configurations."""
    hub: Any = importlib.import_module("huggingface_hub")
    with closing(PretrainedFolder(source)) as there:
        known = {name: values for name, values in held.items() if name in there}  # no tied head
        whole = {there.name_of(name): values for name, values in known.items()}
        whole |= there.others(tuple(held))
        hub.save_torch_state_dict(whole, str(out))
    write_json(out / CONFIG_FILE, _in_fp32(load_json(source / CONFIG_FILE)))
    for name in PROCESSOR_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)


def _in_fp32(config: Any) -> Any:
    """Return a configuration, or a part of it, that says fp32 where it says a format, so that what was learnt is loaded as it is."""
    if not isinstance(config, dict):
        return config
    formats = dict.fromkeys(config.keys() & {"dtype", "torch_dtype"}, "float32")
    return {name: _in_fp32(each) for name, each in config.items()} | formats


def _config_of(job: Job, folder: Path) -> Any:
    """Return the `transformers` configuration of the actor as it is exported.

    A family's own numbers of special tokens (Llama's end is 2) are of its own tokenizer; weights that began as random ones know the
    job's alone, and responses of a run that goes on from the export would end at an ordinary token.
    """
    config = model_config(job, "actor")
    if weights_folder(job, "actor") is None:
        config.bos_token_id, config.eos_token_id = (
            None,
            load_tokenizer(job.tokenizer, folder).eos_id,
        )
    return config


def _keep_generation_config(source: Path | None, out: Path) -> None:
    """Copy how a model is sampled from and what ends its responses, of which `config.json` does not say all."""
    if source is not None and (source / GENERATION_CONFIG).is_file():
        shutil.copyfile(source / GENERATION_CONFIG, out / GENERATION_CONFIG)


def _write_adapter(
    out: Path, adapter: Adapter, weights: Mapping[str, Tensor], base: Path | None
) -> None:
    """Write adapters as `peft` reads them (its `LoraConfig`, and its names of parameters)."""
    held, alpha = fuse_projections(weights), adapter.alpha or adapter.rank
    parts = {layer_of(name).split(".")[-2]: fused_parts(name) for name in held}
    joined = {layer: count for layer, count in parts.items() if count > 1}
    save_file(
        {f"{PEFT_PREFIX}{published_name(name)}": values for name, values in held.items()},
        out / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "" if base is None else str(base),
        "r": adapter.rank,
        "lora_alpha": alpha,
        # As many ranks as its parts have together, at the scale of each.
        "rank_pattern": {layer: count * adapter.rank for layer, count in joined.items()},
        "alpha_pattern": {layer: count * alpha for layer, count in joined.items()},
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(parts),
        "inference_mode": True,
    }
    write_json(out / "adapter_config.json", about)


def hugging_face_model(
    config: Any, weights: dict[str, Tensor], *, tied: bool, folder: Path | None = None
) -> Any:
    """Return a language model of `transformers` with weights as `whole_weights` names them.

    Args:
        config: Of `transformers`; changed in nothing that is written.
        tied: Whether the head is the embedding.
        folder: Which they began with, and which has biases of routers that no gradient trains; None: there are none.
    """
    model = causal_lm_class(config)(config).float()
    wanted = model.state_dict()
    held = {published_name(name): values for name, values in fuse_projections(weights).items()}
    if tied:
        held[published_name(HEAD)] = weights[EMBEDDING]
    biases = [name for name in wanted if name.endswith(f".{ROUTER_BIAS}")]
    if folder is not None and biases:
        with closing(PretrainedFolder(folder)) as source:
            held |= {name: source.read(name, (slice(None),)) for name in biases}
    missing = set(held) ^ set(wanted)
    assert not missing, f"names differ: {sorted(missing)}"
    # Experts are stacked here with gate and up apart, there with both as one matrix.
    model.load_state_dict({name: held[name].reshape(like.shape) for name, like in wanted.items()})
    return model
