"""Read a model's architecture from its Hugging Face `config.json`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from profiles.jobs.config.family_traits import FamilyTraits, family_names, load_family
from profiles.jobs.config.faults import architecture_fault
from profiles.jobs.config.keys import ConfigKeys
from profiles.jobs.config.layers import Layers, layers_of, num_layers
from profiles.jobs.config.towers import audio_parameters, vision_parameters
from rlplan.errors import FileError, nearest_name
from rlplan.files.decoding import read_json
from rlplan.models.folder import CONFIG_FILE
from rlplan.models.model import (
    AttentionDetails,
    ExpertDetails,
    LatentAttention,
    LinearAttention,
    ModelArchitecture,
    StateSpace,
)

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


def read_hf_config(path: Path) -> ModelArchitecture:
    """Return the architecture of a `config.json`, given as the file or as its folder.

    Families are the files of `profiles/families/`, by `model_type`.

    Raises:
        FileError: The file is missing, is no JSON, lacks a key, describes an architecture that is not known, or has
            a key that may change sizes and is not understood.
    """
    file = path / CONFIG_FILE if path.is_dir() else path
    config = ConfigKeys(file, read_json(dict, file))
    family = _family(config)
    traits = load_family(family)
    config.defaults = traits.defaults
    model = _with_layers(_sizes(config, traits, family), config, traits)
    folder = file.resolve().parent.name
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


def _family(config: ConfigKeys) -> str:
    known, found = family_names(), config.outer.get("model_type")
    if isinstance(found, str) and found in known:
        return found
    problem = "is missing" if found is None else "this architecture is not known"
    raise FileError(
        str(config.file),
        problem,
        field="model_type",
        value=found,
        allowed=", ".join(known),
        nearest=nearest_name(str(found), known),
    )


def _sizes(config: ConfigKeys, traits: FamilyTraits, family: str) -> ModelArchitecture:
    """Return the architecture without what layers differ in."""
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    experts = _experts(config, traits)
    latent = _latent(config) if traits.latent_attention else None
    usual = config.integer("attention_head_dim", default=max(hidden // max(heads, 1), 1))
    own_width = config.integer("head_dim", default=usual)
    return ModelArchitecture(
        name="",
        family=family,
        hidden_size=hidden,
        num_layers=num_layers(config),
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", default=heads),
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
        attention=_attention_part(latent),
        norms_per_part=traits.norms_per_part,
        attention_details=_attention_details(config, traits),
        expert_details=_expert_details(config, traits) if experts else None,
        latent=latent,
        vision_parameters=_towers(config, hidden) if traits.vision else None,
    )


def _experts(config: ConfigKeys, traits: FamilyTraits) -> int:
    """Return the number of experts, 0 where a family may have none; newer files call it `num_local_experts`."""
    key, newer = traits.experts, "num_local_experts"
    if key is None:
        return 0
    if config.get(key) is None and config.get(newer) is not None:
        key = newer
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
    return config.integer(traits.dense_width)


def _latent(config: ConfigKeys) -> LatentAttention:
    return LatentAttention(
        query_rank=config.optional("q_lora_rank") or None,
        kv_rank=config.integer("kv_lora_rank"),
        nope_dim=config.integer("qk_nope_head_dim"),
        rope_dim=config.integer("qk_rope_head_dim"),
        value_dim=config.integer("v_head_dim"),
        index_heads=config.optional("index_n_heads"),
        index_dim=config.optional("index_head_dim"),
        index_tokens=config.optional("index_topk"),
    )


def _attention_part(latent: LatentAttention | None) -> str:
    if latent is None:
        return "grouped-attention"
    return "sparse-latent-attention" if latent.index_tokens else "latent-attention"


def _attention_details(config: ConfigKeys, traits: FamilyTraits) -> AttentionDetails | None:
    details = AttentionDetails(
        output_gate=traits.output_gate,
        output_bias=config.said(traits.output_bias),
        sinks=traits.sinks,
        wide_norm=traits.wide_norm,
    )
    return None if details == AttentionDetails() else details


def _expert_details(config: ConfigKeys, traits: FamilyTraits) -> ExpertDetails | None:
    shared = config.optional(traits.shared_width)
    if traits.shared_experts and not shared:
        width = config.integer(traits.expert_width)
        shared = config.optional(traits.shared_experts) * width
    if traits.shared_experts:
        config.get(traits.shared_experts)
    if traits.beside_dense:
        shared += config.integer(traits.dense_width)
    details = ExpertDetails(
        shared_ffn_size=shared,
        shared_gate=traits.shared_gate,
        latent_size=config.optional("moe_latent_size") or None,
        router_bias=traits.router_bias,
        expert_bias=traits.expert_bias,
        extra_norms=traits.extra_norms,
    )
    return None if details == ExpertDetails() else details


def _rope_theta(config: ConfigKeys) -> float:
    """Return the base of the rotary embedding; newer files hold it in `rope_parameters`."""
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
    usual = config.number("layer_norm_epsilon", default=_DEFAULT_NORM_EPSILON)
    return config.number("rms_norm_eps", default=usual)


def _towers(config: ConfigKeys, hidden_size: int) -> int | None:
    """Return the parameters of what turns images and sound into tokens; None where the file says neither."""
    found: list[int | None] = []
    for inside, parameters in (
        ("vision_config", vision_parameters),
        ("audio_config", audio_parameters),
    ):
        said = config.outer.get(inside)
        if isinstance(said, dict):
            found.append(parameters(ConfigKeys(config.file, said, inside=inside), hidden_size))
    known = [count for count in found if count is not None]
    return sum(known) if known else None


def _with_layers(
    model: ModelArchitecture, config: ConfigKeys, traits: FamilyTraits
) -> ModelArchitecture:
    """Return a model with the kinds of its layers, and the sizes of the parts that they name."""
    layers = layers_of(config, traits, model.num_experts)
    parts = {kind.attention for kind in layers.kinds.values()}
    model = replace(
        model,
        linear=_linear(config) if "linear-attention" in parts else None,
        state_space=_state_space(config) if "state-space" in parts else None,
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


def _linear(config: ConfigKeys) -> LinearAttention:
    return LinearAttention(
        key_heads=config.integer("linear_num_key_heads"),
        value_heads=config.integer("linear_num_value_heads"),
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        kernel=config.integer("linear_conv_kernel_dim"),
    )


def _state_space(config: ConfigKeys) -> StateSpace:
    return StateSpace(
        heads=config.integer("mamba_num_heads"),
        head_dim=config.integer("mamba_head_dim"),
        state_size=config.integer("ssm_state_size"),
        groups=config.integer("n_groups"),
        kernel=config.integer("conv_kernel"),
        kernel_bias=config.said("use_conv_bias"),
    )
