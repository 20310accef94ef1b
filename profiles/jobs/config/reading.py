"""Read a model's architecture from its Hugging Face `config.json`.

What a family of models has beside what its file says stands in `profiles/families/<model_type>.yaml`.
"""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError, nearest_name
from rlplan.files.decoding import read_json
from rlplan.models import CONFIG_FILE, LayerInputs, ModelArchitecture
from rlplan.profiles.jobs.checks import architecture_fault
from rlplan.profiles.jobs.config.details import (
    FamilyTraits,
    attention_details_of,
    attention_part,
    block_index_of,
    compressed_of,
    expert_details_of,
    latent_of,
    layer_inputs_of,
    linear_of,
    load_family,
    state_space_of,
)
from rlplan.profiles.jobs.config.keys import ConfigKeys
from rlplan.profiles.jobs.config.layers import (
    Layers,
    layers_of,
    num_layers,
    single_parts,
    write_pairs_out,
)
from rlplan.profiles.jobs.config.towers import image_tower, sound_tower, tower_parameters
from rlplan.profiles.sheets import sheet_names

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
    "layer_runs": "layer_types",
}

_DEFAULT_ROPE_THETA = 10000.0
_DEFAULT_NORM_EPSILON = 1e-6

_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
_FOLDER: Final = re.compile(r"models--([\w.]|-(?!-))+--(?P<name>[\w.-]+)")
_MAIN: Final = "main"


def read_hf_config(path: Path) -> ModelArchitecture:
    """Return the architecture of a `config.json`, given as the file or as its folder.

    Families are the files of `profiles/families/`, by `model_type`.

    Raises:
        FileError: The file is missing, is no JSON, lacks a key, describes an architecture that is not known, or has
            a key that may change sizes and is not understood.
    """
    file = path / CONFIG_FILE if path.is_dir() else path
    config = ConfigKeys(file, read_json(dict, file))
    family, traits = _family(config)
    config.defaults, config.renamed = traits.defaults, traits.renamed
    if traits.paired_layers:
        write_pairs_out(config, traits.paired_layers)
    model = _with_layers(_sizes(config, traits, family), config, traits)
    folder = cached_name(file) or file.resolve().parent.name
    model = replace(
        model,
        name=folder if file.name == CONFIG_FILE else file.stem,
        source=f"Hugging Face config {folder}/{file.name}",
    )
    fault = architecture_fault(model)
    if fault:
        key = traits.experts if fault.field == "num_experts" else _KEYS.get(fault.field)
        raise config.error(key or fault.field, fault.problem, allowed=fault.allowed)
    config.refuse_the_rest(traits.understood)
    return model


def _family(config: ConfigKeys) -> tuple[str, FamilyTraits]:
    """Return the family of a file and its traits; of a tower before another family's text model those of that."""
    known, found = sheet_names("families"), config.outer.get("model_type")
    if not isinstance(found, str) or found not in known:
        problem = "is missing" if found is None else "this architecture is not known"
        raise FileError(
            str(config.file),
            problem,
            field="model_type",
            value=found,
            allowed=", ".join(known),
            nearest=nearest_name(str(found), known),
        )
    traits = load_family(found)
    if traits.text_families is None:
        return found, traits
    if not config.nested:
        raise config.error("text_config", "is missing", allowed="the text model's own keys")
    text = config.data.get("model_type")
    if not isinstance(text, str) or text not in traits.text_families:
        problem = f"is no text model that is known behind the tower of {found}"
        allowed = ", ".join(traits.text_families)
        raise config.error("model_type", problem, allowed=f"text_config of {allowed}")
    family = traits.text_families[text]
    return family, replace(load_family(family), vision=True)


