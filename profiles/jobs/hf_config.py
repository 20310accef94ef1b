"""Read a model's architecture from its Hugging Face `config.json`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard, get_args

from profiles.jobs.architecture_faults import architecture_fault
from rlplan.errors import FileError, nearest_name
from rlplan.files.decoding import read_json
from rlplan.model import Family, ModelArchitecture

CONFIG_NAME = "config.json"

# Our field by the key of the file, for messages that speak the file's language.
_KEYS = {
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "num_experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "moe_ffn_size": "moe_intermediate_size",
}

# Settings that change costs or parameters in ways that an architecture does not hold.
_REFUSED = {
    "attention_bias": "biases of the attention projections",
    "mlp_bias": "biases of the MLP",
    "quantization_config": "quantised weights",
    "use_sliding_window": "sliding-window attention",
    "mlp_only_layers": "dense layers between expert layers",
}

_DEFAULT_ROPE_THETA = 10000.0
_DEFAULT_NORM_EPSILON = 1e-6
_OF_EXPERTS = ("mixtral", "qwen3_moe")
# What Qwen3's configuration class takes where its file does not say it.
_QWEN3_HEAD_DIM = 128


def read_hf_config(path: Path) -> ModelArchitecture:
    """Return the architecture of a `config.json`, given as the file or as its folder.

    Llama, Mistral, Mixtral, Qwen2, Qwen3 and Qwen3-MoE are known. Mistral's sliding window is read as full
    attention, which is the same for sequences up to the window.

    Raises:
        FileError: The file is missing, is no JSON, lacks a key, or describes another architecture.
    """
    file = path / CONFIG_NAME if path.is_dir() else path
    config = _Config(file, read_json(dict, file))
    family = config.family()
    config.refuse_what_costs_do_not_know()
    heads = config.integer("num_attention_heads")
    hidden = config.integer("hidden_size")
    experts, experts_per_token, expert_width = (
        config.experts(family) if family in _OF_EXPERTS else (0, 0, 0)
    )
    head_dim = _QWEN3_HEAD_DIM if family == "qwen3" else max(hidden // max(heads, 1), 1)
    folder = file.resolve().parent.name
    model = ModelArchitecture(
        name=folder if file.name == CONFIG_NAME else file.stem,
        family=family,
        hidden_size=hidden,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", default=heads),
        head_dim=config.integer("head_dim", default=head_dim),
        ffn_size=config.integer("intermediate_size"),
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("max_position_embeddings"),
        tied_embeddings=bool(config.data.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2",
        qk_norm=family in ("qwen3", "qwen3_moe"),
        num_experts=experts,
        experts_per_token=experts_per_token,
        moe_ffn_size=expert_width,
        rope_theta=config.rope_theta(),
        norm_epsilon=config.number("rms_norm_eps", default=_DEFAULT_NORM_EPSILON),
        source=f"Hugging Face config {folder}/{file.name}",
    )
    fault = architecture_fault(model)
    if fault:
        raise config.error(_KEYS[fault.field], fault.problem, allowed=fault.allowed)
    return model


class _Config:
    """Read the keys of one file, and name the file and the key in every complaint."""

    def __init__(self, file: Path, data: Mapping[str, Any]) -> None:
        self.file, self.data = file, data

    def error(self, key: str, problem: str, *, allowed: str | None = None) -> FileError:
        value = self.data.get(key)
        shown = value if isinstance(value, (str, int, float, bool)) else None
        return FileError(str(self.file), problem, field=key, value=shown, allowed=allowed)

    def family(self) -> Family:
        known = get_args(Family)
        found = self.data.get("model_type")
        if _is_family(found):
            return found
        problem = "is missing" if found is None else "this architecture is not known"
        raise FileError(
            str(self.file),
            problem,
            field="model_type",
            value=found,
            allowed=", ".join(known),
            nearest=nearest_name(str(found), known),
        )

    def refuse_what_costs_do_not_know(self) -> None:
        for key, meaning in _REFUSED.items():
            if self.data.get(key):
                raise self.error(key, f"{meaning} are not supported", allowed="false or absent")
        if self.data.get("decoder_sparse_step", 1) != 1:
            raise self.error("decoder_sparse_step", "every layer must have experts", allowed="1")

    def integer(self, key: str, *, default: int | None = None) -> int:
        value = self.data.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, "is missing", allowed="a whole number")
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, "must be a whole number")
        return value

    def number(self, key: str, *, default: float) -> float:
        value = self.data.get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
            raise self.error(key, "must be a number above 0")
        return float(value)

    def rope_theta(self) -> float:
        """Return the base of the rotary embedding; newer files hold it in `rope_parameters`."""
        nested = self.data.get("rope_parameters")
        inner = nested.get("rope_theta") if isinstance(nested, dict) else None
        if isinstance(inner, (int, float)) and inner > 0:
            return float(inner)
        return self.number("rope_theta", default=_DEFAULT_ROPE_THETA)

    def experts(self, family: Family) -> tuple[int, int, int]:
        """Return experts, experts per token and an expert's width.

        Newer files call the first `num_local_experts`; Mixtral has no MLP of another width beside.
        """
        newer = "num_local_experts" in self.data and "num_experts" not in self.data
        return (
            self.integer("num_local_experts" if newer else "num_experts"),
            self.integer("num_experts_per_tok"),
            self.integer("intermediate_size" if family == "mixtral" else "moe_intermediate_size"),
        )


def _is_family(name: object) -> TypeGuard[Family]:
    return name in get_args(Family)
