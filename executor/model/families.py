"""Which classes of `transformers` a model is built with, and the configuration that they are given.

Pre-trained models are what the `config.json` beside their weights says, read by their family's own class; models whose
weights are drawn from a seed are what an architecture says.
"""

import importlib
from pathlib import Path
from typing import Any

from rlplan.errors import FileError
from rlplan.executor.data.fetched import fetched_folder
from rlplan.files.decoding import load_json
from rlplan.files.places import is_url
from rlplan.job import RANDOM, Job
from rlplan.models.folder import CONFIG_FILE
from rlplan.models.model import ModelArchitecture
from rlplan.rules.rule import listed

# Families whose pre-trained models run here: the folder in `transformers`, and what its classes' names begin with.
PRETRAINED_FAMILIES = {
    "gemma2": ("gemma2", "Gemma2"),
    "gemma3_text": ("gemma3", "Gemma3Text"),
    "llama": ("llama", "Llama"),
    "mistral": ("mistral", "Mistral"),
    "mixtral": ("mixtral", "Mixtral"),
    "olmo2": ("olmo2", "Olmo2"),
    "phi3": ("phi3", "Phi3"),
    "qwen2": ("qwen2", "Qwen2"),
    "qwen2_moe": ("qwen2_moe", "Qwen2Moe"),
    "qwen3": ("qwen3", "Qwen3"),
    "qwen3_moe": ("qwen3_moe", "Qwen3Moe"),
    "smollm3": ("smollm3", "SmolLM3"),
}
# Those that an architecture alone says enough of.
FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
# Classes whose names do not follow from the others'.
_CAUSAL = {"gemma3_text": "Gemma3ForCausalLM"}


def model_config(job: Job, role: str) -> Any:
    """Return the configuration of `transformers` of a role's model: that of its folder, or what its architecture means.

    Raises:
        FileError: The folder has none, or one of a family that does not run here.
    """
    folder = weights_folder(job, role)
    return family_config(job.architecture(role)) if folder is None else read_config(folder)


def weights_folder(job: Job, role: str) -> Path | None:
    """Return the folder that a role's weights are read from; None where the seed gives them.

    What lies behind a URL is fetched to this machine first, if it is not there from before.

    Raises:
        FileError: It cannot be fetched.
    """
    said = job.weights_of(role)
    if said is None or said == RANDOM:
        return None
    return fetched_folder(said, f"weights.{role}") if is_url(said) else Path(said)


def read_config(folder: Path) -> Any:
    """Return the configuration that lies in a folder of a pre-trained model.

    Raises:
        FileError: There is none, or it is of a family that does not run here.
    """
    path = folder / CONFIG_FILE
    said = load_json(path)
    family = said.get("model_type") if isinstance(said, dict) else None
    if family not in PRETRAINED_FAMILIES:
        runs = listed(tuple(PRETRAINED_FAMILIES))
        raise FileError(
            str(path),
            "is of no family that runs here",
            field="model_type",
            value=family,
            allowed=runs,
        )
    try:
        return _class_of(family, "configuration", "Config").from_dict(said)
    except Exception as error:  # noqa: BLE001  # of many kinds, as `transformers` checks what it reads
        problem = " ".join(str(error).split())
        raise FileError(str(path), f"is not understood: {problem}") from None


def backbone_class(config: Any) -> Any:
    """Return the class of a configuration's transformer without a head."""
    return _class_of(config.model_type, "modeling", "Model")


def causal_lm_class(config: Any) -> Any:
    """Return the class of a configuration's language model."""
    name = _CAUSAL.get(config.model_type)
    folder, prefix = PRETRAINED_FAMILIES[config.model_type]
    return getattr(_module(folder, "modeling"), name or f"{prefix}ForCausalLM")


def family_config(architecture: ModelArchitecture) -> Any:
    """Return the configuration of `transformers` that an architecture means."""
    return _class_of(architecture.family, "configuration", "Config")(
        hidden_size=architecture.hidden_size,
        num_hidden_layers=architecture.num_layers,
        num_attention_heads=architecture.num_heads,
        num_key_value_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        vocab_size=architecture.vocab_size,
        max_position_embeddings=architecture.max_positions,
        tie_word_embeddings=architecture.tied_embeddings,
        rms_norm_eps=architecture.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": architecture.rope_theta},
        pad_token_id=None,
        **({"sliding_window": architecture.window} if architecture.family == "mistral" else {}),
        **_mlp_sizes(architecture),
    )


def _class_of(family: str, module: str, suffix: str) -> Any:
    folder, prefix = PRETRAINED_FAMILIES[family]
    return getattr(_module(folder, module), f"{prefix}{suffix}")


def _module(folder: str, kind: str) -> Any:
    # Only the modules of a family's definition are imported: all of transformers takes seconds more.
    return importlib.import_module(f"transformers.models.{folder}.{kind}_{folder}")


def _mlp_sizes(architecture: ModelArchitecture) -> dict[str, Any]:
    """Return the sizes of MLPs or experts in a family's config."""
    if not architecture.num_experts:
        return {"intermediate_size": architecture.ffn_size}
    sizes: dict[str, Any] = {"num_experts_per_tok": architecture.experts_per_token}
    if architecture.family == "mixtral":
        return sizes | {
            "num_local_experts": architecture.num_experts,
            "intermediate_size": architecture.moe_ffn_size,
        }
    return sizes | {
        "num_experts": architecture.num_experts,
        "moe_intermediate_size": architecture.moe_ffn_size,
        "norm_topk_prob": True,  # as the published models of the family have it
    }