def _sizes(config: ConfigKeys, traits: FamilyTraits, family: str) -> ModelArchitecture:
    """Return the architecture without what layers differ in."""
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    experts = _experts(config, traits)
    latent = latent_of(config) if traits.latent_attention else None
    inputs = layer_inputs_of(config)
    shares_keys = traits.compressed_attention  # one vector for all heads is whole on every rank
    if shares_keys and config.integer("num_key_value_heads", default=1) != 1:
        raise config.error(
            "num_key_value_heads", "is not the one that all heads share", allowed="1"
        )
    if inputs and experts:
        problem = "beside experts is not known"
        raise config.error("hidden_size_per_layer_input", problem, allowed="0 beside experts")
    usual = config.integer("attention_head_dim", default=max(hidden // max(heads, 1), 1))
    own_width = config.integer("head_dim", default=usual)
    return ModelArchitecture(
        name="",
        family=family,
        hidden_size=hidden,
        num_layers=num_layers(config),
        num_heads=heads,
        num_kv_heads=heads if shares_keys else config.integer("num_key_value_heads", default=heads),
        head_dim=latent.nope_dim + latent.rope_dim if latent else own_width,
        ffn_size=_dense_width(config, traits, experts),
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("max_position_embeddings"),
        tied_embeddings=config.said("tie_word_embeddings"),
        qkv_bias=config.said(traits.qkv_bias),
        qk_norm=config.said(traits.qk_norm),
        gated_mlp=traits.gated_mlp,
        num_experts=experts,
        experts_per_token=config.integer(traits.experts_chosen) if experts else 0,
        moe_ffn_size=config.integer(traits.expert_width) if experts else 0,
        rope_theta=_rope_theta(config),
        norm_epsilon=_norm_epsilon(config),
        attention="shared-key-attention" if shares_keys else attention_part(latent),
        norms_per_part=traits.norms_per_part,
        attention_details=attention_details_of(config, traits),
        expert_details=expert_details_of(config, traits) if experts else None,
        latent=latent,
        compressed=compressed_of(config) if shares_keys else None,
        block_layers=config.optional(traits.blocks) or None,
        streams=config.optional(traits.streams) or None,
        vision_parameters=tower_parameters(config, hidden) if traits.vision else None,
        tower=image_tower(config) if traits.vision else None,
        sound=sound_tower(config) if traits.vision else None,
        laurel_rank=config.optional(traits.laurel_rank) or None,
        feed_forward=_feed_forward(inputs, traits),
        layer_inputs=inputs,
    )


def _feed_forward(inputs: LayerInputs | None, traits: FamilyTraits) -> str | None:
    """Return the part of layers that are given inputs of their own; None where they are not."""
    if inputs is None:
        return None
    return "altup-mlp" if traits.laurel_rank else "layer-input-mlp"


def _experts(config: ConfigKeys, traits: FamilyTraits) -> int:
    """Return the number of experts, 0 where a family may have none; newer files call it `num_local_experts`."""
    key, newer = traits.experts, "num_local_experts"
    if key is None:
        return 0
    if config.get(key) is None and config.get(newer) is not None:
        key = newer
    if traits.single_parts and "moe" not in single_parts(config).order:
        return 0  # newer files have its class's numbers all the same
    if traits.single_parts or traits.beside_dense:
        return config.optional(key)
    count = config.integer(key)
    if count < 1:
        raise config.error(key, "must be at least 1", allowed="a whole number from 1")
    return count


def _dense_width(config: ConfigKeys, traits: FamilyTraits, experts: int) -> int:
    """Return the width of dense networks; of experts where a file knows no other."""
    if experts and config.get(traits.dense_width) is None:
        return config.integer(traits.expert_width)
    listed = config.get(traits.dense_width)
    if not isinstance(listed, list):
        return config.integer(traits.dense_width)
    first = listed[0] if listed else None
    if not isinstance(first, int) or any(each != first for each in listed):
        problem = "differs from layer to layer, which is not known"
        raise config.error(traits.dense_width, problem, allowed="one width for all layers")
    return first


def _rope_theta(config: ConfigKeys) -> float:
    """Return the base of the rotary embedding; newer files hold it in `rope_parameters`, Step's have one a layer."""
    listed = config.get("rope_theta")
    if (
        isinstance(listed, list)
        and listed
        and all(isinstance(each, float | int) for each in listed)
    ):
        return float(max(listed))
    nested: Any = config.get("rope_parameters")
    if isinstance(nested, dict):
        full = nested.get("full_attention")
        nested = full if isinstance(full, dict) else nested
        inner = ConfigKeys(config.file, nested, inside="rope_parameters")
        if inner.get("rope_theta") is not None:
            return inner.number("rope_theta", default=_DEFAULT_ROPE_THETA)
    return config.number("rope_theta", default=_DEFAULT_ROPE_THETA)


def _norm_epsilon(config: ConfigKeys) -> float:
    """Return what norms add to the variance; Nemotron-H's files call it otherwise."""
    usual = config.number("layernorm_epsilon", default=_DEFAULT_NORM_EPSILON)  # MiMo-V2-Flash
    usual = config.number("layer_norm_epsilon", default=usual)
    return config.number("rms_norm_eps", default=usual)


def _with_layers(
    model: ModelArchitecture, config: ConfigKeys, traits: FamilyTraits
) -> ModelArchitecture:
    """Return a model with the kinds of its layers, and the sizes of the parts that they name."""
    layers = layers_of(config, traits, model.num_experts)
    parts = {kind.attention for kind in layers.kinds.values()}
    model = replace(
        model,
        block_index=block_index_of(config) if "block-sparse-attention" in parts else None,
        linear=linear_of(config, full=traits.full_gates)
        if parts & {"linear-attention", "kimi-delta-attention"}
        else None,
        state_space=state_space_of(config) if "state-space" in parts else None,
    )
    return _of_kinds(model, layers)


def _of_kinds(model: ModelArchitecture, layers: Layers) -> ModelArchitecture:
    """Return a model of these layers; where all are of one kind it is the model's."""
    if len(layers.kinds) > 1:
        return replace(model, layer_kinds=layers.kinds, layer_runs=layers.runs)
    (kind,) = layers.kinds.values()
    return replace(
        model,
        window=kind.window,
        attention=kind.attention or model.attention,
        feed_forward=kind.feed_forward,
    )


# Models that Hugging Face's cache on this machine holds, found by their ids; nothing is downloaded.
#
# Layout and variables are those of huggingface_hub (its guide "Understand caching", and its reference of environment
# variables): `models--<organisation>--<name>/snapshots/<commit>/`, `refs/<revision>` naming the commit.


def cached_config(name: str) -> Path | None:
    """Return the config.json of a model that is in the cache, by its id; None where there is none.

    Of several snapshots it is that of the revision `main`, else the one that was written last.
    """
    if not _ID.fullmatch(name):
        return None
    folder = _cache() / f"models--{name.replace('/', '--')}"
    snapshots, main = folder / "snapshots", folder / "refs" / _MAIN
    if main.is_file():
        config = snapshots / main.read_text(encoding="utf-8").strip() / CONFIG_FILE
        if config.is_file():
            return config
    found = [path for path in snapshots.glob(f"*/{CONFIG_FILE}") if path.is_file()]
    return max(found, key=lambda path: (path.stat().st_mtime, path.parent.name), default=None)


def cached_name(path: Path) -> str | None:
    """Return the name of the model whose folder of the cache a path lies in; None of other paths."""
    folders = (_FOLDER.fullmatch(part) for part in reversed(path.parts))
    return next((found["name"] for found in folders if found), None)


def _cache() -> Path:
    """Return the folder of the cache, as huggingface_hub looks for it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        told = os.environ.get(variable)
        if told:
            return Path(told).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return usual / "huggingface" / "hub"
